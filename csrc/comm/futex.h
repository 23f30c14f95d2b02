// Sleeping until another thread or another process changes a word of shared memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cgx {

/// Sleeps while `word` holds `expected`, at most `limit`. May return early (signals): the caller
/// checks again. The word may be in memory shared between processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds limit);

/// Wakes every sleeper on `word`. Change the word first.
void futex_wake_all(std::atomic<uint32_t>& word);

/// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cgx
