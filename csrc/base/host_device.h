// Arithmetic with equal results on the host and in a kernel for CUDA or HIP.
//
// Each function is one IEEE operation in float32, rounded to nearest even (rn_fma: a b + c, rounded
// once). Nothing is fused, so the bytes do not depend on the machine:
//   in CUDA               the intrinsics keep the compiler from fusing a product and a sum
//   on the host, in HIP   the flag -ffp-contract=off does
#pragma once

// Compilers at run time have no headers except their own.
#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define CGX_RUNTIME_COMPILER
#endif

// Kernel compilers (nvcc, NVRTC, hipcc, hipRTC) skip the parts that only the host needs.
#if defined(CGX_RUNTIME_COMPILER) || defined(__CUDACC__) || defined(__HIPCC__)
#define CGX_DEVICE_COMPILER
#endif

#if defined(CGX_RUNTIME_COMPILER)
// Not in the global namespace: some versions of hipRTC define these names there, with other types.
namespace cgx {
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
static_assert(sizeof(uint32_t) == 4 && sizeof(uint64_t) == 8, "these types have these sizes");
}  // namespace cgx
#else
#include <cstdint>
#endif

#if defined(__HIPCC__) && !defined(CGX_RUNTIME_COMPILER)
#include <hip/hip_runtime.h>
#endif

#if defined(CGX_DEVICE_COMPILER)
#define CGX_HD __host__ __device__ __forceinline__
#else
#define CGX_HD inline
#endif

/// Of a function in a loop that a host's compiler makes vectors of: it has to be inlined for that, into the
/// code of one SIMD level.
#if defined(CGX_DEVICE_COMPILER)
#define CGX_HD_LOOP CGX_HD
#else
#define CGX_HD_LOOP inline __attribute__((always_inline))
#endif

/// A constant array, on the side that reads it: `CGX_TABLE float kName[3] = {...};`.
#if defined(CGX_DEVICE_COMPILER)
#define CGX_TABLE static __device__ const
#else
#define CGX_TABLE inline constexpr
#endif

#if defined(__FAST_MATH__)
#error "codecs need IEEE arithmetic: build without -ffast-math"
#endif

namespace cgx {

#if defined(__CUDA_ARCH__)
CGX_HD float rn_add(float a, float b) { return __fadd_rn(a, b); }
CGX_HD float rn_sub(float a, float b) { return __fsub_rn(a, b); }
CGX_HD float rn_mul(float a, float b) { return __fmul_rn(a, b); }
CGX_HD float rn_div(float a, float b) { return __fdiv_rn(a, b); }
CGX_HD float rn_sqrt(float a) { return __fsqrt_rn(a); }
CGX_HD double rn_sqrt(double a) { return __dsqrt_rn(a); }
CGX_HD float rn_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
CGX_HD uint32_t as_bits(float x) { return __float_as_uint(x); }
CGX_HD float from_bits(uint32_t bits) { return __uint_as_float(bits); }
CGX_HD uint64_t as_bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }
CGX_HD double wide_from_bits(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
#else
CGX_HD float rn_add(float a, float b) { return a + b; }
CGX_HD float rn_sub(float a, float b) { return a - b; }
CGX_HD float rn_mul(float a, float b) { return a * b; }
CGX_HD float rn_div(float a, float b) { return a / b; }
CGX_HD float rn_sqrt(float a) { return __builtin_sqrtf(a); }
CGX_HD double rn_sqrt(double a) { return __builtin_sqrt(a); }
CGX_HD float rn_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CGX_HD uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
CGX_HD float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
CGX_HD uint64_t as_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
CGX_HD double wide_from_bits(uint64_t bits) { return __builtin_bit_cast(double, bits); }
#endif

}  // namespace cgx
