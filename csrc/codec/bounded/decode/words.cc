// What words stand for.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// The first place of [from, to) for which `holds` is true, as it is for all after it; `to` if it is
// true for no place.
template <typename Holds>
int64_t first_that(int64_t from, int64_t to, const Holds& holds) {
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    if (holds(middle)) {
      to = middle;
    } else {
      from = middle + 1;
    }
  }
  return from;
}

// False: one of the words stands for no value. kSubnormal: as LogTable.
template <typename Word, bool kSubnormal>
bool from_log_grid(const LogGrid& log_grid, int64_t origin, int64_t least, int64_t greatest,
                   const Word* words, size_t n, std::byte* x) {
  bool vanishes = false;
  if (least > 1) {
    for (size_t i = 0; i < n; ++i) {
      vanishes = vanishes || (words[i] != 0 && words[i] > -least && words[i] < least);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (words[i] < -greatest || words[i] > greatest) return false;
    const auto value = static_cast<ValueOf<Word>>(log_grid.value<kSubnormal>(words[i], origin));
    std::memcpy(x + i * sizeof value, &value, sizeof value);
  }
  return !vanishes;
}

}  // namespace

bool Decoder::has_far_words() const {
  return maps_->version() == 1 && maps_->element() == DType::kFloat64;
}

template <typename Word>
Decoder::Limits Decoder::limits_of(const BlockHeader& header) const {
  switch (header.map) {
    case Map::kGrid:
      return {1, header.predictor == Predictor::kCurve ? kMostWord<Word>
                                                       : most_word<Word>(header.step)};
    case Map::kLattice:
      return {1, maps_->lattice().most()};
    case Map::kLogGrid: {
      // A narrow type has no numbers for some of them, or only 0.
      const LogGrid& log_grid = maps_->log_grid();
      const auto value = [&](int64_t word) {
        return static_cast<ValueOf<Word>>(log_grid.value(word, header.origin));
      };
      const int64_t end = log_grid.most(header.origin) + 1;
      return {first_that(1, end, [&](int64_t word) { return value(word) > 0; }),
              first_that(1, end, [&](int64_t word) { return std::isinf(value(word)); }) - 1};
    }
    default:
      return {1, kMostWord<Word>};
  }
}

template <typename Word>
void Decoder::refuse_word(const BlockHeader& header, const Word* words, size_t n, size_t first,
                          const Limits& limits, Own& own, std::byte* x) const {
  for (size_t i = 0; i < n; ++i) {
    own.first = first + i;
    const bool fits = header.map == Map::kGrid
                          ? words[i] >= -limits.greatest && words[i] <= limits.greatest
                          : from_words(header, words + i, nullptr, 1, limits, own, x);
    if (fits) continue;
    throw PayloadError(str_of(
        "value ", first + i, " has the word ", words[i], ", which stands for no number",
        header.map == Map::kOrder || is_own(header.map)
            ? std::string(" of its type")
            : str_of(", allowed: 0, and magnitudes from ", limits.least, " to ", limits.greatest)));
  }
}

template <typename Word>
bool Decoder::from_words(const BlockHeader& header, const Word* words, const int32_t* nodes,
                         size_t n, const Limits& limits, const Own& own, std::byte* x) const {
  using Value = ValueOf<Word>;
  switch (header.map) {
    case Map::kOrder:
      return from_order(maps_->element(), words, n, {header.shift, header.origin}, x);
    case Map::kGrid: {
      double curve[kSlice];
      if (nodes != nullptr) {
        for (size_t run = 0; run < n; run += kCurveRun) {
          draw_curve(nodes + run / kCurveRun * kCurveNodes, std::min<size_t>(kCurveRun, n - run),
                     curve + run);
        }
      }
      const bool beyond = word_loops<Word>().from_grid(
          words, n, header.step, nodes == nullptr ? nullptr : curve,
          static_cast<Word>(limits.greatest), reinterpret_cast<Value*>(x));
      return !beyond || nodes != nullptr || has_far_words();
    }
    case Map::kLattice:
      if constexpr (sizeof(Word) == 4) {
        Word least = 0, greatest = 0;
        for (size_t i = 0; i < n; ++i) {
          least = words[i] < least ? words[i] : least;
          greatest = words[i] > greatest ? words[i] : greatest;
        }
        if (least < -limits.greatest || greatest > limits.greatest) return false;
        maps_->lattice().from_words(words, n, reinterpret_cast<uint16_t*>(x));
      }
      return true;
    case Map::kPalette:
    case Map::kMultiples:
      return from_own(header, own, words, n, x);
    default: {
      const auto decode = header.origin < LogTable::kLeastNormal ? from_log_grid<Word, true>
                                                                 : from_log_grid<Word, false>;
      return decode(maps_->log_grid(), header.origin, limits.least, limits.greatest, words, n, x);
    }
  }
}

Decoder::Own Decoder::own_of(const BlockHeader& header, size_t n,
                             std::span<const std::byte> in) const {
  Own own;
  if (header.map == Map::kPalette) own.palette = Palette::read(maps_->element(), in);
  if (header.map == Map::kMultiples) own.multiples = Multiples::read(n, in);
  return own;
}

// Values of words [own.first, own.first + n). False: one of them stands for none.
template <typename Word>
bool Decoder::from_own(const BlockHeader& header, const Own& own, const Word* words, size_t n,
                       std::byte* x) const {
  const DType element = maps_->element();
  if (header.map == Map::kPalette) {
    const auto& places = own.palette.places;
    for (size_t i = 0; i < n; ++i) {
      if (words[i] < 0 || static_cast<size_t>(words[i]) >= places.size()) return false;
      put_bits(element, x, i, bits_at_place(element, places[static_cast<size_t>(words[i])]));
    }
    return true;
  }
  using Value = ValueOf<Word>;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    const double unit = own.multiples.unit_of(own.first + i);
    const Value value = own.multiples.value_of<Value>(static_cast<double>(words[i]), unit);
    finite = finite && std::isfinite(value);
    std::memcpy(x + i * sizeof value, &value, sizeof value);
  }
  return finite;
}

template Decoder::Limits Decoder::limits_of<int32_t>(const BlockHeader&) const;
template Decoder::Limits Decoder::limits_of<int64_t>(const BlockHeader&) const;
template void Decoder::refuse_word(const BlockHeader&, const int32_t*, size_t, size_t,
                                   const Limits&, Own&, std::byte*) const;
template void Decoder::refuse_word(const BlockHeader&, const int64_t*, size_t, size_t,
                                   const Limits&, Own&, std::byte*) const;
template bool Decoder::from_words(const BlockHeader&, const int32_t*, const int32_t*, size_t,
                                  const Limits&, const Own&, std::byte*) const;
template bool Decoder::from_words(const BlockHeader&, const int64_t*, const int32_t*, size_t,
                                  const Limits&, const Own&, std::byte*) const;

}  // namespace cgx::bounded
