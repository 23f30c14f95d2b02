#include "codec/bounded/maps/order.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/lattice.h"

namespace cgx::bounded {
namespace {

template <typename Bits>
Bits load(const std::byte* x, size_t i) {
  Bits bits;
  std::memcpy(&bits, x + i * sizeof(Bits), sizeof(Bits));
  return bits;
}

// Whole numbers.
template <typename Word, typename Bits>
void order_all(const std::byte* x, size_t n, const Order& order, Word* words) {
  for (size_t i = 0; i < n; ++i) {
    words[i] = static_cast<Word>(static_cast<Bits>(load<Bits>(x, i) >> order.shift));
  }
}

template <typename Word, typename Bits>
bool disorder_all(const Word* words, size_t n, const Order& order, std::byte* x) {
  using U = std::make_unsigned_t<Bits>;
  using W = std::make_unsigned_t<Word>;
  W beyond = 0;
  for (size_t i = 0; i < n; ++i) {
    const U bits = static_cast<U>(static_cast<U>(words[i]) << order.shift);
    const Word back = static_cast<Word>(static_cast<Bits>(bits)) >> order.shift;
    beyond |= static_cast<W>(back ^ words[i]);
    std::memcpy(x + i * sizeof(Bits), &bits, sizeof(Bits));
  }
  return beyond == 0;
}

// The loops of a floating-point type with these words.
template <typename Word, typename Function>
void with_loops(DType element, Function&& function) {
  const Loops& all = loops();
  if constexpr (sizeof(Word) == 8) {
    function(all.wide_order, int64_t{});
  } else if (size_of(element) == 4) {
    function(all.narrow_order, int32_t{});
  } else {
    function(all.half_order, int16_t{});
  }
}

}  // namespace

FloatLayout layout_of(DType element) {
  switch (element) {
    case DType::kFloat64:
      return {0x8000000000000000, 0x7ff0000000000000, 0x0010000000000000};
    case DType::kFloat32:
      return {0x80000000, 0x7f800000, 0x00800000};
    case DType::kFloat16:
      return {0x8000, 0x7c00, 0x0400};
    default:
      return {0x8000, 0x7f80, 0x0080};
  }
}

uint64_t bits_at(DType element, const std::byte* x, size_t i) {
  return with_bits(element, [&]<typename Bits>() {
    return static_cast<uint64_t>(static_cast<std::make_unsigned_t<Bits>>(load<Bits>(x, i)));
  });
}

void append_bits(DType element, const std::byte* x, size_t n, std::vector<uint64_t>& out) {
  const size_t begin = out.size();
  out.resize(begin + n);
  with_bits(element, [&]<typename Bits>() {
    for (size_t i = 0; i < n; ++i) {
      out[begin + i] = static_cast<std::make_unsigned_t<Bits>>(load<Bits>(x, i));
    }
  });
}

double value_at(DType element, const std::byte* x, size_t i) {
  switch (element) {
    case DType::kFloat32:
      return get<float>(x, 4 * i);
    case DType::kFloat64:
      return get<double>(x, 8 * i);
    case DType::kFloat16:
    case DType::kBFloat16:
      return half_value(element, get<uint16_t>(x, 2 * i));
    case DType::kInt64:
      return static_cast<double>(get<int64_t>(x, 8 * i));
    // As the order has it.
    case DType::kUInt64:
      return static_cast<double>(get<int64_t>(x, 8 * i));
    case DType::kUInt32:
      return get<uint32_t>(x, 4 * i);
    default:
      return with_bits(element, [&]<typename Bits>() {
        if constexpr (sizeof(Bits) == 8) {
          return 0.0;
        } else {
          return static_cast<double>(get<Bits>(x, sizeof(Bits) * i));
        }
      });
  }
}

void put_bits(DType element, std::byte* x, size_t i, uint64_t bits) {
  with_bits(element, [&]<typename Bits>() {
    const Bits value = static_cast<Bits>(bits);
    std::memcpy(x + i * sizeof(Bits), &value, sizeof(Bits));
  });
}

size_t count_bits(DType element, const std::byte* x, size_t n, uint64_t bits) {
  return with_bits(element, [&]<typename Bits>() {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) count += load<Bits>(x, i) == static_cast<Bits>(bits) ? 1 : 0;
    return count;
  });
}

