#include "codec/bounded/block.h"

#include <algorithm>
#include <cmath>

#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/quads.h"

namespace cgx::bounded {
namespace {

constexpr uint8_t kCodedLow = 1, kCompressed = 2, kSignedZero = 4, kQuads = 8, kWindowed = 16;

void require(bool holds, const char* what, double found) {
  if (!holds) throw PayloadError(str_of(what, " is ", found, ", which the format does not allow"));
}

}  // namespace

// Offsets: 0 map, 1 predictor, 2 flags, 3 width, 4 shift, 5 center, 6 listed, 8 base, 16 step or origin,
// 24 outliers, 28 specials, 32 coded.
void BlockHeader::write(std::byte* out) const {
  put(out, 0, static_cast<uint8_t>(map));
  put(out, 1, static_cast<uint8_t>(predictor));
  put(out, 2,
      static_cast<uint8_t>((low == LowBits::kCoded ? kCodedLow : 0) |
                           (compressed ? kCompressed : 0) | (signed_zero ? kSignedZero : 0) |
                           (quads ? kQuads : 0) | (windowed ? kWindowed : 0)));
  put(out, 3, static_cast<uint8_t>(width));
  put(out, 4, static_cast<uint8_t>(shift));
  put(out, 5, center);
  put(out, 6, listed);
  put(out, 8, base);
  if (map == Map::kGrid) {
    put(out, 16, step);
  } else {
    put(out, 16, origin);
  }
  put(out, 24, outliers);
  put(out, 28, specials);
  put(out, 32, coded);
}

void BlockHeader::check_map(const Maps& maps, size_t n) const {
  const DType element = maps.element();
  const int number = static_cast<int>(map);
  const bool is_float = element == DType::kFloat32 || element == DType::kFloat64;
  const bool own = is_own(map) && maps.version() >= 3 && (map == Map::kPalette || is_float);
  require(map == Map::kOrder || own || (number >= 2 && map == maps.bounded()), "the map of a block",
          number);
  const int most = map == Map::kOrder ? static_cast<int>(8 * size_of(element)) - 1 : 0;
  require(shift <= most, "the shift of a block", shift);
  if (map == Map::kLogGrid) {
    const bool wide = maps.version() > 1 && size_of(element) == 8;
    const int64_t least = wide ? LogTable::kLeastExponent : -1022;
    require(origin >= least && origin <= LogTable::kGreatestExponent,
            "the least exponent of a block", static_cast<double>(origin));
  } else if (own) {
    const auto most = static_cast<int64_t>(10 * n + 32);
    require(origin > 0 && origin <= most, "the length of a block's map",
            static_cast<double>(origin));
  } else if (map != Map::kGrid) {
    const int64_t last = map == Map::kOrder ? last_origin(element, shift) : 0;
    require(origin >= 0 && origin <= last, "the origin of a block", static_cast<double>(origin));
  }
}

BlockHeader BlockHeader::read(const std::byte* in, const Maps& maps, size_t n) {
  BlockHeader header;
  const int map = get<uint8_t>(in, 0), predictor = get<uint8_t>(in, 1), flags = get<uint8_t>(in, 2);
  const DType element = maps.element();
  const int word_bits = size_of(element) == 8 ? 64 : 32;
  header.map = static_cast<Map>(map);
  require(predictor <= kLastPredictor, "the predictor of a block", predictor);
  header.predictor = static_cast<Predictor>(predictor);
  require(header.predictor != Predictor::kCurve || header.map == Map::kGrid,
          "the predictor of a block", predictor);
  require(flags < (maps.version() >= 3 ? 32 : 16), "the flags of a block", flags);
  header.low = (flags & kCodedLow) != 0 ? LowBits::kCoded : LowBits::kPlanes;
  header.compressed = (flags & kCompressed) != 0;
  header.quads = (flags & kQuads) != 0;
  header.windowed = (flags & kWindowed) != 0;
  require(!header.windowed || (flags & (kCodedLow | kCompressed | kQuads)) == 0,
          "the flags of a block", flags);
  header.center = get<uint8_t>(in, 5);
  header.listed = get<uint16_t>(in, 6);
  require(header.quads || (header.listed == 0 && (header.windowed || header.center == 0)),
          "an unused byte of a block", 1);
  require(header.listed <= n, "the number of a block's listed symbols", header.listed);
  header.signed_zero = (flags & kSignedZero) != 0;
  require(!header.signed_zero || (header.map != Map::kOrder && !is_own(header.map) &&
                                  header.predictor != Predictor::kCurve),
          "the flags of a block", flags);
  header.width = get<uint8_t>(in, 3);
  require(header.width <= word_bits - 8, "the width of a block's low bits", header.width);
  require(header.low == LowBits::kPlanes || (header.width % 8 == 0 && header.width > 0),
          "the width of coded low bits", header.width);
  header.shift = get<uint8_t>(in, 4);
  header.base = get<int64_t>(in, 8);
  require(word_bits == 64 || header.base == static_cast<int32_t>(header.base),
          "the base of a block", static_cast<double>(header.base));
  // Of another map than the bound's, check_map() says so.
  if (header.map == Map::kGrid && maps.bounded() == Map::kGrid) {
    header.step = get<double>(in, 16);
    require(header.step > 0 && header.step <= 2 * maps.bound(), "the step of a block", header.step);
  } else {
    header.origin = get<int64_t>(in, 16);
  }
  header.check_map(maps, n);
  header.outliers = get<uint32_t>(in, 24);
  header.specials = get<uint32_t>(in, 28);
  header.coded = get<uint32_t>(in, 32);
  require(header.outliers <= n, "the number of a block's outliers", header.outliers);
  require(header.specials <= (header.map == Map::kOrder ? 0 : n),
          "the number of a block's special values", header.specials);
  return header;
}

BlockSizes::BlockSizes(const BlockHeader& header, DType element, size_t n) {
  const size_t word = size_of(element) == 8 ? 8 : 4;
  const size_t whole = static_cast<size_t>(header.width) / 8;
  const size_t bits = static_cast<size_t>(header.width) % 8;
  const bool coded = header.low == LowBits::kCoded;
  coded_low = coded ? whole * n : 0;
  outliers = header.outliers * word;
  nodes = header.predictor == Predictor::kCurve ? curve_bytes(n) : 0;
  own = is_own(header.map) ? static_cast<size_t>(header.origin) : 0;
  rest = nodes + outliers + header.specials * (2 + size_of(element)) + own;
  symbols = header.quads      ? quad_bytes(n) + header.listed
            : header.windowed ? std::max<size_t>(header.coded, rest) - rest
                              : n;
  content = symbols + coded_low + rest;
  low_bytes = coded ? 0 : whole;
  low_bits = coded ? 0 : bits;
  bit_stride = (n + 63) / 64 * 8;
  low = low_bytes * n + low_bits * bit_stride;
}

}  // namespace cgx::bounded
