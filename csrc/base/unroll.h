// Hints on loops for the compilers of kernels, and one for the host's.
//
// CGX_UNROLL: before a loop whose counter has to be known to a kernel's compiler: its arrays stay
// in registers. CGX_LOOP: before one that is taken seldom and shall stay small.
#pragma once

#include "base/host_device.h"

#if defined(CGX_DEVICE_COMPILER)
#define CGX_UNROLL _Pragma("unroll")
#define CGX_LOOP _Pragma("unroll 1")
#else
#define CGX_UNROLL
#define CGX_LOOP
#endif

/// Before a loop of the host's whose steps do not depend on each other, though what it reads and what it
/// writes may be the same memory, value by value.
#if defined(__clang__)
#define CGX_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CGX_INDEPENDENT _Pragma("GCC ivdep")
#endif
