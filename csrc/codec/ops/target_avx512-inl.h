// Compiles the following code for avx512, up to target_end-inl.h.
//
// All headers come before it, and nothing of the standard library is instantiated after it: an
// inline function compiled for avx512 under a name that other files share could be the copy that
// the linker keeps.
#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif
