// IEEE arithmetic for the time of a scope.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace cgx {

/// torch.set_flush_denormal(True) sets flush-to-zero on the calling thread; ranks that differ in it
/// would compute different bits. Sets round-to-nearest without flushing, and restores the caller's
/// mode.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  FloatMode() = default;
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  unsigned int saved_;
#elif defined(__aarch64__)
  uint64_t saved_ = 0;
#endif
};

}  // namespace cgx
