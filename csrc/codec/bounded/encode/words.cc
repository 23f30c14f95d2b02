// What values become: the words of a slice, by the map of the block.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/maps/signed_zero.h"

namespace cgx::bounded {

template <typename Word, typename WordOf>
size_t Encoder::one_by_one(const Slice& slice, Word* words, WordOf&& word_of) {
  size_t special = 0;
  for (size_t i = 0; i < slice.n; ++i) {
    if (word_of(i, &words[i])) {
      before_ = words[i];
      continue;
    }
    words[i] = static_cast<Word>(before_);
    ++special;
    if (!slice.record) continue;
    const size_t bytes = size_of(maps_->element());
    append(places_, static_cast<uint16_t>(slice.first + i));
    specials_.insert(specials_.end(), slice.x + i * bytes, slice.x + (i + 1) * bytes);
    ++header_.specials;
  }
  return special;
}

template <typename Word>
size_t Encoder::on_grid(const Slice& slice, Word* words) {
  const auto& loops = word_loops<Word>();
  const auto* x = reinterpret_cast<const ValueOf<Word>*>(slice.x);
  double curve[kSlice];
  const double* fit = nullptr;
  if (header_.predictor == Predictor::kCurve) {
    for (size_t run = 0; run < slice.n; run += kCurveRun) {
      draw_curve(&nodes_[(slice.first + run) / kCurveRun * kCurveNodes],
                 std::min<size_t>(kCurveRun, slice.n - run), curve + run);
    }
    fit = curve;
  }
  if (!loops.to_grid(x, slice.n, grid_, fit, words)) {
    before_ = words[slice.n - 1];
    return 0;
  }
  return one_by_one(slice, words, [&](size_t i, Word* word) {
    return !loops.to_grid(x + i, 1, grid_, fit == nullptr ? nullptr : fit + i, word);
  });
}

template <typename Word>
size_t Encoder::on_log_grid(const Slice& slice, Word* words) {
  const LogGrid& log_grid = maps_->log_grid();
  return one_by_one(slice, words, [&](size_t i, Word* word) {
    // By bits: a thread may flush subnormal numbers.
    const uint64_t bits = bits_at(maps_->element(), slice.x, i);
    *word = 0;
    if (bits == 0) return true;
    if (is_special(maps_->element(), bits)) return false;
    const double value = std::bit_cast<ValueOf<Word>>(static_cast<Word>(bits));
    const double magnitude = std::fabs(value);
    // Rare, and longer. Exponents of all others are not below the origin.
    const bool tiny = magnitude < (sizeof(Word) == 8 ? 0x1p-900 : 0x1p-126);
    const LogGrid::Place place =
        tiny ? log_grid.place(value, header_.origin) : log_grid.place<false>(value, header_.origin);
    const double back = static_cast<ValueOf<Word>>(place.value);
    *word = static_cast<Word>(place.word);
    // The least word has no room for signed zeros.
    const bool fits = *word == place.word && *word != std::numeric_limits<Word>::min();
    if (tiny) return fits && *word != 0 && is_within(value, back, maps_->bound());
    return fits && std::fabs(value - back) <= maps_->bound() * magnitude;
  });
}

template <typename Word>
size_t Encoder::to_palette(const Slice& slice, Word* words) {
  return one_by_one(slice, words, [&](size_t i, Word* word) {
    const int32_t number = palette_.number_of(bits_at(maps_->element(), slice.x, i));
    *word = number;
    return number >= 0;
  });
}

template <typename Word>
size_t Encoder::to_multiples(const Slice& slice, Word* words) {
  using Value = ValueOf<Word>;
  // Slices of the sample know no places, but where they are.
  const auto first = static_cast<size_t>(slice.x - looked_.values) / sizeof(Value);
  return one_by_one(slice, words, [&](size_t i, Word* word) {
    // What a special value gets must be finite, too, times a unit that may be of another row.
    if (multiples_.width > 0) before_ = 0;
    const Value x = get<Value>(slice.x, i * sizeof(Value));
    const double value = static_cast<double>(x), unit = multiples_.unit_of(first + i);
    const double near = multiples_.quotients ? value * unit : value / unit;
    const double number = std::nearbyint(near);
    if (!(std::fabs(number) < static_cast<double>(kMostWord<Word>))) return false;
    *word = static_cast<Word>(number);
    const Value back = multiples_.value_of<Value>(number, unit);
    return std::memcmp(&back, &x, sizeof x) == 0 && !(number == 0 && std::signbit(x));
  });
}

template <typename Word>
size_t Encoder::map_slice(const Slice& slice, Word* words) {
  switch (header_.map) {
    case Map::kOrder:
      to_order(maps_->element(), slice.x, slice.n, {header_.shift, header_.origin}, words);
      return 0;
    case Map::kGrid:
      return on_grid(slice, words);
    case Map::kLogGrid:
      return on_log_grid(slice, words);
    case Map::kPalette:
      return to_palette(slice, words);
    case Map::kMultiples:
      return to_multiples(slice, words);
    default:
      if constexpr (sizeof(Word) == 4) {
        const auto* bits = reinterpret_cast<const uint16_t*>(slice.x);
        if (maps_->lattice().to_words(bits, slice.n, words)) {
          return one_by_one(slice, words, [&](size_t i, Word* word) {
            return !maps_->lattice().to_words(bits + i, 1, word);
          });
        }
        before_ = words[slice.n - 1];
      }
      return 0;
  }
}

template <typename Word>
size_t Encoder::map_words(const Slice& slice, Word* words) {
  if (!header_.signed_zero) return map_slice(slice, words);
  return with_bits(maps_->element(), [&]<typename Signed>() {
    using Bits = std::make_unsigned_t<Signed>;
    const auto* bits = reinterpret_cast<const Bits*>(slice.x);
    Bits plain[kSlice];
    without_signed_zeros(bits, slice.n, plain);
    Slice unsigned_zeros = slice;
    unsigned_zeros.x = reinterpret_cast<const std::byte*>(plain);
    const size_t specials = map_slice(unsigned_zeros, words);
    add_signed_zeros(bits, slice.n, words);
    return specials;
  });
}

template size_t Encoder::map_words(const Slice&, int32_t*);
template size_t Encoder::map_words(const Slice&, int64_t*);

}  // namespace cgx::bounded
