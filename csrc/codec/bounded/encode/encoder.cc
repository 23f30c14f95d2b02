#include "codec/bounded/encode/encoder.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/float_mode.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/field/coded.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/quads.h"

namespace cgx::bounded {
namespace {

// Bits of entropy of a symbol below which four of them are packed into a byte.
constexpr double kLittle = 2.25;
// Windowed symbols are read more slowly than others: they must be shorter than their entropy by that.
constexpr double kWorthwhile = 0.97;
// What they must save, too, of all that is not symbols.
constexpr double kOfAll = 0.015;
// Entropies below which they may also be as long, and what their tables take then, in bytes.
constexpr double kFew = 3.5;
constexpr double kTables = 256;

}  // namespace

Encoder::Encoder(std::shared_ptr<const Maps> maps) : maps_(std::move(maps)) {}
Encoder::~Encoder() = default;

void Encoder::use(const SymbolForm& form) {
  header_.predictor = form.predictor;
  header_.low = form.low;
  header_.width = form.width;
  header_.base = form.base;
}

// Whether split() gets the words of the grid as they are.
bool Encoder::words_are_residuals() const {
  const bool none = header_.predictor == Predictor::kNone || header_.predictor == Predictor::kMean;
  return header_.map == Map::kGrid && none && !header_.signed_zero;
}

template <typename Word>
void Encoder::write_words() {
  const DType element = maps_->element();
  use(symbol_form_);
  header_.outliers = header_.specials = 0;
  outliers_.clear();
  places_.clear();
  specials_.clear();
  header_.quads = false;
  header_.center = 0;
  header_.listed = 0;
  const BlockSizes sizes(header_, element, n_);
  // What the block before has left is overwritten: to clear it first would zero all bytes.
  content_.resize(sizes.symbols + sizes.coded_low);
  low_.resize(sizes.low);
  auto* symbols = reinterpret_cast<uint8_t*>(content_.data());
  auto* bytes =
      header_.low == LowBits::kCoded ? symbols + n_ : reinterpret_cast<uint8_t*>(low_.data());
  auto* bits = reinterpret_cast<uint8_t*>(low_.data()) + sizes.low_bytes * n_;
  const Low<uint8_t> lows{header_.width, bytes, n_, bits, sizes.bit_stride};
  const auto& loops = word_loops<Word>();
  const Word base = static_cast<Word>(header_.base);
  Word words[kSlice], steps[kSlice], bends[kSlice];
  Word last = 0, last_step = 0;
  before_ = 0;
  const auto* values = reinterpret_cast<const ValueOf<Word>*>(x_);
  const bool at_once = words_are_residuals();
  bool known = true;  // to_symbols() does not set before_
  for (size_t first = 0; first < n_; first += kSlice) {
    const size_t n = std::min(kSlice, n_ - first);
    const Low<uint8_t> low = lows.after(first);
    if (at_once && !loops.to_symbols(values + first, n, grid_, base, low, symbols + first)) {
      known = false;
      continue;
    }
    if (!known) {
      Word word;
      loops.to_grid(values + first - 1, 1, grid_, nullptr, &word);
      before_ = word;
      known = true;
    }
    map_words<Word>({x_ + first * size_of(element), first, n, true}, words);
    const Word* residuals = words;
    if (header_.predictor == Predictor::kPrevious || header_.predictor == Predictor::kLine) {
      loops.difference(words, n, last, steps);
      last = words[n - 1];
      residuals = steps;
      if (header_.predictor == Predictor::kLine) {
        loops.difference(steps, n, last_step, bends);
        last_step = steps[n - 1];
        residuals = bends;
      }
    }
    if (loops.split(residuals, n, base, low, symbols + first)) {
      for (size_t i = 0; i < n; ++i) {
        if (symbols[first + i] != kOutlier) continue;
        append(outliers_, residuals[i]);
        ++header_.outliers;
      }
    }
  }
}

// Packs the symbols at the beginning of content_.
void Encoder::use_quads() {
  const auto* symbols = reinterpret_cast<const uint8_t*>(content_.data());
  const uint8_t center = center_of(symbols, n_);
  std::vector<uint8_t> packed(quad_bytes(n_));
  listed_.clear();
  pack_quads(symbols, n_, center, packed.data(), listed_);
  if (listed_.size() > UINT16_MAX) return;
  packed.insert(packed.end(), listed_.begin(), listed_.end());
  const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
  content_.erase(content_.begin(), content_.begin() + static_cast<std::ptrdiff_t>(n_));
  content_.insert(content_.begin(), bytes, bytes + packed.size());
  header_.quads = true;
  header_.center = center;
  header_.listed = static_cast<uint16_t>(listed_.size());
}

template <typename Word>
void Encoder::encode_words() {
  choose_words<Word>();
  if (header_.map == Map::kConstant) return set_constant();
  if (header_.map == Map::kMostly) {
    content_.clear();
    low_.clear();
    return;
  }
  if (look_at_field<Word>()) {
    header_.map = Map::kField;
    content_.clear();
    low_.clear();
    return;
  }
  if (symbol_form_.predictor == Predictor::kCurve) fit_curves<Word>();
  write_words<Word>();
  if (all_alike<Word>()) return set_constant();
  if (sample_failed(header_, n_)) {
    // The sample was wrong: choose by all values, then. A map with a bound that fails too often gives way.
    if (header_.specials > most_listed(n_)) use_order();
    size_t specials;
    header_.predictor = Predictor::kNone;  // no curve
    symbol_form_ = choose(sample_words<Word>(true, &specials), kWordBits<Word>);
    write_words<Word>();
  }
  complete();
}

// Whether all words are the same; then the block is one value, which is the decoded one.
template <typename Word>
bool Encoder::all_alike() {
  const bool differences =
      header_.predictor != Predictor::kNone && header_.predictor != Predictor::kMean;
  if (differences || header_.width > 0 || header_.outliers + header_.specials > 0 ||
      header_.signed_zero || header_.map == Map::kOrder || is_own(header_.map)) {
    return false;
  }
  const auto* symbols = reinterpret_cast<const uint8_t*>(content_.data());
  if (!std::all_of(symbols, symbols + n_, [&](uint8_t s) { return s == symbols[0]; })) return false;
  const Word word = static_cast<Word>(static_cast<Word>(header_.base) + symbols[0]);
  if (header_.map == Map::kGrid) {
    word_loops<Word>().from_grid(&word, 1, header_.step, nullptr, kMostWord<Word>,
                                 reinterpret_cast<ValueOf<Word>*>(alike_));
  } else if (header_.map == Map::kLogGrid) {
    const auto value = static_cast<ValueOf<Word>>(maps_->log_grid().value(word, header_.origin));
    std::memcpy(alike_, &value, sizeof value);
  } else if constexpr (sizeof(Word) == 4) {
    maps_->lattice().from_words(&word, 1, reinterpret_cast<uint16_t*>(alike_));
  }
  x_ = alike_;
  return true;
}

// What follows the symbols and coded low bits.
void Encoder::complete() {
  look_at_windows();
  if (symbol_form_.entropy < kLittle) use_quads();
  rest_at_ = content_.size();
  if (header_.predictor == Predictor::kCurve) {
    const size_t at = content_.size();
    content_.resize(at + curve_bytes(n_));
    write_nodes(nodes_.data(), n_, content_.data() + at);
  }
  for (const auto* list : {&outliers_, &places_, &specials_}) {
    content_.insert(content_.end(), list->begin(), list->end());
  }
  if (is_own(header_.map)) content_.insert(content_.end(), own_.begin(), own_.end());
}

void Encoder::look_at_windows() {
  windowed_ = 0;
  const bool looks = symbol_form_.in_heaps || is_own(header_.map);
  if (maps_->version() < 3 || !looks || header_.low == LowBits::kCoded) return;
  const auto* symbols = reinterpret_cast<const uint8_t*>(content_.data());
  center_ = center_of(symbols, n_);
  const size_t behind = BlockSizes(header_, maps_->element(), n_).rest;
  // Where symbols are few and most are alike, other coders lose what windows do not.
  const bool few = symbol_form_.entropy < kFew || is_own(header_.map);
  const double plain = symbol_form_.entropy / 8 * static_cast<double>(n_);
  const double share =
      few ? 1 : kWorthwhile - kOfAll * static_cast<double>(behind + low_.size()) / plain;
  const double more = few ? kTables : 0;
  if (!windows_.look(symbols, n_, center_, share, more)) return;
  if (windows_.bytes() < share * windows_.bytes_of_one_table() + more) {
    windowed_ = static_cast<size_t>(windows_.bytes()) + behind;
  }
}

void Encoder::use_windows() {
  if (windowed_ == 0) throw ConfigError("the symbols of the block are not to be windowed");
  windowed_ = 0;
  std::vector<std::byte> coded;
  windows_.write(coded);
  coded.insert(coded.end(), content_.begin() + static_cast<std::ptrdiff_t>(rest_at_),
               content_.end());
  content_ = std::move(coded);
  header_.quads = false;
  header_.listed = 0;
  header_.windowed = true;
  header_.center = center_;
}

void Encoder::begin(const Looked& looked, size_t n) {
  looked_ = looked;
  x_ = again_values_ = looked.values;
  n_ = n;
  header_ = BlockHeader{};
  symbol_form_ = SymbolForm{};
  windowed_ = 0;
  field_.clear();
  again_ = few_words_ = needs_values_ = false;
}

void Encoder::encode(const std::byte* x, size_t n) {
  const FloatMode mode;
  begin({.values = x}, n);
  with_word(maps_->element(), [&]<typename Word>() { encode_words<Word>(); });
}

Form Encoder::choose_form(const Looked& looked, size_t n) {
  const FloatMode mode;
  begin(looked, n);
  with_word(maps_->element(), [&]<typename Word>() { choose_words<Word>(); });
  use(symbol_form_);
  return {header_, symbol_form_, header_.map == Map::kGrid ? grid_.inverse : 0, needs_values_};
}

void Encoder::adopt(const Form& form, const Made& made, size_t n) {
  begin({}, n);
  header_ = form.header;
  symbol_form_ = form.symbol_form;
  const DType element = maps_->element();
  const BlockSizes sizes(header_, element, n);
  content_.resize(n + sizes.coded_low);
  low_.resize(sizes.low);
  std::byte* at = std::copy_n(made.symbols, n, content_.data());
  if (header_.low == LowBits::kPlanes) at = low_.data();
  for (size_t plane = 0; plane < static_cast<size_t>(header_.width) / 8; ++plane) {
    at = std::copy_n(made.low_bytes + plane * made.stride, n, at);
  }
  std::copy_n(made.low_bits, sizes.low_bits * sizes.bit_stride, at);
  outliers_.assign(made.outliers, made.outliers + sizes.outliers);
  places_.assign(made.places, made.places + header_.specials * size_t{2});
  specials_.assign(made.specials, made.specials + header_.specials * size_of(element));
  nodes_.resize(sizes.nodes / 4);
  if (sizes.nodes > 0) std::memcpy(nodes_.data(), made.nodes, sizes.nodes);
  if (with_word(element, [&]<typename Word>() { return all_alike<Word>(); })) return set_constant();
  complete();
}

void Encoder::adopt_constant(const std::byte* value, size_t n) {
  begin({}, n);
  set_constant();
  x_ = value;
}

void Encoder::set_constant() {
  header_.map = Map::kConstant;
  content_.clear();
  low_.clear();
}

std::span<const std::byte> Encoder::coded_of(std::span<const std::byte> frame) const {
  return !frame.empty() && frame.size() < content_.size() ? frame : content();
}

bool Encoder::is_raw(size_t frame_bytes) const {
  if (header_.map == Map::kConstant || header_.map == Map::kMostly) return false;
  const size_t coded = frame_bytes > 0 ? std::min(frame_bytes, content_.size()) : content_.size();
  const size_t raw = n_ * size_of(maps_->element());
  const bool longer = header_.map == Map::kField || BlockHeader::kBytes + coded + low_.size() > raw;
  return longer && (field_.empty() || field_.size() > raw);
}

bool Encoder::is_field(size_t frame_bytes) const {
  if (field_.empty() || header_.map == Map::kConstant || header_.map == Map::kMostly ||
      is_raw(frame_bytes)) {
    return false;
  }
  const size_t coded = frame_bytes > 0 ? std::min(frame_bytes, content_.size()) : content_.size();
  return header_.map == Map::kField ||
         field_.size() + 1 < BlockHeader::kBytes + coded + low_.size();
}

std::span<const std::byte> Encoder::finish(std::span<const std::byte> frame) {
  const size_t value = size_of(maps_->element());
  const std::span<const std::byte> coded = coded_of(frame);
  header_.compressed = coded.data() == frame.data() && !frame.empty();
  header_.coded = static_cast<uint32_t>(coded.size());
  std::byte header[BlockHeader::kBytes];
  std::span<const std::byte> head(header, 1), body, low;
  if (header_.map == Map::kConstant) {
    if (bits_at(maps_->element(), x_, 0) == 0) return {};
    body = {x_, value};
  } else if (header_.map == Map::kMostly) {
    body = own_;
  } else if (is_field(frame.size())) {
    header_.map = Map::kField;
    body = field_;
  } else if (!is_raw(frame.size())) {
    head = header;
    body = coded;
    low = low_;
  } else {
    header_.map = Map::kRaw;
    body = {x_, n_ * value};
  }
  header_.write(header);
  return close(head, body, low);
}

std::span<const std::byte> Encoder::close(std::span<const std::byte> head,
                                          std::span<const std::byte> body,
                                          std::span<const std::byte> low) {
  const size_t bytes = head.size() + body.size() + low.size() + kCrcBytes;
  if (block_.size() < bytes) block_.resize(bytes);
  std::byte* at = block_.data();
  for (const auto& part : {head, body, low}) at = std::copy(part.begin(), part.end(), at);
  const uint32_t crc = crc32c(block_.data(), bytes - kCrcBytes);
  std::memcpy(at, &crc, kCrcBytes);
  return {block_.data(), bytes};
}

size_t Encoder::bytes_with(size_t frame_bytes) const {
  if (header_.map == Map::kConstant) return 1 + size_of(maps_->element()) + kCrcBytes;
  if (header_.map == Map::kMostly) return 1 + own_.size() + kCrcBytes;
  if (is_raw(frame_bytes)) return most_bytes(maps_->element(), n_);
  if (is_field(frame_bytes)) return 1 + field_.size() + kCrcBytes;
  const size_t coded = frame_bytes > 0 ? std::min(frame_bytes, content_.size()) : content_.size();
  return BlockHeader::kBytes + coded + low_.size() + kCrcBytes;
}

bool Encoder::again_far() const {
  const size_t each = size_of(maps_->element());
  return repeats({again_values_, n_ * each}, each);
}

std::span<const std::byte> Encoder::rearranged(Rearranged way, size_t n) {
  n = std::min(n, n_);
  const size_t each = size_of(maps_->element());
  rearranged_.resize(n * each);
  rearrange(way, again_values_, n, each, rearranged_.data());
  return rearranged_;
}

std::span<const std::byte> Encoder::finish_bytes(Rearranged way, std::span<const std::byte> frame) {
  const std::byte head[] = {static_cast<std::byte>(Map::kBytes), static_cast<std::byte>(way)};
  return close(head, frame, {});
}

}  // namespace cgx::bounded
