#include "codec/bounded/encoder.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/quads.h"

namespace cgx::bounded {
namespace {

// A block with more of them is looked at as a whole, not by a sample.
constexpr size_t kManyOutOf = 16;
// Bits of entropy of a symbol below which four of them are packed into a byte.
constexpr double kLittle = 2.25;

}  // namespace

Encoder::Encoder(std::shared_ptr<const Maps> maps) : maps_(std::move(maps)) {}

template <typename Word>
void Encoder::write_words() {
  const Element element = maps_->element();
  header_.predictor = choice_.predictor;
  header_.low = choice_.low;
  header_.width = choice_.width;
  header_.base = choice_.base;
  header_.outliers = header_.specials = 0;
  outliers_.clear();
  places_.clear();
  specials_.clear();
  header_.quads = false;
  header_.center = 0;
  header_.listed = 0;
  const BlockSizes sizes(header_, element, n_);
  content_.resize(sizes.symbols + sizes.coded_low);
  low_.resize(sizes.low);
  auto* symbols = reinterpret_cast<uint8_t*>(content_.data());
  auto* bytes =
      header_.low == LowBits::kCoded ? symbols + n_ : reinterpret_cast<uint8_t*>(low_.data());
  auto* bits = reinterpret_cast<uint8_t*>(low_.data()) + sizes.low_bytes * n_;
  const Low<uint8_t> lows{header_.width, bytes, n_, bits, sizes.bit_stride};
  const auto& loops = word_loops<Word>();
  const Word base = static_cast<Word>(header_.base);
  Word words[kChunk], steps[kChunk], bends[kChunk];
  Word last = 0, last_step = 0;
  before_ = 0;
  for (size_t first = 0; first < n_; first += kChunk) {
    const size_t n = std::min(kChunk, n_ - first);
    map_words(first, n, words, true);
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
    if (loops.split(residuals, n, base, lows.after(first), symbols + first)) {
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
  choose_starts();
  const Seen seen = look();
  if (seen.differ == 0) {
    header_.map = Map::kConstant;
    return;
  }
  choose_map<Word>(seen);
  choose_curve<Word>();
  write_words<Word>();
  if ((header_.outliers + header_.specials) * kManyOutOf > n_) {
    // The sample has misled: by all values, then. A map with a bound that fails too often gives way.
    if (header_.specials * kManyOutOf > n_) use_order();
    size_t specials;
    header_.predictor = Predictor::kNone;  // no curve
    choice_ = choose(sample_words<Word>(true, &specials), kWordBits<Word>);
    write_words<Word>();
  }
  if (choice_.entropy < kLittle) use_quads();
  if (header_.predictor == Predictor::kCurve) {
    const size_t at = content_.size();
    content_.resize(at + curve_bytes(n_));
    write_nodes(nodes_.data(), n_, content_.data() + at);
  }
  for (const auto* list : {&outliers_, &places_, &specials_}) {
    content_.insert(content_.end(), list->begin(), list->end());
  }
}

void Encoder::encode(const std::byte* x, size_t n) {
  x_ = x;
  n_ = n;
  header_ = BlockHeader{};
  choice_ = Choice{};
  content_.clear();
  low_.clear();
  with_word(maps_->element(), [&]<typename Word>() { encode_words<Word>(); });
}

std::span<const std::byte> Encoder::finish(std::span<const std::byte> frame, Arena& arena) {
  const size_t value = bytes_of(maps_->element());
  header_.compressed = !frame.empty() && frame.size() < content_.size();
  const std::span<const std::byte> coded = header_.compressed ? frame : content();
  header_.coded = static_cast<uint32_t>(coded.size());
  std::byte header[BlockHeader::kBytes];
  std::span<const std::byte> head(header, 1), body, low;
  if (header_.map == Map::kConstant) {
    if (bits_at(maps_->element(), x_, 0) == 0) return {};
    body = {x_, value};
  } else if (BlockHeader::kBytes + coded.size() + low_.size() <= n_ * value) {
    head = header;
    body = coded;
    low = low_;
  } else {
    header_.map = Map::kRaw;
    body = {x_, n_ * value};
  }
  header_.write(header);
  const size_t bytes = head.size() + body.size() + low.size() + kCrcBytes;
  std::byte* const block = arena.take(bytes);
  std::byte* at = block;
  for (const auto& part : {head, body, low}) at = std::copy(part.begin(), part.end(), at);
  const uint32_t crc = crc32c(block, bytes - kCrcBytes);
  std::memcpy(at, &crc, kCrcBytes);
  return {block, bytes};
}

}  // namespace cgx::bounded
