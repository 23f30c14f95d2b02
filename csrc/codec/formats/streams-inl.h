// The loops of streams of codes, which the compiler makes vectors of, but for packing. A file of
// ops/foreach_level-inl.h, for the level `scalar`, too.

namespace cgx::formats {
namespace CGX_LEVEL {
namespace {

#if defined(CGX_ON_AVX2) || defined(CGX_ON_AVX512) || defined(CGX_ON_NEON)
using namespace cgx::cpu;
#include "codec/ops/simd-inl.h"

/// Codes on their way to a stream.
struct Packer {
  Sink sink;
  Packer(std::byte* out, size_t n, int bits) : sink(out, n, bits) {}
  void put(const uint8_t* codes, size_t n) {
    __builtin_memcpy(sink.codes, codes, n);
    sink.fill = n;
    sink.flush();
  }
};

/// And back. `codes` has room for 64 more.
static void unpack(const std::byte* in, size_t bytes, int bits, size_t n, uint8_t* codes) {
  const Unpack codes_of(bits, 0);
  const size_t step = kLanes / 8 * static_cast<size_t>(bits);
  for (size_t i = 0, at = 0; i < n; i += kLanes, at += step) {
    const std::byte* from = in + at;
    std::byte window[16];
    if (bytes - at < sizeof window) {
      __builtin_memset(window, 0, sizeof window);
      __builtin_memcpy(window, from, bytes - at);
      from = window;
    }
    store_bytes(codes + i, codes_of(from));
  }
}
#else
struct Packer {
  cpu::scalar::BitWriter writer;
  Packer(std::byte* out, size_t, int bits) : writer(out, bits) {}
  void put(const uint8_t* codes, size_t n) {
    for (size_t i = 0; i < n; ++i) writer.put(codes[i]);
  }
};

static void unpack(const std::byte* in, size_t, int bits, size_t n, uint8_t* codes) {
  cpu::scalar::BitReader reader(in, bits);
  for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(reader.get());
}
#endif

constexpr size_t kChunk = 1024;

/// n: at most kChunk.
template <Kind kind, bool plain, typename Code>
static inline CGX_INLINE void code_piece(const Coder& coder, const float* x, size_t n, Draws draws,
                                         Code* codes) {
  const Rule<float> rule = coder.rule;
  const CodeRule code = coder.code;
  // Two loops: in one, compilers make branches of what follows from a rounded value.
  float y[kChunk];
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    y[i] = rounded<kind, plain>(rule, x[i], drawn<kind>(draws, state, rule.random_shift));
  }
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i) {
    codes[i] = static_cast<Code>(code_of(code, unsaturated(code, x[i], y[i])));
  }
}

template <Kind kind, bool plain, typename Code>
static inline CGX_INLINE void code_chunk(const Coder& coder, const float* x, size_t n,
                                         RandomKey key, uint64_t number, Code* codes) {
  // The counter has the low word of a value's number, the key its high word.
  const uint64_t left = (uint64_t{1} << 32) - (number & 0xffffffffu);
  const size_t some = left < n ? static_cast<size_t>(left) : n;
  const auto high = static_cast<uint32_t>(number >> 32);
  code_piece<kind, plain>(coder, x, some, {key_of_high(key, high), static_cast<uint32_t>(number)},
                          codes);
  if (some == n) return;
  code_piece<kind, plain>(coder, x + some, n - some, {key_of_high(key, high + 1), 0}, codes + some);
}

template <Kind kind, bool plain>
static void encode_by(const Coder& coder, const float* x, size_t n, RandomKey key, uint64_t index,
                      std::byte* out) {
  if (coder.bits == 16) {
    uint16_t codes[kChunk];
    for (size_t i = 0; i < n; i += kChunk) {
      const size_t take = n - i < kChunk ? n - i : kChunk;
      code_chunk<kind, plain>(coder, x + i, take, key, index + i, codes);
      __builtin_memcpy(out + 2 * i, codes, 2 * take);
    }
    return;
  }
  if (coder.bits == 8) {
    for (size_t i = 0; i < n; i += kChunk) {
      const size_t take = n - i < kChunk ? n - i : kChunk;
      code_chunk<kind, plain>(coder, x + i, take, key, index + i,
                              reinterpret_cast<uint8_t*>(out + i));
    }
    return;
  }
  Packer packer(out, n, coder.bits);
  uint8_t codes[kChunk];
  for (size_t i = 0; i < n; i += kChunk) {
    const size_t take = n - i < kChunk ? n - i : kChunk;
    code_chunk<kind, plain>(coder, x + i, take, key, index + i, codes);
    packer.put(codes, take);
  }
}

template <Kind kind>
static void encode(const Coder& coder, const float* x, size_t n, RandomKey key, uint64_t index,
                   std::byte* out) {
  coder.rule.plain ? encode_by<kind, true>(coder, x, n, key, index, out)
                   : encode_by<kind, false>(coder, x, n, key, index, out);
}

template <bool add, typename Code>
static inline CGX_INLINE void values_of(const CodeRule& given, const Code* codes, size_t n,
                                        float* y) {
  const CodeRule rule = given;
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i) {
    const float value = value_of_code(rule, codes[i]);
    if constexpr (add) {
      const uint32_t sum = as_bits(y[i] + value);
      y[i] = from_bits(select(where_less(0x7f800000u, sum & 0x7fffffffu), kNan, sum));
    } else {
      y[i] = value;
    }
  }
}

template <bool add>
static void decode(const Coder& coder, const std::byte* in, size_t n, float* y) {
  alignas(64) uint16_t memory[kChunk + 64];
  const size_t bytes = coder.bytes(n), of_chunk = coder.bytes(kChunk);
  for (size_t i = 0, at = 0; i < n; i += kChunk, at += of_chunk) {
    const size_t take = n - i < kChunk ? n - i : kChunk;
    if (coder.bits == 16) {
      __builtin_memcpy(memory, in + at, 2 * take);
      values_of<add>(coder.code, memory, take, y + i);
      continue;
    }
    auto* codes = reinterpret_cast<uint8_t*>(memory);
    if (coder.bits == 8) {
      __builtin_memcpy(codes, in + at, take);
    } else {
      unpack(in + at, bytes - at, coder.bits, take, codes);
    }
    values_of<add>(coder.code, codes, take, y + i);
  }
}

constexpr StreamLoops kLoops{
    {encode<Kind::kNearest>, encode<Kind::kZero>, encode<Kind::kStochastic>},
    {decode<false>, decode<true>}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::formats
