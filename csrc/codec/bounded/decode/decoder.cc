#include "codec/bounded/decode/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "base/float_mode.h"
#include "codec/bounded/ans/windowed.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/maps/signed_zero.h"
#include "codec/bounded/quads.h"
#include "codec/bounded/whole.h"

namespace cgx::bounded {
namespace {

// Bits of planes behind the last value are 0.
void check_ends_of_planes(const BlockSizes& sizes, std::span<const std::byte> low, size_t n) {
  const size_t used = n % 64, planes = n * sizes.low_bytes;
  if (used == 0) return;
  for (size_t plane = 0; plane < sizes.low_bits; ++plane) {
    const size_t end = planes + (plane + 1) * sizes.bit_stride;
    if (get<uint64_t>(low.data(), end - 8) >> used != 0) {
      throw PayloadError(str_of("plane ", plane, " of low bits goes on behind the last value"));
    }
  }
}

// The special values of a block of n values, in its content.
class Specials {
 public:
  // PayloadError: their places do not ascend, or one is not in the block.
  Specials(const std::byte* in, size_t count, size_t n)
      : places_(in), values_(in + 2 * count), count_(count) {
    for (size_t i = 0, least = 0; i < count; ++i) {
      if (place(i) >= n || place(i) < least) {
        throw PayloadError(str_of("a special value is at ", place(i), ", allowed: ", least, " to ",
                                  n - 1, ", in ascending order"));
      }
      least = place(i) + 1;
    }
  }

  bool has(size_t wanted) const {
    size_t from = 0, to = count_;
    while (from < to) {
      const size_t middle = (from + to) / 2;
      if (place(middle) == wanted) return true;
      (place(middle) < wanted ? from : to) = place(middle) < wanted ? middle + 1 : middle;
    }
    return false;
  }

  // Among the block's values, of so many bytes.
  void put(std::byte* x, size_t bytes) const {
    for (size_t i = 0; i < count_; ++i) {
      std::memcpy(x + place(i) * bytes, values_ + i * bytes, bytes);
    }
  }

 private:
  size_t place(size_t i) const { return get<uint16_t>(places_, 2 * i); }

