// How a block of few values, or of multiples, is written: a map of its own.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/encode/whole.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {

// Blocks of few values, or of multiples: a map of their own, if it promises fewer bits. Such maps lose
// nothing. With a bound, values that its map makes the same are the same: a block of few words is one
// of few values.
template <typename Word>
void Encoder::choose_own() {
  const DType element = maps_->element();
  // The lattice of 16-bit types is a palette already.
  const bool lattice = maps_->bounded() == Map::kLattice;
  if (maps_->version() < 3 || lattice) return;
  const bool lossless = maps_->bounded() == Map::kOrder;
  const auto each_run = [&](const Look& look) { look_at_sample(look); };
  Suggested suggested = suggested_by(element, lossless, each_run);
  needs_values_ = suggested.any() || few_words_;
  const std::byte* const original = looked_.values;
  if (!needs_values_ || original == nullptr) return;
  if (few_words_ && header_.map == Map::kGrid) {
    round_values<Word>();
    const Suggested exact = suggested;
    suggested = suggested_by(element, lossless, each_run);
    suggested.multiples = exact.multiples;
    suggested.rows = exact.rows;
  }
  if (!suggested.any()) {
    looked_.values = x_ = original;
    return;
  }
  again_ = suggested.again;
  again_values_ = looked_.values;
  if (suggested.mostly && look_at_most(suggested.most)) return;
  BlockHeader best_header = header_;
  SymbolForm best_form = symbol_form_;
  std::vector<std::byte> best_own;
  const auto consider = [&](Map map, std::vector<std::byte> own) {
    header_ = BlockHeader{};
    header_.map = map;
    header_.origin = static_cast<int64_t>(own.size());
    size_t specials = 0;
    const Sample sample = sample_words<Word>(false, &specials);
    const SymbolForm form = choose(sample, kWordBits<Word>);
    const double share = static_cast<double>(specials) / static_cast<double>(sample.words.size());
    const double bits = form.bits +
                        share * (kPlaceBits + 8 * static_cast<double>(size_of(element))) +
                        8 * static_cast<double>(own.size()) / static_cast<double>(n_);
    if (bits >= best_form.bits) return false;
    best_header = header_;
    best_form = form;
    best_form.bits = bits;
    best_own = std::move(own);
    return true;
  };
  std::vector<std::byte> own;
  Multiples chosen;
  // Multiples are exact, and of the values as they are.
  const std::byte* const rounded = looked_.values;
  const auto consider_multiples = [&](Multiples multiples) {
    multiples_ = std::move(multiples);
    own.clear();
    multiples_.write(own);
    if (consider(Map::kMultiples, own)) chosen = multiples_;
  };
  looked_.values = x_ = original;
  if (suggested.multiples) consider_multiples(*suggested.multiples);
  if (suggested.rows) {
    if (auto rows = row_multiples(element, looked_.values, n_, geometry_)) {
      consider_multiples(std::move(*rows));
    }
  }
  looked_.values = x_ = rounded;
  if (suggested.palette && palette_.make(element, looked_.values, n_)) {
    own.clear();
    palette_.palette().write(own);
    consider(Map::kPalette, own);
  }
  multiples_ = std::move(chosen);
  header_ = best_header;
  symbol_form_ = best_form;
  own_ = std::move(best_own);
  again_ = again_ && !is_own(header_.map);
  // Only a palette is of the rounded values: all others keep to the bound by themselves.
  if (header_.map != Map::kPalette) looked_.values = x_ = original;
}

// Replaces the values by what their words stand for; values that are special stay.
template <typename Word>
void Encoder::round_values() {
  using Value = ValueOf<Word>;
  const size_t bytes = sizeof(Value);
  rounded_.assign(looked_.values, looked_.values + n_ * bytes);
  places_.clear();
  specials_.clear();
  Word words[kSlice];
  for (size_t first = 0; first < n_; first += kSlice) {
    const size_t n = std::min(kSlice, n_ - first);
    places_.clear();
    specials_.clear();
    map_words<Word>({looked_.values + first * bytes, 0, n, true}, words);
    auto* const to = reinterpret_cast<Value*>(rounded_.data() + first * bytes);
    word_loops<Word>().from_grid(words, n, header_.step, nullptr, kMostWord<Word>, to);
    for (size_t i = 0; 2 * i < places_.size(); ++i) {
      const auto place = get<uint16_t>(places_.data(), 2 * i);
      std::memcpy(to + place, specials_.data() + i * bytes, bytes);
    }
  }
  looked_.values = x_ = rounded_.data();
}

// If nearly all values have these bits, lists the others with their places, and takes kMostly.
bool Encoder::look_at_most(uint64_t value) {
  constexpr size_t kFew = 64;
  own_.clear();
  if (!append_mostly(maps_->element(), looked_.values, n_, value, kFew, own_)) return false;
  header_ = BlockHeader{};
  header_.map = Map::kMostly;
  return true;
}

template void Encoder::choose_own<int32_t>();
template void Encoder::choose_own<int64_t>();

}  // namespace cgx::bounded
