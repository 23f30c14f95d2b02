// How the threads of a thread block share 1024 values: which are whose, sums over all, and votes.
#pragma once

#include "base/unroll.h"
#include "codec/bounded/gpu/call.h"
#include "codec/gpu/run.h"

namespace cgx::bounded::on_gpu {

using cgx::gpu::kThreads;

/// Values that a thread block has at a time; each thread has kEach neighbours.
constexpr uint32_t kEach = 4, kStep = kEach * kThreads;

/// What block.any_phase() needs to ask all threads: a word for each warp.
constexpr uint32_t kWarps = kThreads / 32;

struct Add {
  template <typename T>
  CGX_HD T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Most {
  template <typename T>
  CGX_HD T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

/// own[t] becomes what own[0], ..., own[t] are together. `spare`: memory of the same kind.
template <typename Block, typename T, typename Join>
CGX_HD void scan(Block& block, T* own, T* spare, const Join& join) {
  for (uint32_t step = 1; step < kThreads; step *= 2) {
    block.phase([&](uint32_t t) { spare[t] = t < step ? own[t] : join(own[t - step], own[t]); });
    T* const made = spare;
    spare = own;
    own = made;
  }
  static_assert(kThreads == 256, "an even number of steps ends in the memory of the first");
}

/// The value number i, its bits in a word: with its sign, where the type says so.
template <typename Word>
CGX_HD Word load(const ValueType& type, const unsigned char* x, uint64_t i) {
  if constexpr (sizeof(Word) == 8) {
    return reinterpret_cast<const int64_t*>(x)[i];
  } else {
    if (type.bytes == 4) return reinterpret_cast<const int32_t*>(x)[i];
    if (type.bytes == 2) {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(x)[i];
      return type.extends != 0 ? static_cast<int16_t>(bits) : bits;
    }
    return type.extends != 0 ? static_cast<signed char>(x[i]) : x[i];
  }
}

template <typename Word>
CGX_HD void store(const ValueType& type, unsigned char* y, uint64_t i, Word bits) {
  if constexpr (sizeof(Word) == 8) {
    reinterpret_cast<int64_t*>(y)[i] = bits;
  } else {
    if (type.bytes == 4) {
      reinterpret_cast<int32_t*>(y)[i] = bits;
    } else if (type.bytes == 2) {
      reinterpret_cast<uint16_t*>(y)[i] = static_cast<uint16_t>(bits);
    } else {
      y[i] = static_cast<unsigned char>(bits);
    }
  }
}

/// The same of floating-point numbers, which have 2 bytes or the word's.
template <typename Word>
CGX_HD Word load_number(const ValueType& type, const unsigned char* x, uint64_t i) {
  if (sizeof(Word) == 4 && type.bytes == 2) return reinterpret_cast<const int16_t*>(x)[i];
  return reinterpret_cast<const Word*>(x)[i];
}
template <typename Word>
CGX_HD void store_number(const ValueType& type, unsigned char* y, uint64_t i, Word bits) {
  if (sizeof(Word) == 4 && type.bytes == 2) {
    reinterpret_cast<int16_t*>(y)[i] = static_cast<int16_t>(bits);
  } else {
    reinterpret_cast<Word*>(y)[i] = bits;
  }
}

/// A word as load() gives it of a value with its low bits; of a bool there is one.
template <typename Word>
CGX_HD Word narrowed(const ValueType& type, Word word) {
  if constexpr (sizeof(Word) == 8) return word;
  if (type.bytes == 1) {
    if (type.is_bool != 0) return word & 1;
    return type.extends != 0 ? static_cast<signed char>(word) : static_cast<unsigned char>(word);
  }
  if (type.bytes == 2) {
    return type.extends != 0 ? static_cast<int16_t>(word) : static_cast<uint16_t>(word);
  }
  return word;
}

/// The bits of a value, without the sign extension of load().
template <typename Word>
CGX_HD uint64_t plain_bits(const ValueType& type, Word bits) {
  const uint64_t all = type.bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * type.bytes)) - 1;
  return static_cast<uint64_t>(bits) & all;
}

}  // namespace cgx::bounded::on_gpu