  const std::byte *const places_, *const values_;
  const size_t count_;
};

// Values [first, first + n) of a block, of float32 or float64, are finite where they are not special.
template <typename Word>
void check_finite(const Specials& specials, DType element, size_t first, size_t n,
                  const std::byte* x) {
  using U = std::make_unsigned_t<Word>;
  const FloatLayout layout = layout_of(element);
  const auto magnitude = static_cast<U>(layout.sign - 1);
  const auto room = static_cast<U>(layout.sign - layout.infinity);
  const auto bits = [&](size_t i) { return get<U>(x, (first + i) * sizeof(U)) & magnitude; };
  U sums = 0;  // their highest bits are set where a value is not finite
  for (size_t i = 0; i < n; ++i) sums |= bits(i) + room;
  if (sums <= magnitude) return;
  for (size_t i = 0; i < n; ++i) {
    if (bits(i) + room > magnitude && !specials.has(first + i)) {
      throw PayloadError(str_of("value ", first + i, " is not finite, and no special value"));
    }
  }
}

template <typename Word>
bool are_within(const Word* words, size_t n, int64_t most) {
  return std::all_of(words, words + n, [&](Word word) { return word >= -most && word <= most; });
}

}  // namespace

std::span<const std::byte> OpenBlock::content_of(std::span<const std::byte> of_frame) const {
  const auto found = header.compressed ? of_frame : plain;
  if (found.size() != content) {
    throw PayloadError(
        str_of("the block's frame holds ", found.size(), " bytes, its header says ", content));
  }
  return found;
}

void unpack_symbols(const OpenBlock& block, std::span<const std::byte> content, uint8_t* symbols) {
  const BlockHeader& header = block.header;
  if (header.windowed) {
    return ans::read_windowed(content.first(block.symbols), block.n, header.center, symbols);
  }
  const auto* quads = reinterpret_cast<const uint8_t*>(content.data());
  if (!unpack_quads(quads, block.n, header.center, quads + quad_bytes(block.n), header.listed,
                    symbols)) {
    throw PayloadError("the block's packed symbols do not fit its list of symbols");
  }
}

void unpack_nodes(const OpenBlock& block, const std::byte* bytes, int32_t* nodes) {
  if (!read_nodes(bytes, block.n, nodes)) {
    throw PayloadError("a node of a curve is beyond its limits, allowed: -2^30 to 2^30");
  }
}

OpenBlock Decoder::open(std::span<const std::byte> block, size_t n) const {
  OpenBlock open;
  open.n = n;
  if (block.empty()) {
    open.header.map = Map::kConstant;
    return open;
  }
  if (block.size() < 1 + kCrcBytes) throw PayloadError("the block is cut");
  const size_t end = block.size() - kCrcBytes;
  if (crc32c(block.data(), end) != get<uint32_t>(block.data(), end)) {
    throw PayloadError("the checksum differs: bytes were altered");
  }
  const auto body = block.first(end);
  const size_t bytes = size_of(maps_->element());
  const auto map = static_cast<Map>(body[0]);
  if (map == Map::kRaw || map == Map::kConstant) {
    const size_t values = map == Map::kRaw ? n : 1;
    if (body.size() != 1 + values * bytes) {
      throw PayloadError(
          str_of("the block has ", body.size() - 1, " bytes for ", values, " values"));
    }
    open.header.map = map;
    open.plain = body.subspan(1);
    return open;
  }
  if (maps_->version() < 3) {
    const char* const newer = map == Map::kField    ? "a field"
                              : map == Map::kMostly ? "mostly one value"
                              : map == Map::kBytes  ? "a frame of bytes"
                                                    : nullptr;
    if (newer != nullptr) {
      throw PayloadError(str_of("the block is ", newer, ", which version ", maps_->version(),
                                " of the format does not have"));
    }
  }
  if (maps_->version() >= 3 && (map == Map::kField || map == Map::kMostly)) {
    open.header.map = map;
    open.plain = body.subspan(1);
    return open;
  }
  if (maps_->version() >= 3 && map == Map::kBytes) {
    const auto way = body.size() > 1 ? static_cast<int>(body[1]) : kRearranged;
    if (way >= kRearranged || body.size() < 3) {
      throw PayloadError(str_of("a block of ", n, " values has bytes in the way ", way));
    }
    open.header.map = map;
    open.header.compressed = true;
    open.way = static_cast<Rearranged>(way);
    open.frame = body.subspan(2);
    open.content = n * bytes;
    return open;
  }
  if (body.size() < BlockHeader::kBytes) throw PayloadError("the block's header is cut");
  open.header = BlockHeader::read(body.data(), *maps_, n);
  const BlockSizes sizes(open.header, maps_->element(), n);
  const size_t coded = open.header.coded;
  if (body.size() != BlockHeader::kBytes + coded + sizes.low) {
    throw PayloadError(str_of("the block has ", body.size(), " bytes, its header says ",
                              BlockHeader::kBytes + coded + sizes.low));
  }
  open.content = sizes.content;
  open.symbols = sizes.symbols;
  if (open.header.compressed) {
    open.frame = body.subspan(BlockHeader::kBytes, coded);
  } else {
    if (coded != sizes.content) {
      throw PayloadError(
          str_of("the block's symbols have ", coded, " bytes, its header says ", sizes.content));
    }
    open.plain = body.subspan(BlockHeader::kBytes, coded);
  }
  open.low = body.subspan(BlockHeader::kBytes + coded);
  check_ends_of_planes(sizes, open.low, n);
  return open;
}

template <typename Word>
void Decoder::decode_words(const OpenBlock& block, const std::byte* content, std::byte* x) const {
  const BlockHeader& header = block.header;
  const DType element = maps_->element();
  const size_t count = block.n, bytes = size_of(element);
  const BlockSizes sizes(header, element, count);
  const auto* symbols = reinterpret_cast<const uint8_t*>(content);
  const uint8_t* const after_symbols = symbols + sizes.symbols;
  std::vector<uint8_t> unpacked;
  if (header.quads || header.windowed) {
    unpacked.resize(4 * quad_bytes(count));
    unpack_symbols(block, {content, sizes.content}, unpacked.data());
    symbols = unpacked.data();
  }
  const auto* low = reinterpret_cast<const uint8_t*>(block.low.data());
  const auto* low_bytes = header.low == LowBits::kCoded ? after_symbols : low;
  const auto* low_bits = low + sizes.low_bytes * count;
  const std::byte* at = content + sizes.symbols + sizes.coded_low;
  std::vector<int32_t> nodes;
  if (sizes.nodes > 0) {
    nodes.resize(sizes.nodes / 4);
    unpack_nodes(block, at, nodes.data());
    at += sizes.nodes;
  }
  const std::byte* outlier = at;
  const std::byte* const outliers_end = at + sizes.outliers;
  const Specials specials(outliers_end, header.specials, count);
  const Low<const uint8_t> lows{header.width, low_bytes, count, low_bits, sizes.bit_stride};
  const auto& loops = word_loops<Word>();
  const Word base = static_cast<Word>(header.base);
  // Where words and curves, which stay below 2^28, keep values finite, these need no look.
  constexpr double kFarthest = sizeof(Word) == 4 ? 0x1p32 : 0x1p52;
  const bool far =
      !nodes.empty() && !std::isfinite(static_cast<ValueOf<Word>>(kFarthest * header.step));
  const bool looks = header.map == Map::kGrid && (far || has_far_words());
  const Limits limits = limits_of<Word>(header);
  Own own = own_of(header, count, {content + sizes.content - sizes.own, sizes.own});
  // With a curve, words are from base on, except outliers; where all of these stand for values, few
  // need a look.
  const int64_t room = header.width < 40 ? int64_t{256} << header.width : INT64_MAX;
  const bool near = header.base >= -limits.greatest && room <= limits.greatest &&
                    header.base <= limits.greatest - room;
  const bool by_loops = nodes.empty() || has_far_words();
  Word words[kSlice];
  Word last = 0, last_step = 0;
  for (size_t first = 0; first < count; first += kSlice) {
    const size_t n = std::min(kSlice, count - first);
    const bool outliers = loops.join(symbols + first, n, base, lows.after(first), words);
    if (outliers) {
      for (size_t i = 0; i < n; ++i) {
        if (symbols[first + i] != kOutlier) continue;
        if (outlier == outliers_end)
          throw PayloadError("the block has fewer outliers than symbols of them");
        words[i] = get<Word>(outlier);
        outlier += sizeof(Word);
      }
    }
    if (header.predictor == Predictor::kLine) last_step = loops.sum(words, n, last_step);
    if (header.predictor == Predictor::kPrevious || header.predictor == Predictor::kLine) {
      last = loops.sum(words, n, last);
    }
    const int32_t* const drawn = nodes.empty() ? nullptr : &nodes[first / kCurveRun * kCurveNodes];
    const auto values = [&] {
      const bool looked = by_loops || (near && !outliers) || are_within(words, n, limits.greatest);
      own.first = first;
      if (looked && from_words(header, words, drawn, n, limits, own, x + first * bytes)) return;
      refuse_word(header, words, n, first, limits, own, x + first * bytes);
    };
    if (header.signed_zero) {
      with_bits(element, [&]<typename Signed>() {
        using Bits = std::make_unsigned_t<Signed>;
        Bits negative[kSlice];
        take_signed_zeros(words, n, negative);
        values();
        put_signs(negative, n, reinterpret_cast<Bits*>(x + first * bytes));
      });
    } else {
      values();
    }
    if (looks) check_finite<Word>(specials, element, first, n, x);
  }
  if (outlier != outliers_end)
    throw PayloadError("the block has more outliers than symbols of them");
  specials.put(x, bytes);
}

void Decoder::decode(const OpenBlock& block, std::span<const std::byte> content, std::byte* x) {
  const FloatMode mode;
  const DType element = maps_->element();
  const size_t bytes = size_of(element);
  if (block.header.map == Map::kConstant) {
    if (block.plain.empty()) {
      std::memset(x, 0, block.n * bytes);
      return;
    }
    const uint64_t bits = bits_at(element, block.plain.data(), 0);
    for (size_t i = 0; i < block.n; ++i) put_bits(element, x, i, bits);
  } else if (block.header.map == Map::kField) {
    decode_field(block.plain, block.n, x);
  } else if (block.header.map == Map::kMostly) {
    decode_mostly(element, block.plain, block.n, 0, block.n, x);
  } else if (block.header.map == Map::kBytes) {
    arrange_back(block.way, block.content_of(content).data(), block.n, bytes, x);
  } else if (block.header.map == Map::kRaw) {
    std::memcpy(x, block.plain.data(), block.n * bytes);
  } else {
    content = block.content_of(content);
    with_word(element, [&]<typename Word>() { decode_words<Word>(block, content.data(), x); });
  }
  check_bools(element, x, block.n);
}

}  // namespace cgx::bounded
