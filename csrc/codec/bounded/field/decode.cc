#include <algorithm>
#include <cmath>

#include "codec/bounded/ans/coder.h"
#include "codec/bounded/bits.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/field/coded.h"
#include "codec/bounded/field/promise.h"
#include "codec/bounded/field/tokens.h"
#include "codec/bounded/field/walk-inl.h"

namespace cgx::bounded::field {

// What precedes the tokens.
template <typename T>
struct FieldDecoder<T>::Head {
  T middle;
  Weights weights[kGroups];
  int scales[kGroups];
};

template <typename T>
typename FieldDecoder<T>::Head FieldDecoder<T>::read_head(std::span<const std::byte>& in, size_t n,
                                                          Decoded<T>& out) {
  const auto kind = take<uint8_t>(in);
  if (kind > kLastKind) {
    throw PayloadError(
        str_of("a field is of the kind ", static_cast<int>(kind), ", allowed: 0 to ", kLastKind));
  }
  out.kind = static_cast<Kind>(kind);
  const uint64_t width = take_number(in), height = take_number(in), start = take_number(in);
  // As geometry_of() makes them: not many more cells than values.
  const bool fits = width >= kLeastWidth && height > 0 && width <= 2 * n && height <= 2 * n &&
                    width * height <= 4 * n && start < width * height;
  if (!fits) {
    throw PayloadError(str_of("a field of ", n, " values has planes of ", height, " rows of ",
                              width, " values, and begins at ", start));
  }
  out.geometry = {static_cast<uint32_t>(width), static_cast<uint32_t>(height),
                  static_cast<uint32_t>(start)};
  if (out.kind == Kind::kGrid) {
    out.step = take<double>(in);
    if (!(out.step > 0 && std::isfinite(out.step))) {
      throw PayloadError(str_of("a field has the step ", out.step, ", allowed: above 0"));
    }
  }
  Head head{};
  head.middle = take<T>(in);
  if (!std::isfinite(head.middle)) {
    throw PayloadError(str_of("the middle of a field is ", head.middle, ", allowed: finite"));
  }
  const bool rows = out.geometry.has_more_rows(n);
  for (int group = 1; rows && group < kGroups; ++group) {
    const auto which = take<uint8_t>(in);
    if (which >> Weights::kCount != 0) {
      throw PayloadError(str_of("a field has the weights ", static_cast<int>(which),
                                ", allowed: below ", 1 << Weights::kCount));
    }
    for (int k = 0; k < Weights::kCount; ++k) {
      if ((which >> k & 1) != 0) head.weights[group].of[k] = take<int8_t>(in);
    }
  }
  for (int group = 0; group < kGroups; group += 2) {
    const auto pair = take<uint8_t>(in);
    head.scales[group] = (pair & 15) + kLeastScale;
    head.scales[group + 1] = (pair >> 4) + kLeastScale;
  }
  return head;
}

// Memory for whole planes, and what is missing of them.
template <typename T>
void FieldDecoder<T>::spread(size_t n) {
  const size_t cells = out_->geometry.planes(n) * plane_;
  const auto start = static_cast<std::ptrdiff_t>(out_->geometry.start);
  const auto& holes = out_->holes.is_hole;
  missing_.clear();
  if (!holes.empty() || cells != n) missing_.assign(cells, 1);
  if (holes.empty() && cells != n) std::fill_n(missing_.begin() + start, n, uint8_t{0});
  if (!holes.empty()) std::copy(holes.begin(), holes.end(), missing_.begin() + start);
  cells_.resize(cells);
  const size_t row = out_->geometry.width + kGroup;
  used_.resize(row);
  tokens_.resize(row);
  gone_.resize(row);
  residuals_.resize(row);
}

template <typename T>
void FieldDecoder<T>::put(const Row<T>& row) {
  const size_t first = first_ + row.at;
  const uint8_t* const missing = gaps_ ? missing_.data() + first : nullptr;
  const ans::TablesOf& tables = tables_[row.group];
  bool escapes = false;
  if (missing == nullptr) {
    tables.map(row.bins, row.n, used_.data());
    reader_->read(used_.data(), row.n, tokens_.data());
  } else {
    // Pointers of its own: bytes that are written might be the members.
    uint8_t *const gone = gone_.data(), *const used = used_.data(), *const tokens = tokens_.data();
    size_t count = 0;
    for (size_t i = 0; i < row.n; ++i) {
      gone[i] = missing[i * row.step];
      used[count] = row.bins[i];
      count += gone[i] ^ 1;
    }
    tables.map(used, count, used);
    reader_->read(used, count, tokens);
    // Tokens to their places, from the last one on; holes have one that nothing follows.
    for (size_t i = row.n; i-- > 0;) {
      count -= gone[i] ^ 1;
      tokens[i] = static_cast<uint8_t>(tokens[count] & (gone[i] - 1));
    }
  }
  if (!loops_.short_residuals(tokens_.data(), row.n, residuals_.data())) {
    escapes = take_long(row, first);
  }
  const Found<T> found{residuals_.data(), row.values, row.size};
  switch (out_->kind) {
    case Kind::kGrid:
      loops_.from_grid(row.predicted, row.n, out_->step, found);
      break;
    case Kind::kExact:
      loops_.from_exact(row.predicted, row.n, found);
      break;
    default:
      loops_.from_words(row.predicted, row.n, found);
  }
  if (missing != nullptr) {
    loops_.put_holes(gone_.data(), row.predicted, row.sizes, row.n, found);
  }
  if (!escapes) return;
  for (size_t i = 0; i < row.n; ++i) {
    if (residuals_[i] != kNoResidual<T> || (missing != nullptr && gone_[i] != 0)) continue;
    row.values[i] = row.predicted[i];
    row.size[i] = 0;
  }
}

// Reads the residuals of a row with long tokens. Those of kExact may have any size, others up to
// kMostResidual. Returns whether the row has escapes.
template <typename T>
bool FieldDecoder<T>::take_long(const Row<T>& row, size_t first) {
  using Residual = ResidualOf<T>;
  const auto& tokens = Tokens<Residual>::known();
  const auto rest = [this](int count) {
    if (sizeof(T) == 4 || count <= 32) return bits_->get(count);
    const uint64_t low = bits_->get(32);
    return low | bits_->get(count - 32) << 32;
  };
  bool escapes = false, beyond = false;
  constexpr auto kMost = static_cast<Residual>(kMostResidual<T>);
  const bool exact = out_->kind == Kind::kExact;
  for (size_t i = 0; i < row.n; ++i) {
    const auto& known = tokens[tokens_[i]];
    residuals_[i] = known.least + known.sign * static_cast<Residual>(rest(known.count));
    escapes = escapes || tokens_[i] >= Tokens<Residual>::kEnd;
    beyond = beyond || residuals_[i] < -kMost || residuals_[i] > kMost;
  }
  if (beyond && !exact) throw PayloadError("a residual of a field is too large");
  if (!escapes) return false;
  for (size_t i = 0; i < row.n; ++i) {
    if (tokens_[i] < Tokens<Residual>::kEnd) continue;
    if (tokens_[i] != kEscape) throw PayloadError("a token of a field stands for no residual");
    residuals_[i] = kNoResidual<T>;
    out_->escapes.push_back(static_cast<uint32_t>(first + i * row.step - out_->geometry.start));
  }
  return true;
}

template <typename T>
Decoded<T> FieldDecoder<T>::decode(std::span<const std::byte> in, DType element, size_t n) {
  Decoded<T> out;
  const Head head = read_head(in, n, out);
  out.holes = Holes::read(out.geometry, element, n, in);
  const uint64_t escapes = take_number(in);
  if (escapes > n - out.holes.count) {
    throw PayloadError(str_of("a field has ", escapes, " values of their own, allowed: up to ",
                              n - out.holes.count));
  }
  out.escaped = take_bytes(in, escapes * size_of(element));
  out_ = &out;
  plane_ = out.geometry.plane();
  spread(n);
  out.numbers = cells_.data() + out.geometry.start;
  if (out.holes.count == n) {
    if (!in.empty()) throw PayloadError("a field of holes goes on behind them");
    return out;
  }
  const auto states = take<uint8_t>(in);
  if (!ans::are_states(states)) {
    throw PayloadError(str_of("a field has ", static_cast<int>(states),
                              " states, allowed: powers of 2 up to ", ans::kMostStates));
  }
  const ans::Model model = ans::Model::read(in);
  if (model.contexts != kBins) {
    throw PayloadError(
        str_of("the model of a field has ", model.contexts, " contexts, allowed: ", kBins));
  }
  for (int group = 0; group < kGroups; ++group) {
    uint8_t table_of[kBins];
    for (int bin = 0; bin < kBins; ++bin) {
      table_of[bin] = model.table_of[static_cast<size_t>(context_of(bin, head.scales[group]))];
    }
    tables_[group] = ans::TablesOf(table_of);
  }
  const uint64_t bytes = take_number(in);
  ans::Reader reader(model, states, take_bytes(in, bytes));
  BitReader bits(in);
  reader_ = &reader;
  bits_ = &bits;
  walk_.begin(out.geometry, head.weights, head.middle, out.kind == Kind::kExact);
  const size_t cells = out.geometry.planes(n) * plane_;
  for (first_ = 0; first_ < cells; first_ += plane_) {
    gaps_ = false;
    if (!missing_.empty()) {
      const auto begin = missing_.begin() + static_cast<std::ptrdiff_t>(first_);
      gaps_ = std::any_of(begin, begin + static_cast<std::ptrdiff_t>(plane_),
                          [](uint8_t gone) { return gone != 0; });
    }
    walk_.plane([this](const Row<T>& row) { put(row); });
    walk_.write_plane(cells_.data() + first_);
  }
  reader.finish();
  if (bits.bytes() != in.size() || !bits.rest_is_zero()) {
    throw PayloadError("the bits behind a field's tokens do not end where the block does");
  }
  if (out.escapes.size() != escapes) {
    throw PayloadError(str_of("a field has ", escapes, " values of their own and ",
                              out.escapes.size(), " places for them"));
  }
  // What is expected at their places may be no number of the field.
  for (const uint32_t place : out.escapes) cells_[out.geometry.start + place] = 0;
  return out;
}

template class FieldDecoder<float>;
template class FieldDecoder<double>;

}  // namespace cgx::bounded::field
