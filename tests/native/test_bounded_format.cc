// Payloads of the error-bounded compressor that do not follow the format: each is refused by name.
#include <algorithm>
#include <cmath>

#include "bounded_values.h"
#include "codec/bounded/quads.h"
#include "data.h"

namespace cgx::native {
namespace {

using bounded::BlockHeader;
using bounded::Map;
using bounded::Maps;
using bounded::PayloadError;

template <typename T>
Block altered(Block bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

struct Sample {
  std::shared_ptr<const Maps> maps;
  EncodedBlock made;
  size_t n;

  Sample(DType element, BoundKind kind, double bound, const Block& values)
      : maps(std::make_shared<const Maps>(element, kind, bound)),
        made(encode_block(maps, values)),
        n(values.size() / size_of(element)) {}
  Sample(DType element, BoundKind kind, double bound, int pattern, size_t count = 2000)
      : Sample(element, kind, bound, hard_values(element, pattern, count, 1e-3, 7)) {}

  Map map() const { return static_cast<Map>(made.framed[0]); }
  BlockHeader header() const { return BlockHeader::read(made.framed.data(), *maps, n); }

  /// The error of the framed block with another value in its header, and a checksum that is right.
  template <typename T>
  std::string error(size_t at, T value) const {
    Block block = altered(made.framed, at, value);
    seal(block);
    return error_of<PayloadError>([&] { decode_block(maps, block, made.content, n); });
  }
  template <typename T>
  void refuses(size_t at, T value, const char* name) const {
    const std::string text = error(at, value);
    CHECK(contains(text, name), "byte ", at, ": ", text);
  }
};

// Offsets of block.cc.
constexpr size_t kMap = 0, kPredictor = 1, kFlags = 2, kWidth = 3, kShift = 4, kUnused = 5,
                 kStep = 16, kOutliers = 24, kSpecials = 28, kCoded = 32;

}  // namespace

TEST(bounded_block_headers) {
  const Sample grid(DType::kFloat32, BoundKind::kAbsolute, 1e-3, 0);
  CHECK(grid.map() == Map::kGrid);
  for (const int map : {4, 5, 11, 255}) {
    grid.refuses(kMap, static_cast<uint8_t>(map), "the map of a block");
  }
  grid.refuses(kMap, uint8_t{7}, "the length of a block's map");
  grid.refuses(kPredictor, uint8_t{5}, "the predictor of a block");
  grid.refuses(kMap, uint8_t{6}, "a field");
  // Windowed symbols are neither packed nor compressed, and have no low bits with them.
  for (const int flags : {17, 18, 24, 32}) {
    grid.refuses(kFlags, static_cast<uint8_t>(flags), "the flags of a block");
  }
  grid.refuses(kWidth, uint8_t{25}, "the width of a block's low bits");
  grid.refuses(kWidth, uint8_t{255}, "the width of a block's low bits");
  grid.refuses(kShift, uint8_t{1}, "the shift of a block");
  grid.refuses(kUnused, uint8_t{1}, "an unused byte");
  grid.refuses(kUnused + 2, uint8_t{128}, "an unused byte");
  for (const double step : {0.0, -1e-3, 2.1e-3, 1e300, double{NAN}, double{INFINITY}}) {
    grid.refuses(kStep, step, "the step of a block");
  }
  grid.refuses(kOutliers, uint32_t{2001}, "outliers");
  grid.refuses(kOutliers, UINT32_MAX, "outliers");
  grid.refuses(kSpecials, uint32_t{2001}, "special values");
  grid.refuses(kCoded, uint32_t{0}, "its header says");
  grid.refuses(kCoded, UINT32_MAX, "its header says");
  // Numbers that the format allows, and this block's bytes do not hold.
  grid.refuses(kOutliers, grid.header().outliers + 1, "its header says");
  grid.refuses(kSpecials, grid.header().specials + 1, "its header says");
  grid.refuses(kWidth, static_cast<uint8_t>(grid.header().width + 8), "its header says");
  grid.refuses(kPredictor, uint8_t{4}, "its header says");  // there are no nodes

  const Sample order(DType::kFloat64, BoundKind::kLossless, 0, 0);
  CHECK(order.map() == Map::kOrder);
  order.refuses(kMap, uint8_t{3}, "the map of a block");
  order.refuses(kPredictor, uint8_t{4}, "the predictor of a block");
  order.refuses(kWidth, uint8_t{57}, "the width of a block's low bits");
  order.refuses(kShift, uint8_t{64}, "the shift of a block");
  order.refuses(kStep, int64_t{-1}, "the origin of a block");
  order.refuses(kStep, INT64_MAX, "the origin of a block");
  order.refuses(kSpecials, uint32_t{1}, "special values");

  const Sample whole(DType::kInt16, BoundKind::kLossless, 0, 3);
  CHECK(whole.map() == Map::kOrder);
  whole.refuses(kShift, uint8_t{16}, "the shift of a block");
  whole.refuses(kStep, int64_t{1}, "the origin of a block");

  const Sample lattice(DType::kFloat16, BoundKind::kAbsolute, 1e-2, 0);
  CHECK(lattice.map() == Map::kLattice);
  lattice.refuses(kMap, uint8_t{3}, "the map of a block");
  lattice.refuses(kStep, int64_t{1}, "the origin of a block");
  lattice.refuses(8, int64_t{1} << 20, "allowed: 0, and magnitudes from 1 to ");
  lattice.refuses(8, int64_t{INT32_MIN}, "allowed: 0, and magnitudes from 1 to ");

  const Sample log_grid(DType::kFloat32, BoundKind::kPointwise, 1e-2, 0);
  CHECK(log_grid.map() == Map::kLogGrid);
  log_grid.refuses(kStep, int64_t{1024}, "the least exponent of a block");
  log_grid.refuses(kStep, int64_t{-1023}, "the least exponent of a block");
  log_grid.refuses(8, int64_t{INT32_MIN}, "stands for no number");
}

TEST(bounded_coded_low_bits_are_bytes) {
  for (int pattern = 0; pattern < kFloatPatterns; ++pattern) {
    const Sample sample(DType::kFloat32, BoundKind::kLossless, 0, pattern);
    if (sample.map() != Map::kOrder || sample.header().width == 0) continue;
    sample.refuses(kFlags, uint8_t{3}, sample.header().width % 8 == 0 ? "holds" : "the width");
    return;
  }
  CHECK(false, "no pattern has low bits");
}

TEST(bounded_lists_of_a_block) {
  // Outliers and specials: their lists must be as long as the symbols say, and point into the block.
  Block values = hard_values(DType::kFloat32, 0, 2000, 1e-3, 7);
  for (const size_t i : {0, 77, 1024, 1999}) values = altered(values, 4 * i, NAN);
  const Sample sample(DType::kFloat32, BoundKind::kAbsolute, 1e-3, values);
  CHECK(sample.map() == Map::kGrid && sample.header().specials == 4);
  const auto decode = [&](const Block& content) {
    return error_of<PayloadError>(
        [&] { decode_block(sample.maps, sample.made.framed, content, sample.n); });
  };
  const size_t places = sample.made.content.size() - sample.header().specials * size_t{6};
  CHECK(contains(decode(altered(sample.made.content, places, uint16_t{2000})), "is at 2000"));
  CHECK(contains(decode(altered(sample.made.content, places, UINT16_MAX)), "is at 65535"));
  // The places are 0, 77, 1024 and 1999; they ascend.
  CHECK(contains(decode(altered(sample.made.content, places, uint16_t{77})), "is at 77"));
  CHECK(contains(decode(altered(sample.made.content, places + 2, uint16_t{1500})),
                 "is at 1024, allowed: 1501 to 1999"));
  for (const size_t size :
       {size_t{0}, size_t{1}, sample.made.content.size() - 1, sample.made.content.size() + 1}) {
    Block content = sample.made.content;
    content.resize(size);
    CHECK(contains(decode(content), "its header says"));
  }
  values = hard_values(DType::kFloat32, 0, 2000, 1e-3, 7);
  for (const size_t i : {5, 6, 700}) values = altered(values, 4 * i, 1e4f);
  const Sample spikes(DType::kFloat32, BoundKind::kAbsolute, 1e-3, values);
  CHECK(!spikes.header().quads);
  const uint32_t outliers = spikes.header().outliers;
  CHECK(outliers > 1);
  size_t symbol = 0;
  while (spikes.made.content[symbol] == std::byte{255}) ++symbol;
  const auto with = [&](size_t at, uint8_t value) {
    return error_of<PayloadError>([&] {
      decode_block(spikes.maps, spikes.made.framed, altered(spikes.made.content, at, value),
                   spikes.n);
    });
  };
  CHECK(contains(with(symbol, 255), "fewer outliers"));
  while (spikes.made.content[symbol] != std::byte{255}) ++symbol;
  CHECK(contains(with(symbol, 0), "more outliers"));
}

TEST(bounded_packed_symbols) {
  // Three places with noise below the bound, and a rare outlier.
  Block values(2000 * sizeof(float));
  for (size_t i = 0; i < 2000; ++i) {
    const double place = static_cast<double>(i * i * 7919 % 31 % 3) - 1;
    const auto far = static_cast<float>(1e4 + static_cast<double>(i));
    const double noise = 1e-4 * std::sin(static_cast<double>(i));
    values = altered(values, 4 * i, i % 501 == 77 ? far : static_cast<float>(2e-3 * place + noise));
  }
  const Sample spikes(DType::kFloat32, BoundKind::kAbsolute, 1e-3, values);
  CHECK(spikes.header().quads && spikes.header().listed > 1);
  const auto with = [&](size_t at, uint8_t value) {
    return error_of<PayloadError>([&] {
      decode_block(spikes.maps, spikes.made.framed, altered(spikes.made.content, at, value),
                   spikes.n);
    });
  };
  // The codes of a byte: of the list, or not.
  const auto listed = [&](size_t at) {
    const auto quad = static_cast<unsigned>(spikes.made.content[at]);
    return (quad & quad >> 1 & 0x55) != 0;
  };
  size_t at = 0;
  while (listed(at)) ++at;
  CHECK(contains(with(at, 255), "do not fit its list"));
  while (!listed(at)) ++at;
  CHECK(at < bounded::quad_bytes(spikes.n));
  CHECK(contains(with(at, 0), "do not fit its list"));
  spikes.refuses(6, static_cast<uint16_t>(spikes.header().listed + 1), "its header says");
  spikes.refuses(6, uint16_t{2001}, "listed symbols");
  spikes.refuses(kFlags, uint8_t{0}, "an unused byte");
  const Sample order(DType::kFloat32, BoundKind::kLossless, 0, 0);
  order.refuses(kFlags, uint8_t{4}, "the flags of a block");
}

TEST(bounded_quads_come_back) {
  Random random(9);
  for (const size_t n : {0, 1, 2, 3, 4, 5, 63, 64, 65, 1000}) {
    for (int spread = 1; spread <= 256; spread *= 4) {
      std::vector<uint8_t> symbols(n), quads(bounded::quad_bytes(n)), others,
          back(4 * quads.size());
      for (uint8_t& symbol : symbols) {
        symbol = static_cast<uint8_t>(random(static_cast<uint64_t>(spread)) + 200);
      }
      const uint8_t center = bounded::center_of(symbols.data(), n);
      CHECK(n == 0 || std::find(symbols.begin(), symbols.end(), center) != symbols.end());
      bounded::pack_quads(symbols.data(), n, center, quads.data(), others);
      CHECK(bounded::unpack_quads(quads.data(), n, center, others.data(), others.size(),
                                  back.data()));
      back.resize(n);
      CHECK(back == symbols, "n ", n, ", spread ", spread);
    }
  }
}

TEST(bounded_short_blocks) {
  const auto maps = std::make_shared<const Maps>(DType::kInt32, BoundKind::kLossless, 0);
  const auto error = [&](Block block, size_t n) {
    if (block.size() >= bounded::kCrcBytes) seal(block);
    return error_of<PayloadError>([&] { decode_block(maps, block, {}, n); });
  };
  for (size_t size = 1; size <= 4; ++size) CHECK(contains(error(Block(size), 9), "cut"));
  Block order(20, std::byte{2});
  CHECK(contains(error(order, 9), "header is cut"));
  CHECK(contains(error(Block(5 + 35), 9), "has 35 bytes for 9 values"));          // raw
  CHECK(contains(error(Block(5 + 5, std::byte{1}), 9), "5 bytes for 1 values"));  // constant
  Block raw(5 + 36, std::byte{0});
  seal(raw);
  CHECK(decode_block(maps, raw, {}, 9) == Block(36));
  CHECK(decode_block(maps, {}, {}, 9) == Block(36));
  raw[7] = std::byte{1};
  CHECK(contains(error_of<PayloadError>([&] { decode_block(maps, raw, {}, 9); }), "checksum"));
  const auto bools = std::make_shared<const Maps>(DType::kBool, BoundKind::kLossless, 0);
  Block two(6, std::byte{1});
  two[1] = std::byte{2};
  seal(two);
  CHECK(contains(error_of<PayloadError>([&] { decode_block(bools, two, {}, 3); }), "a bool is 2"));
}

// Every bit is under the checksum.
TEST(bounded_blocks_notice_flips) {
  const Sample sample(DType::kFloat32, BoundKind::kAbsolute, 1e-3, 0, 200);
  for (size_t i = 0; i < sample.made.framed.size(); ++i) {
    Block block = sample.made.framed;
    block[i] ^= static_cast<std::byte>(1 << i % 8);
    error_of<PayloadError>(
        [&] { decode_block(sample.maps, block, sample.made.content, sample.n); });
    block = sample.made.framed;
    block.resize(i);
    if (i == 0) continue;  // a block without bytes holds zeros: the table says its length
    error_of<PayloadError>(
        [&] { decode_block(sample.maps, block, sample.made.content, sample.n); });
  }
}

TEST(bounded_bounds_of_maps) {
  const auto error = [](DType element, BoundKind kind, double bound) {
    return error_of<ConfigError>([&] { Maps(element, kind, bound); });
  };
  for (const double bound : {0.0, -1e-3, double{NAN}, double{INFINITY}}) {
    for (const BoundKind kind :
         {BoundKind::kAbsolute, BoundKind::kRelative, BoundKind::kPointwise}) {
      CHECK(contains(error(DType::kFloat16, kind, bound), "the bound is "));
    }
  }
  CHECK(contains(error(DType::kFloat32, BoundKind::kPointwise, 1), "between 0 and 1"));
  CHECK(contains(error(DType::kFloat32, BoundKind::kLossless, 1), "of lossless values"));
  CHECK(contains(error(DType::kInt8, BoundKind::kAbsolute, 1), "whole numbers"));
}

}  // namespace cgx::native
