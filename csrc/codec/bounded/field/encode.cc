#include <algorithm>
#include <cmath>

#include "codec/bounded/ans/coder.h"
#include "codec/bounded/bits.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/field/coded.h"
#include "codec/bounded/field/fit.h"
#include "codec/bounded/field/tokens.h"
#include "codec/bounded/field/walk-inl.h"
#include "codec/bounded/logarithm.h"

namespace cgx::bounded::field {
namespace {

// In missing_: a place without a value, and one whose value is stored as it is.
constexpr uint8_t kHole = 1, kOwnBits = 2;

void write_weights(const Weights (&weights)[kGroups], std::vector<std::byte>& out) {
  for (int group = 1; group < kGroups; ++group) {
    int which = 0;
    for (int k = 0; k < Weights::kCount; ++k) which |= weights[group].of[k] != 0 ? 1 << k : 0;
    out.push_back(static_cast<std::byte>(which));
    for (const int8_t weight : weights[group].of) {
      if (weight != 0) out.push_back(static_cast<std::byte>(weight));
    }
  }
}

}  // namespace

template <typename T>
void FieldEncoder<T>::begin(const Numbers<T>& from) {
  from_ = &from;
  plane_ = from.geometry.plane();
  planes_ = from.geometry.planes(from.n);
  const size_t row = from.geometry.width + kGroup;
  x_.resize(row);
  residuals_.resize(row);
  lengths_.resize(row);
  gone_.resize(row);
  row_tokens_.resize(row);
  tokens_.resize(from.n + row);
  bins_.resize(from.n + row);
  count_ = 0;
  rows_.clear();
  groups_.clear();
  bits_.clear();
  escaped_.clear();
  std::fill_n(residual_sum_, kGroups, 0);
  std::fill_n(size_sum_, kGroups, 0);
  spread();
}

// Numbers and what is missing, in whole planes.
template <typename T>
void FieldEncoder<T>::spread() {
  const Numbers<T>& from = *from_;
  const size_t start = from.geometry.start, cells = planes_ * plane_;
  const auto begin = static_cast<std::ptrdiff_t>(start);
  numbers_.resize(cells);
  std::fill(numbers_.begin(), numbers_.begin() + begin, T{0});
  std::copy_n(from.numbers, from.n, numbers_.begin() + begin);
  std::fill(numbers_.begin() + begin + static_cast<std::ptrdiff_t>(from.n), numbers_.end(), T{0});
  const auto& holes = from.holes->is_hole;
  missing_.clear();
  if (holes.empty() && from.escapes == nullptr && cells == from.n) return;
  missing_.assign(cells, kHole);
  if (holes.empty()) {
    std::fill_n(missing_.begin() + begin, from.n, uint8_t{0});
  } else {
    static_assert(kHole == 1);  // as is_hole
    std::copy(holes.begin(), holes.end(), missing_.begin() + begin);
  }
  if (from.escapes == nullptr) return;
  for (size_t i = 0; i < from.n; ++i) {
    if (missing_[start + i] == 0 && from.escapes[i] != 0) missing_[start + i] = kOwnBits;
  }
}

template <typename T>
void FieldEncoder<T>::encode(const Numbers<T>& from, std::vector<std::byte>& out) {
  begin(from);
  Weights weights[kGroups];
  const Source<T> source{from.geometry, planes_, numbers_.data(),
                         missing_.empty() ? nullptr : missing_.data()};
  fit_weights(source, from.kind == Kind::kWords ? 1 : from.step, weights);
  walk_.begin(from.geometry, weights, from.middle, from.kind == Kind::kExact);
  for (first_ = 0; first_ < planes_ * plane_; first_ += plane_) {
    gaps_ = false;
    if (!missing_.empty()) {
      const auto begin = missing_.begin() + static_cast<std::ptrdiff_t>(first_);
      gaps_ = std::any_of(begin, begin + static_cast<std::ptrdiff_t>(plane_),
                          [](uint8_t gone) { return gone != 0; });
    }
    walk_.plane([this](const Row<T>& row) { take(row); });
  }
  write(weights, out);
}

template <typename T>
void FieldEncoder<T>::take(const Row<T>& row) {
  const T* const from = numbers_.data() + first_ + row.at;
  for (size_t i = 0; i < row.n; ++i) x_[i] = from[i * row.step];
  const Found<T> found{residuals_.data(), row.values, row.size};
  switch (from_->kind) {
    case Kind::kGrid:
      loops_.to_grid(x_.data(), row.predicted, row.n, from_->step, from_->bound, found);
      break;
    case Kind::kExact:
      loops_.to_exact(x_.data(), row.predicted, row.n, found);
      break;
    default:
      loops_.to_words(x_.data(), row.predicted, row.n, found);
  }
  const size_t before = count_;
  const uint8_t* const missing = gaps_ ? missing_.data() + first_ + row.at : nullptr;
  uint8_t* const tokens = tokens_.data() + count_;
  if (missing == nullptr && loops_.short_tokens(residuals_.data(), row.n, tokens)) {
    std::copy_n(row.bins, row.n, bins_.data() + count_);
    count_ += row.n;
  } else if (missing == nullptr &&
             loops_.tokens(residuals_.data(), row.n, tokens, lengths_.data())) {
    std::copy_n(row.bins, row.n, bins_.data() + count_);
    count_ += row.n;
    for (size_t i = 0; i < row.n; ++i) put_rest(residuals_[i], lengths_[i]);
  } else if (missing == nullptr || !take_known(row, missing)) {
    take_each(row, missing);
  }
  rows_.push_back(static_cast<uint32_t>(count_ - before));
  groups_.push_back(static_cast<uint8_t>(row.group));
  residual_sum_[row.group] += loops_.sum(row.size, row.n);
  size_sum_[row.group] += loops_.sum(row.sizes, row.n);
}

// The lowest bits of a magnitude.
template <typename T>
void FieldEncoder<T>::put_rest(ResidualOf<T> residual, int count) {
  using U = std::make_unsigned_t<ResidualOf<T>>;
  const U magnitude = residual < 0 ? U{0} - static_cast<U>(residual) : static_cast<U>(residual);
  const uint64_t rest = magnitude & ((uint64_t{1} << count) - 1);
  if (sizeof(T) == 4 || count <= 32) return bits_.put(rest, count);
  bits_.put(rest & 0xffffffff, 32);
  bits_.put(rest >> 32, count - 32);
}

// A row of a plane with holes, if all of its residuals have tokens and no value is stored as it is; else false.
template <typename T>
bool FieldEncoder<T>::take_known(const Row<T>& row, const uint8_t* missing) {
  // Pointers of its own: bytes that are written might be the members.
  uint8_t* const gone = gone_.data();
  ResidualOf<T>* const residuals = residuals_.data();
  const size_t n = row.n, step = row.step;
  uint8_t any = 0;
  for (size_t i = 0; i < n; ++i) {
    gone[i] = missing[i * step];
    any |= gone[i];
  }
  if ((any & kOwnBits) != 0) return false;
  // What holes have got instead of a number says nothing.
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) residuals[i] = gone[i] != 0 ? 0 : residuals[i];
  const uint8_t *const tokens = row_tokens_.data(), *const lengths = lengths_.data();
  if (!loops_.tokens(residuals, n, row_tokens_.data(), lengths_.data())) return false;
  uint8_t *const to_tokens = tokens_.data() + count_, *const to_bins = bins_.data() + count_;
  size_t count = 0;
  uint8_t longest = 0;
  for (size_t i = 0; i < n; ++i) {
    to_tokens[count] = tokens[i];
    to_bins[count] = row.bins[i];
    count += gone[i] ^ kHole;
    longest |= lengths[i];
  }
  count_ += count;
  for (size_t i = 0; longest != 0 && i < n; ++i) put_rest(residuals[i], lengths[i]);
  loops_.put_holes(gone, row.predicted, row.sizes, n, {residuals, row.values, row.size});
  return true;
}

