// The loops of LevelTable over the vector operations of one level. A file of ops/foreach_level-inl.h.
// float64 has no vectors here and goes through the scalar loops.

namespace cgx::levels {
namespace CGX_LEVEL {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd-inl.h"
// This needs the vector operations.
#include "codec/levels/search-inl.h"

struct NoLimit {
  static I limit(I codes) { return codes; }
};

/// Writes the codes of n <= kSinkCodes values as bytes; returns whether one is NaN. Codes behind the n
/// values may be written, up to a multiple of kSearched.
using Search = bool(const Arrays& table, const std::byte* x, size_t n, uint8_t* codes);
constexpr size_t kSearched = 4 * kLanes;
static_assert(kSinkCodes % kSearched == 0);

template <int depth, typename T>
static bool search(const Arrays& table, const std::byte* x, size_t n, uint8_t* codes) {
  const Walk<1, 1 << depth> walk(table.tree);
  const I compared = set_int(table.magnitude ? 0x7fffffffu : 0xffffffffu);
  Nans found = nans(set(0.0f), set(0.0f));
  const F infinity = set(__builtin_inff());
  const I mask = set_int((1u << table.bits) - 1), root = set_int(1);
  for (size_t i = 0; i < n; i += kSearched) {
    const std::byte* from = x + i * T::kBytes;
    std::byte rest[kSearched * T::kBytes];
    if (n - i < kSearched) {
      __builtin_memset(rest, 0, sizeof rest);
      __builtin_memcpy(rest, from, (n - i) * T::kBytes);
      from = rest;
    }
    I code[4];
    for (size_t k = 0; k < 4; ++k) {
      const F x_k = float_of(and_(bits_of(load(T{}, from + k * kLanes * T::kBytes)), compared));
      found = either(found, nans(x_k, x_k));
      // The minimum makes a NaN infinite.
      const F value = min(x_k, infinity);
      code[k] = and_(walk(value, root), mask);
    }
    store_bytes(codes + i, code[0], code[1], code[2], code[3], NoLimit{});
  }
  return any(found);
}

template <typename T>
static bool encode(const Arrays& table, const std::byte* x, size_t n, std::byte* out) {
  static constexpr Search* kSearch[kMostBits] = {search<1, T>, search<2, T>, search<3, T>,
                                                 search<4, T>, search<5, T>, search<6, T>,
                                                 search<7, T>, search<8, T>};
  Search* find = kSearch[table.depth - 1];
  Sink sink(out, n, table.bits);
  bool nan = false;
  for (size_t i = 0; i < n; i += kSinkCodes) {
    const size_t take = smaller(n - i, kSinkCodes);
    uint8_t* whole = take == kSinkCodes ? sink.whole_bytes(take) : nullptr;
    nan |= find(table, x + i * T::kBytes, take, whole != nullptr ? whole : sink.codes);
    if (whole == nullptr) {
      sink.fill = take;
      sink.flush();
    }
  }
  return nan;
}

/// Levels by code: from registers, or from memory where there are many.
template <int count, bool in_registers = (count < kSlowTable)>
struct Levels {
  Table<count> table;
  explicit Levels(const float* levels) : table(levels) {}
  F operator()(I code) const { return table(code); }
};
template <int count>
struct Levels<count, false> {
  const float* levels;
  explicit Levels(const float* all) : levels(all) {}
  F operator()(I code) const { return gather(levels, code); }
};

template <int bits, bool times, typename T>
static void decode_as(const Arrays& table, const std::byte* codes, const std::byte* x, size_t n,
                      std::byte* y) {
  const Levels<1 << bits> level_of(table.level);
  const Unpack unpack(bits, 0);
  const size_t bytes = n / 8 * bits + (n % 8 * bits + 7) / 8;
  size_t at = 0;
  for (size_t i = 0; i < n; i += kLanes, at += kLanes / 8 * bits) {
    const std::byte* from = codes + at;
    std::byte window[16];
    if (bytes - at < sizeof window) {
      __builtin_memset(window, 0, sizeof window);
      __builtin_memcpy(window, from, bytes - at);
      from = window;
    }
    F v = level_of(unpack(from));
    std::byte* to = y + i * T::kBytes;
    if (n - i >= kLanes) {
      if constexpr (times) v = one_nan(mul(load(T{}, x + i * T::kBytes), v));
      store(T{}, to, v);
    } else {
      if constexpr (times) v = one_nan(mul(load_first(T{}, x + i * T::kBytes, n - i), v));
      store_first(T{}, to, n - i, v);
    }
  }
}

template <bool times, typename T>
static void decode(const Arrays& table, const std::byte* codes, const std::byte* x, size_t n,
                   std::byte* y) {
  static constexpr Decode* kDecode[kMostBits] = {decode_as<1, times, T>, decode_as<2, times, T>,
                                                 decode_as<3, times, T>, decode_as<4, times, T>,
                                                 decode_as<5, times, T>, decode_as<6, times, T>,
                                                 decode_as<7, times, T>, decode_as<8, times, T>};
  kDecode[table.bits - 1](table, codes, x, n, y);
}

constexpr Loops kLoops{
    {encode<Float32>, encode<Float16>, encode<BFloat16>, scalar::kLoops.encode[kFloat64]},
    {decode<false, Float32>, decode<false, Float16>, decode<false, BFloat16>,
     scalar::kLoops.decode[kFloat64]},
    {decode<true, Float32>, decode<true, Float16>, decode<true, BFloat16>,
     scalar::kLoops.multiply[kFloat64]}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::levels
