// Compiles a file once for each SIMD level of the machine. A source includes this after all of its
// headers and after its scalar code:
//
//   namespace cgx::maxmin::scalar { ... constexpr Loops kLoops{encode, decode}; }
//
//   #define CGX_LEVEL_FILE "codec/families/maxmin/loops-inl.h"
//   #include "codec/ops/foreach_level-inl.h"
//
//   namespace cgx::maxmin { const cpu::ByLevel<Loops> kLoops = CGX_BY_LEVEL(kLoops); }
//
// The file is included for one level after the other, so it has no include guard. It finds defined
//   CGX_LEVEL      avx2, avx512 or neon: the namespace for what it defines, around an anonymous one
//   CGX_ON_AVX2, CGX_ON_AVX512, CGX_ON_NEON   one of them
//   CGX_INLINE     an attribute: always inlined, for the level's target
// and gets its vector operations from simd-inl.h. With CGX_LEVEL_SCALAR defined it is included as the
// level `scalar`, too, without any CGX_ON_; only for loops that nobody needs another oracle of.
//
// What has to be minded, since functions here may use instructions that the CPU lacks:
// - All headers come before, and the file instantiates nothing of the standard library. The linker
//   keeps one copy of an inline function, for all levels; one compiled for avx512 would run on
//   every CPU. tests/packaging/test_levels.py looks for such functions.
// - GCC gives the target to what is declared between two pragmas. The call of a lambda in a template is
//   declared when the template is instantiated, at the end of the source. So lambdas that use vectors
//   are CGX_INLINE, which also names the target.
// - GCC inlines less in a long source. The functions of inner loops are CGX_INLINE, too.
// - Inline functions of headers are compiled for every CPU. They may be inlined here, but must not
//   get or return vectors.

#if !defined(CGX_LEVEL_FILE)
#error "define CGX_LEVEL_FILE"
#endif

#include "base/half.h"
#include "codec/ops/by_level.h"
#include "codec/ops/tables.h"
#include "codec/ops/types.h"

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Between the two, code is compiled for a target that more CPUs than this one may lack.
#define CGX_PRAGMA(tokens) _Pragma(#tokens)
#if defined(__clang__)
#define CGX_BEGIN_TARGET(target_) \
  CGX_PRAGMA(clang attribute push(__attribute__((target(target_))), apply_to = function))
#define CGX_END_TARGET CGX_PRAGMA(clang attribute pop)
#else
#define CGX_BEGIN_TARGET(target_) CGX_PRAGMA(GCC push_options) CGX_PRAGMA(GCC target(target_))
#define CGX_END_TARGET CGX_PRAGMA(GCC pop_options)
#endif

#if defined(CGX_LEVEL_SCALAR)
#define CGX_LEVEL scalar
#define CGX_INLINE __attribute__((always_inline))
#include CGX_LEVEL_FILE
#undef CGX_INLINE
#undef CGX_LEVEL
#undef CGX_LEVEL_SCALAR
#endif

#if defined(__x86_64__)

#define CGX_INLINE __attribute__((always_inline, target(CGX_TARGET)))

#define CGX_LEVEL avx2
#define CGX_ON_AVX2
#define CGX_TARGET "avx2,fma,f16c"
CGX_BEGIN_TARGET(CGX_TARGET)
#include CGX_LEVEL_FILE
CGX_END_TARGET
#undef CGX_TARGET
#undef CGX_ON_AVX2
#undef CGX_LEVEL

#define CGX_LEVEL avx512
#define CGX_ON_AVX512
#define CGX_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"
CGX_BEGIN_TARGET(CGX_TARGET)
#include CGX_LEVEL_FILE
CGX_END_TARGET
#undef CGX_TARGET
#undef CGX_ON_AVX512
#undef CGX_LEVEL

#undef CGX_INLINE

#define CGX_BY_LEVEL(name) {&scalar::name, &avx2::name, &avx512::name, nullptr}

#elif defined(__aarch64__)

// Every CPU of this machine has neon, so nothing is asked of the compiler.
#define CGX_INLINE __attribute__((always_inline))
#define CGX_LEVEL neon
#define CGX_ON_NEON
#include CGX_LEVEL_FILE
#undef CGX_ON_NEON
#undef CGX_LEVEL
#undef CGX_INLINE

#define CGX_BY_LEVEL(name) {&scalar::name, nullptr, nullptr, &neon::name}

#else

#define CGX_BY_LEVEL(name) {&scalar::name, nullptr, nullptr, nullptr}

#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#undef CGX_END_TARGET
#undef CGX_BEGIN_TARGET
#undef CGX_PRAGMA
#undef CGX_LEVEL_FILE