// A row of a plane where places are missing, or with residuals that only Tokens::of() knows.
template <typename T>
void FieldEncoder<T>::take_each(const Row<T>& row, const uint8_t* missing) {
  const bool known = loops_.tokens(residuals_.data(), row.n, row_tokens_.data(), lengths_.data());
  for (size_t i = 0; i < row.n; ++i) {
    const uint8_t gone = missing == nullptr ? uint8_t{0} : missing[i * row.step];
    if (gone == kHole) {
      // As if it were what is expected, in a neighbourhood as it is.
      row.values[i] = row.predicted[i];
      row.size[i] = row.sizes[i] * kOneOf;
      continue;
    }
    uint8_t token = row_tokens_[i];
    int length = lengths_[i];
    if (!known || gone != 0) {
      const auto found = Tokens<ResidualOf<T>>::of(residuals_[i]);
      token = gone != 0 ? kEscape : found.token;
      length = gone != 0 ? 0 : found.count;
      if (token == kEscape) {
        row.values[i] = row.predicted[i];
        row.size[i] = 0;
        const size_t place = first_ + row.at + i * row.step - from_->geometry.start;
        escaped_.push_back(static_cast<uint32_t>(place));
      }
    }
    tokens_[count_] = token;
    bins_[count_] = row.bins[i];
    ++count_;
    if (length > 0) put_rest(residuals_[i], length);
  }
}

