// Compiles the following code for avx2, up to target_end-inl.h.
//
// All headers come before it, and nothing of the standard library is instantiated after it: an
// inline function compiled for avx2 under a name that other files share could be the copy that the
// linker keeps.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
