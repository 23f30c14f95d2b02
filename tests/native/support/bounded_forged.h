// Blocks of the error-bounded compressor that no encoder need write: by any form, of any words.
#pragma once

#include "bounded_kernels.h"

namespace cgx::native {

using bounded::BlockHeader;
using bounded::Map;
using bounded::Predictor;

// Blocks by forms that no encoder need choose: what the kernel makes of x comes back as promised.
inline void check_form(const MapsOf& maps, BoundKind kind, BlockHeader header, const Block& x,
                       const std::string& what) {
  const DType element = maps->element();
  const size_t bytes = size_of(element), n = x.size() / bytes;
  const size_t word = bytes == 8 ? 8 : 4;
  header.outliers = header.specials = static_cast<uint32_t>(n);  // room for all
  if (header.map == Map::kOrder) header.specials = 0;
  bounded::Grid grid = bounded::make_grid(maps->bound() > 0 ? maps->bound() : 1, 0);
  header.step = header.map == Map::kGrid ? grid.step : 0;
  bounded::OpenBlock opened;
  opened.header = header;
  opened.n = n;
  Slab slab(maps, n);
  slab.open(0, opened, 0, 0, n);
  Block parts = fresh(slab.lay_out());
  std::vector<std::byte> image = slab.image();
  bounded::on_gpu::BlockForm form;
  std::memcpy(&form, image.data(), sizeof form);
  form.inverse = grid.inverse;
  std::memcpy(image.data(), &form, sizeof form);
  bounded::on_gpu::BlocksCall call = slab.blocks_call(image.data());
  call.x = address(x);
  call.parts = address(parts);
  run_encode(call, slab.wide());
  const auto places = bounded::on_gpu::parts_of(form, static_cast<uint32_t>(bytes));
  const auto part = [&](uint64_t at, size_t size) {
    const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(at);
    return Block(begin, begin + static_cast<std::ptrdiff_t>(size));
  };
  Fields fields{.header = header,
                .symbols = {},
                .nodes = {},
                .outliers = {},
                .places = {},
                .specials = {},
                .low = {}};
  uint32_t counts[2];
  std::memcpy(counts, parts.data(), sizeof counts);
  CHECK(counts[0] <= n && counts[1] <= header.specials, what);
  fields.header.outliers = counts[0];
  const Block symbols = part(places.symbols, n);
  for (const std::byte symbol : symbols) fields.symbols.push_back(static_cast<uint8_t>(symbol));
  if (header.predictor == Predictor::kCurve) {
    fields.nodes.resize(bounded::curve_bytes(n) / 4);
    std::memcpy(fields.nodes.data(), parts.data() + places.nodes, bounded::curve_bytes(n));
  }
  fields.outliers = part(places.outliers, counts[0] * word);
  fields.places = part(places.places, counts[1] * size_t{2});
  fields.specials = part(places.specials, counts[1] * bytes);
  for (size_t plane = 0; plane < static_cast<size_t>(header.width) / 8; ++plane) {
    const Block one = part(places.bytes + plane * places.stride, n);
    fields.low.insert(fields.low.end(), one.begin(), one.end());
  }
  const size_t stride = (n + 63) / 64 * 8;
  for (size_t plane = 0; plane < static_cast<size_t>(header.width) % 8; ++plane) {
    const Block one = part(places.bits + plane * (places.stride / 8), stride);
    fields.low.insert(fields.low.end(), one.begin(), one.end());
  }
  const auto y = decoded_everywhere(maps, joined(fields), n, what);
  CHECK(y.has_value(), what, ": refused");
  check_promise(element, kind, maps->bound(), x, *y, what);
}

// Words of a kind of block, the ends of which stand for values, and what is beyond for none.
struct Limits {
  DType element;
  BoundKind kind;
  double bound;
  BlockHeader header;
  int64_t least, greatest;
  int version = bounded::kLastVersion;
};

inline BlockHeader header_of(Map map, int shift = 0, int64_t origin = 0, double step = 0) {
  BlockHeader header;
  header.map = map;
  header.shift = shift;
  header.origin = origin;
  header.step = step;
  return header;
}

inline Fields fields_of(const BlockHeader& header, size_t word, const std::vector<int64_t>& words) {
  Fields made{.header = header,
              .symbols = std::vector<uint8_t>(words.size(), bounded::kOutlier),
              .nodes = {},
              .outliers = Block(words.size() * word),
              .places = {},
              .specials = {},
              .low = {}};
  made.header.outliers = static_cast<uint32_t>(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    std::memcpy(made.outliers.data() + i * word, &words[i], word);
  }
  return made;
}

inline void check_limits(const Limits& limits) {
  const auto maps = std::make_shared<const bounded::Maps>(limits.element, limits.kind, limits.bound,
                                                          limits.version);
  const size_t word = size_of(limits.element) == 8 ? 8 : 4;
  const int64_t room = word == 8 ? INT64_MAX : INT32_MAX;
  std::vector<int64_t> all{limits.least, limits.greatest};
  if (limits.least > -room - 1) all.push_back(limits.least - 1);
  if (limits.least > -room - 1) all.push_back(-room - 1);
  if (limits.greatest < room) all.push_back(limits.greatest + 1);
  if (limits.greatest < room) all.push_back(room);
  for (const bool zeros : {false, true}) {
    if (zeros && limits.header.map == Map::kOrder) continue;
    for (const int64_t one : all) {
      const bool fits = one >= limits.least && one <= limits.greatest;
      if (zeros && one == -room - 1) continue;  // there is none below
      for (const size_t at : {0, 69, 1027, 1099}) {
        BlockHeader header = limits.header;
        header.signed_zero = zeros;
        std::vector<int64_t> words(1100);
        words[at] = zeros && one < 0 ? one - 1 : one;
        const std::string what =
            str_of("element ", static_cast<int>(limits.element), ", map ",
                   static_cast<int>(header.map), ", shift ", header.shift, ", version ",
                   limits.version, ", zeros ", zeros, ", word ", one, " at ", at);
        const auto y =
            decoded_everywhere(maps, joined(fields_of(header, word, words)), words.size(), what);
        CHECK(y.has_value() == fits, what, fits ? ": refused" : ": taken");
      }
    }
  }
}

}  // namespace cgx::native