int64_t last_origin(DType element, int shift) {
  if (!is_floating(element)) return 0;
  // The bits of 0 and -0 alone leave no magnitude behind, and nothing to rotate.
  const auto top = static_cast<int64_t>((layout_of(element).sign - 1) >> shift);
  return std::max<int64_t>(top - 1, 0);
}

int64_t origin_for(DType element, const std::byte* x, size_t n, int shift) {
  if (!is_floating(element)) return 0;
  const FloatLayout layout = layout_of(element);
  uint64_t least = layout.infinity;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t magnitude = bits_at(element, x, i) & (layout.sign - 1);
    if (magnitude != 0 && magnitude < least) least = magnitude;
  }
  // The sample may have missed smaller magnitudes; few are more than two binades below its least.
  const uint64_t room = 2 * layout.least_normal;
  return least <= room
             ? 0
             : std::min(static_cast<int64_t>((least - room) >> shift), last_origin(element, shift));
}

bool is_special(DType element, uint64_t bits) { return is_special(layout_of(element), bits); }
bool is_subnormal(DType element, uint64_t bits) { return is_subnormal(layout_of(element), bits); }

Seen look_at(DType element, const std::byte* x, size_t n) {
  const size_t bytes = size_of(element);
  Seen seen;
  if (bytes == 4) {
    loops().narrow.look(reinterpret_cast<const float*>(x), n, &seen);
  } else if (bytes == 8) {
    loops().wide.look(reinterpret_cast<const double*>(x), n, &seen);
  } else {
    seen = with_bits(element, [&]<typename Bits>() {
      using U = std::make_unsigned_t<Bits>;
      const U first = static_cast<U>(load<Bits>(x, 0));
      U differ = 0, any = 0;
      for (size_t i = 0; i < n; ++i) {
        const U bits = static_cast<U>(load<Bits>(x, i));
        differ = static_cast<U>(differ | (bits ^ first));
        any = static_cast<U>(any | bits);
      }
      return Seen{0, differ, any};
    });
  }
  if (!is_floating(element)) seen.greatest = 0;
  return seen;
}

template <typename Word>
void to_order(DType element, const std::byte* x, size_t n, const Order& order, Word* words) {
  if (is_floating(element)) {
    return with_loops<Word>(element, [&]<typename Bits>(const auto& loops, Bits) {
      loops.to(reinterpret_cast<const Bits*>(x), n, order.shift, order.origin, words);
    });
  }
  with_bits(element, [&]<typename Bits>() {
    if constexpr ((sizeof(Bits) == 8) == (sizeof(Word) == 8)) {
      order_all<Word, Bits>(x, n, order, words);
    }
  });
}

template <typename Word>
bool from_order(DType element, const Word* words, size_t n, const Order& order, std::byte* x) {
  bool all = false;
  if (is_floating(element)) {
    with_loops<Word>(element, [&]<typename Bits>(const auto& loops, Bits) {
      all = loops.from(words, n, order.shift, order.origin, reinterpret_cast<Bits*>(x));
    });
    return all;
  }
  with_bits(element, [&]<typename Bits>() {
    if constexpr ((sizeof(Bits) == 8) == (sizeof(Word) == 8)) {
      all = disorder_all<Word, Bits>(words, n, order, x);
    }
  });
  return all;
}

template void to_order(DType, const std::byte*, size_t, const Order&, int32_t*);
template void to_order(DType, const std::byte*, size_t, const Order&, int64_t*);
template bool from_order(DType, const int32_t*, size_t, const Order&, std::byte*);
template bool from_order(DType, const int64_t*, size_t, const Order&, std::byte*);

}  // namespace cgx::bounded