template <typename T>
void FieldEncoder<T>::write(const Weights (&weights)[kGroups], std::vector<std::byte>& out) {
  const Numbers<T>& from = *from_;
  out.push_back(static_cast<std::byte>(from.kind));
  append_number(out, from.geometry.width);
  append_number(out, from.geometry.height);
  append_number(out, from.geometry.start);
  if (from.kind == Kind::kGrid) append(out, from.step);
  append(out, from.middle);
  if (from.geometry.has_more_rows(from.n)) write_weights(weights, out);
  int scales[kGroups];
  write_scales(scales, out);
  from.holes->write(from.geometry, from.element, from.n, out);
  append_number(out, escaped_.size());
  const size_t bytes = size_of(from.element);
  for (const uint32_t place : escaped_) {
    out.insert(out.end(), from.values + place * bytes, from.values + (place + 1) * bytes);
  }
  if (count_ > 0) write_tokens(scales, out);
}

template <typename T>
void FieldEncoder<T>::write_scales(int (&scales)[kGroups], std::vector<std::byte>& out) const {
  const double per_octave = from_->kind == Kind::kExact && sizeof(T) == 8 ? 1 : 2;
  for (int group = 0; group < kGroups; ++group) {
    const double residuals = residual_sum_[group], sizes = size_sum_[group];
    const bool known = residuals > 0 && sizes > 0 && std::isfinite(residuals + sizes);
    const double scale = known ? per_octave * log2_of(residuals / (sizes * kOneOf)) : 0;
    scales[group] =
        static_cast<int>(std::clamp<double>(std::nearbyint(scale), kLeastScale, kMostScale));
  }
  for (int group = 0; group < kGroups; group += 2) {
    const int pair = (scales[group] - kLeastScale) | (scales[group + 1] - kLeastScale) << 4;
    out.push_back(static_cast<std::byte>(pair));
  }
}

namespace {

// Bins become contexts, as context_of() says. Unsigned bytes, of which all compilers make vectors.
void to_contexts(uint8_t* bins, size_t n, int scale) {
  constexpr auto kAbove = static_cast<uint8_t>(-kLeastScale);
  const auto add = static_cast<uint8_t>(scale + kAbove);
  for (size_t i = 0; i < n; ++i) {
    auto context = static_cast<uint8_t>(bins[i] + add);
    context = std::max<uint8_t>(context, kAbove + 1);
    context = static_cast<uint8_t>(std::min<uint8_t>(context, kAbove + kBins - 1) - kAbove);
    bins[i] = bins[i] == 0 ? uint8_t{0} : context;
  }
}

}  // namespace

template <typename T>
void FieldEncoder<T>::write_tokens(const int (&scales)[kGroups], std::vector<std::byte>& out) {
  std::vector<ans::Counts> counts(kBins);
  for (auto& one : counts) one.fill(0);
  uint8_t* at = bins_.data();
  for (size_t row = 0; row < rows_.size(); at += rows_[row++]) {
    to_contexts(at, rows_[row], scales[groups_[row]]);
  }
  // Neighbours are often the same: each second one is counted elsewhere, so that it need not wait.
  std::vector<ans::Counts> others = counts;
  size_t i = 0;
  for (; i + 2 <= count_; i += 2) {
    ++counts[bins_[i]][tokens_[i]];
    ++others[bins_[i + 1]][tokens_[i + 1]];
  }
  if (i < count_) ++counts[bins_[i]][tokens_[i]];
  for (size_t context = 0; context < counts.size(); ++context) {
    for (size_t token = 0; token < ans::kSymbols; ++token) {
      counts[context][token] += others[context][token];
    }
  }
  const ans::Fitted fitted = ans::fit(counts);
  ans::TablesOf(fitted.model.table_of).map(bins_.data(), count_, bins_.data());
  const size_t states = ans::states_for(fitted.bits / 8, from_->geometry.width / 2);
  out.push_back(static_cast<std::byte>(states));
  fitted.model.write(out);
  std::vector<std::byte> coded;
  ans::encode(tokens_.data(), bins_.data(), rows_, fitted.model, states, coded);
  append_number(out, coded.size());
  out.insert(out.end(), coded.begin(), coded.end());
  bits_.finish(out);
}

template class FieldEncoder<float>;
template class FieldEncoder<double>;

}  // namespace cgx::bounded::field
