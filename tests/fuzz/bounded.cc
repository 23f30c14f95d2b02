#include <bit>

#include "bounded_blocks.h"
#include "codec/bounded/container.h"
#include "codec/bounded/quads.h"
#include "targets.h"

namespace cgx::native {
namespace {

using bounded::BlockHeader;
using bounded::Container;
using bounded::Maps;
using bounded::OpenContainer;
using bounded::PayloadError;

// A bound of any size, or any bits at all.
double take_bound(Input& input, BoundKind kind) {
  constexpr double kBounds[] = {1e-4, 1e-2, 0x1p-10, 0.5, 0x1p-20, 1e-300, 1e30, 0x1p-149};
  const size_t which = input.below(16);
  if (kind == BoundKind::kLossless) return 0;
  return which < std::size(kBounds) ? kBounds[which] : input.take<double>();
}

// Null: the bound is none that maps take.
std::shared_ptr<const Maps> take_maps(Input& input, BoundKind* kind) {
  const DType element = element_number(input.below(kElements));
  *kind = is_floating(element) ? static_cast<BoundKind>(input.below(4)) : BoundKind::kLossless;
  const double bound = take_bound(input, *kind);
  try {
    return std::make_shared<const Maps>(element, *kind, bound);
  } catch (const ConfigError& error) {
    CHECK(contains(error.what(), "bound"), error.what());
    return nullptr;
  }
}

// The checksum of a payload whose header and table say where its blocks are, if they are there.
void mend(Block& payload) {
  if (payload.size() < Container::kFixedBytes) return;
  const size_t dims = static_cast<size_t>(payload[7]);
  size_t head = Container::kFixedBytes + 8 * dims;
  if (payload.size() < head) return;
  uint64_t values = static_cast<uint8_t>(payload[5]) >= 64 ? 2 : 1;
  for (size_t i = 0; i < dims; ++i) {
    uint64_t dim;
    std::memcpy(&dim, payload.data() + Container::kFixedBytes + 8 * i, sizeof dim);
    values *= dim;
  }
  const uint64_t blocks = (values + bounded::kBlockValues - 1) / bounded::kBlockValues;
  if (blocks > (payload.size() - head) / 4) return;
  head += 4 * blocks;
  Block covered(payload.begin(), payload.begin() + 8);
  covered.insert(covered.end(), payload.begin() + 12,
                 payload.begin() + static_cast<std::ptrdiff_t>(head));
  uint64_t end = head;
  for (uint64_t block = 0; block < blocks; ++block) {
    uint32_t bytes;
    std::memcpy(&bytes, payload.data() + head - 4 * (blocks - block), sizeof bytes);
    end += bytes;
    if (end > payload.size()) return;
    const auto last = payload.begin() + static_cast<std::ptrdiff_t>(end);
    covered.insert(covered.end(), last - std::min<uint32_t>(bytes, 4), last);
  }
  const uint32_t crc = crc32c(covered.data(), covered.size());
  std::memcpy(payload.data() + 8, &crc, sizeof crc);
}

void read_container(Input& input) {
  const bool mended = input.flip(), ours = input.flip();
  Block payload(input.left());
  input.fill(payload.data(), payload.size());
  if (ours && payload.size() >= 16) {
    const uint8_t begin[] = {'C', 'G', 'X', 'B', 1};
    std::memcpy(payload.data(), begin, sizeof begin);
    const uint32_t block_bits = bounded::kBlockBits;
    std::memcpy(payload.data() + 12, &block_bits, sizeof block_bits);
  }
  if (mended) mend(payload);
  const ExactBytes exact(payload, 3);
  try {
    const OpenContainer open = OpenContainer::read(exact.span());
    // Accepted: then it is what a writer of this header makes, and its blocks fill the rest.
    const Container& header = open.header;
    CHECK(open.starts.size() == header.blocks() + 1 && open.starts.back() == payload.size());
    std::vector<std::span<const std::byte>> blocks;
    for (size_t k = 1; k < open.starts.size(); ++k) {
      CHECK(open.starts[k] >= open.starts[k - 1]);
      blocks.push_back(
          std::span(payload).subspan(open.starts[k - 1], open.starts[k] - open.starts[k - 1]));
    }
    const Block head = header.write(blocks);
    CHECK(head.size() == open.starts[0] && std::equal(head.begin(), head.end(), payload.begin()));
  } catch (const PayloadError& error) {
    CHECK(contains(error.what(), "payload"), error.what());
  }
}

// What decoding a block makes: values, or the text of the error.
std::pair<Block, std::string> outcome(const std::shared_ptr<const Maps>& maps, const Block& block,
                                      const Block& content, size_t n) {
  try {
    return {decode_block(maps, block, content, n), ""};
  } catch (const PayloadError& error) {
    return {{}, error.what()};
  }
}

// How many of four packed codes stand for a symbol of the list.
int listed_by(std::byte quad) {
  const auto codes = static_cast<unsigned>(quad);
  return std::popcount(codes & codes >> 1 & 0x55);
}

// A header whose fields are mostly those that the format allows.
BlockHeader take_header(Input& input, const Maps& maps, size_t n) {
  const DType element = maps.element();
  const int word_bits = size_of(element) == 8 ? 64 : 32;
  BlockHeader header;
  header.map = input.flip() ? maps.bounded() : bounded::Map::kOrder;
  header.predictor = static_cast<bounded::Predictor>(input.below(5));
  header.low = input.flip() ? bounded::LowBits::kCoded : bounded::LowBits::kPlanes;
  header.compressed = input.flip();
  header.width = static_cast<int>(input.below(static_cast<size_t>(word_bits - 7)));
  if (header.low == bounded::LowBits::kCoded) header.width = header.width / 8 * 8;
  if (header.width == 0) header.low = bounded::LowBits::kPlanes;
  header.shift =
      header.map == bounded::Map::kOrder ? static_cast<int>(input.below(8 * size_of(element))) : 0;
  header.base = input.flip() ? static_cast<int64_t>(input.below(512)) - 256 : input.take<int64_t>();
  if (word_bits == 32) header.base = static_cast<int32_t>(header.base);
  const uint64_t any = input.take<uint64_t>();
  if (header.map == bounded::Map::kGrid) {
    header.step = input.flip() ? maps.bound() : std::bit_cast<double>(any);
  } else if (header.map == bounded::Map::kLogGrid) {
    header.origin = static_cast<int64_t>(any % 2100) - 1030;
  } else if (header.map == bounded::Map::kOrder && input.flip()) {
    header.origin = static_cast<int64_t>(any >> 1 >> header.shift);
  }
  header.signed_zero = input.below(4) == 0 && header.map != bounded::Map::kOrder &&
                       header.predictor != bounded::Predictor::kCurve;
  header.quads = input.below(4) == 0;
  if (header.quads) header.center = input.take<uint8_t>();
  header.outliers = static_cast<uint32_t>(input.below(n + 2) / (1 + input.below(200)));
  header.specials = static_cast<uint32_t>(input.below(n + 2) / (1 + input.below(200)));
  return header;
}

void decode_any(Input& input) {
  BoundKind kind;
  const auto maps = take_maps(input, &kind);
  if (maps == nullptr) return;
  const size_t n = 1 + input.below(2600);
  Block block, content;
  if (input.flip()) {
    block.resize(input.left());
    input.fill(block.data(), block.size());
  } else {
    BlockHeader header = take_header(input, *maps, n);
    Block quads(header.quads ? bounded::quad_bytes(n) : 0);
    for (std::byte& quad : quads) {
      quad = input.take<std::byte>();
      // As long a list as these codes say; now and then one that is not.
      header.listed = static_cast<uint16_t>(header.listed + listed_by(quad));
    }
    if (header.quads && input.below(8) == 0) ++header.listed;
    const bounded::BlockSizes sizes(header, maps->element(), n);
    const size_t off_by = input.below(16) == 0 ? input.below(9) : 0;
    content.resize(sizes.content + off_by);
    header.coded = static_cast<uint32_t>(header.compressed ? input.below(5) : content.size());
    block.resize(BlockHeader::kBytes + header.coded + sizes.low + bounded::kCrcBytes);
    header.write(block.data());
    // Symbols first: they say more than low bits. Few of 255, unless the input has them.
    for (std::byte& symbol : content) {
      symbol = input.left() > 0 ? input.take<std::byte>() : std::byte{128};
    }
    std::copy_n(quads.begin(), std::min(quads.size(), content.size()), content.begin());
    std::byte* at = block.data() + BlockHeader::kBytes;
    if (!header.compressed) at = std::copy(content.begin(), content.end(), at);
    input.fill(at, static_cast<size_t>(block.data() + block.size() - at) - bounded::kCrcBytes);
  }
  if (block.size() >= bounded::kCrcBytes && input.below(16) != 1) seal(block);
  std::optional<std::pair<Block, std::string>> first;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const auto found = outcome(maps, block, content, n);
    if (!first) first = found;
    CHECK(found.second == first->second, level, ": ", found.second, ", not ", first->second);
    CHECK(found.first == first->first, "other values at level ", level);
  }
}

void encode_any(Input& input) {
  BoundKind kind;
  const auto maps = take_maps(input, &kind);
  if (maps == nullptr) return;
  const size_t n = 1 + input.below(5000), bytes = size_of(maps->element());
  // Long runs from short inputs: each value is the one a period before, a little changed.
  const uint64_t slope = input.below(4);
  const size_t given = std::min(n * bytes, input.left() / bytes * bytes);
  const size_t period = given == 0 ? bytes : given;
  Block x(n * bytes);
  input.fill(x.data(), period);
  for (size_t at = period; at < x.size(); at += bytes) {
    const uint64_t bits = raw_bits(maps->element(), x.data() + at - period) + slope;
    std::memcpy(x.data() + at, &bits, bytes);
  }
  if (maps->element() == DType::kBool) {
    for (std::byte& value : x) value &= std::byte{1};
  }
  check_round_trip(maps, kind, x,
                   str_of("element ", static_cast<int>(maps->element()), ", kind ",
                          static_cast<int>(kind), ", bound ", maps->bound(), ", n ", n));
}

}  // namespace

void fuzz_bounded(const uint8_t* data, size_t size) {
  Input input(data, size);
  switch (input.below(3)) {
    case 0:
      read_container(input);
      break;
    case 1:
      decode_any(input);
      break;
    default:
      encode_any(input);
  }
}

}  // namespace cgx::native
