#include <bit>

#include "bounded_fields.h"
#include "bounded_whole.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/container.h"
#include "codec/bounded/field/promise.h"
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

// Where blocks of a payload end, as far as its table leads; the bytes of header and table, and how many
// values there are. Empty: these are not all there.
std::vector<uint64_t> ends_of(const Block& payload, size_t* head, uint64_t* count) {
  const auto version = static_cast<int>(payload[4]);
  std::span<const std::byte> in(payload);
  uint64_t values = static_cast<uint8_t>(payload[5]) >= 64 ? 2 : 1;
  const auto dims = static_cast<size_t>(payload[7]);
  std::vector<uint64_t> lengths;
  try {
    bounded::take_bytes(in, 12);
    const bool lossless = payload[6] == std::byte{0}, relative = payload[6] == std::byte{2};
    bounded::take_bytes(in, version < 3 ? 20 : (lossless ? 0 : 8) + (relative ? 8 : 0));
    for (size_t i = 0; i < dims; ++i) {
      values *= version < 3 ? bounded::take<uint64_t>(in) : bounded::take_number(in);
    }
    const uint64_t blocks = (values + bounded::kBlockValues - 1) / bounded::kBlockValues;
    for (uint64_t known = 0; known < blocks && known < 1 << 20; ++known) {
      if (version < 3) {
        lengths.push_back(bounded::take<uint32_t>(in));
      } else if (const uint64_t number = bounded::take_number(in); number > 0) {
        lengths.push_back(number - 1);
      } else {
        known += bounded::take_number(in) - 1;
      }
    }
  } catch (const PayloadError&) {
    return {};
  }
  *head = payload.size() - in.size();
  *count = values;
  uint64_t end = *head;
  for (uint64_t& length : lengths) {
    if (length > payload.size()) return {};
    length = end += length;
  }
  return lengths;
}

// The checksum of a payload whose header and table say where its blocks are, if they are there. Of
// version 3, what follows the blocks becomes zeros, as many as there must be, if they are not too many.
void mend(Block& payload) {
  if (payload.size() < 12) return;
  size_t head = 0;
  uint64_t values = 0;
  const std::vector<uint64_t> ends = ends_of(payload, &head, &values);
  if (head == 0 || (!ends.empty() && ends.back() > payload.size())) return;
  Block covered(payload.begin(), payload.begin() + 8);
  covered.insert(covered.end(), payload.begin() + 12,
                 payload.begin() + static_cast<std::ptrdiff_t>(head));
  uint64_t begin = head;
  for (const uint64_t end : ends) {
    const auto last = payload.begin() + static_cast<std::ptrdiff_t>(end);
    covered.insert(covered.end(),
                   last - static_cast<std::ptrdiff_t>(std::min<uint64_t>(end - begin, 4)), last);
    begin = end;
  }
  const uint32_t crc = crc32c(covered.data(), covered.size());
  std::memcpy(payload.data() + 8, &crc, sizeof crc);
  if (payload[4] != std::byte{3}) return;
  const int element = static_cast<uint8_t>(payload[5]) % 64;
  if (element < 1 || element > bounded::kLastElement || values > uint64_t{1} << 40) return;
  const uint64_t whole = values * size_of(bounded::element_of(element));
  const uint64_t least = (whole + (1 << 17) - 1) >> 17;
  payload.resize(begin);
  if (least <= 4096) payload.resize(std::max(begin, least));
}

// The same of a payload that is one frame: what is left behind its header.
void mend_frame(Block& payload) {
  std::span<const std::byte> in(payload);
  try {
    bounded::take_bytes(in, 12);
    const bool lossless = payload[6] == std::byte{0}, relative = payload[6] == std::byte{2};
    bounded::take_bytes(in, (lossless ? 0 : 8) + (relative ? 8 : 0));
    for (int dims = static_cast<uint8_t>(payload[7]); dims > 0; --dims) bounded::take_number(in);
    bounded::Whole::read(in);
  } catch (const PayloadError&) {
    return;
  }
  const auto form_end = payload.begin() + static_cast<std::ptrdiff_t>(payload.size() - in.size());
  const Block frame(in.begin(), in.end());
  payload.erase(form_end, payload.end());
  bounded::append_number(payload, frame.size());
  const size_t head = payload.size();
  payload.insert(payload.end(), frame.begin(), frame.end());
  bounded::append(payload, crc32c(frame.data(), frame.size()));
  Block covered(payload.begin(), payload.begin() + 8);
  covered.insert(covered.end(), payload.begin() + 12,
                 payload.begin() + static_cast<std::ptrdiff_t>(head));
  covered.insert(covered.end(), payload.end() - 4, payload.end());
  const uint32_t crc = crc32c(covered.data(), covered.size());
  std::memcpy(payload.data() + 8, &crc, sizeof crc);
}

// A payload that was read, from its header and its blocks, or its frame.
Block written_again(const OpenContainer& open, const Block& payload) {
  if (open.header.whole) {
    CHECK(open.places.size() == 1);
    const auto [begin, end] = open.places[0];
    return open.header.write_whole(std::span(payload).subspan(begin, end - begin));
  }
  std::vector<std::span<const std::byte>> blocks;
  Block body;
  uint64_t covered = 0;
  for (const auto& [begin, end] : open.places) {
    CHECK(begin <= end && end <= payload.size());
    blocks.push_back(std::span(payload).subspan(begin, end - begin));
    if (begin < covered) continue;  // as the one before
    body.insert(body.end(), blocks.back().begin(), blocks.back().end());
    covered = end;
  }
  Block made = open.header.write(blocks);
  made.insert(made.end(), body.begin(), body.end());
  made.resize(made.size() + open.header.padding(made.size()));
  return made;
}

void read_container(Input& input) {
  const bool mended = input.flip(), ours = input.flip();
  Block payload(input.left());
  input.fill(payload.data(), payload.size());
  if (ours && payload.size() >= 16) {
    const uint8_t begin[] = {'C', 'G', 'X', 'B',
                             static_cast<uint8_t>(1 + static_cast<uint8_t>(payload[11]) % 3)};
    std::memcpy(payload.data(), begin, sizeof begin);
    const uint32_t block_bits = bounded::kBlockBits;
    if (begin[4] < 3) std::memcpy(payload.data() + 12, &block_bits, sizeof block_bits);
  }
  if (mended && payload.size() > 5 && payload[4] == std::byte{3} && payload[5] >= std::byte{128}) {
    mend_frame(payload);
  } else if (mended) {
    mend(payload);
  }
  const ExactBytes exact(payload, 3);
  try {
    const OpenContainer open = OpenContainer::read(exact.span());
    // Accepted: then it is what a writer of this header makes, but for longer numbers.
    const Container& header = open.header;
    CHECK(header.whole || open.places.size() == header.blocks());
    const Block again = written_again(open, payload);
    if (header.version < 3) {
      CHECK(again == payload);
    } else {
      const OpenContainer other = OpenContainer::read(again);
      CHECK(other.places.size() == open.places.size() && other.header.shape == header.shape);
      CHECK(again.size() <= payload.size() && written_again(other, again) == again);
    }
  } catch (const PayloadError& error) {
    CHECK(contains(error.what(), "payload") || contains(error.what(), "block"), error.what());
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

void check_outcomes(const std::shared_ptr<const Maps>& maps, const Block& block,
                    const Block& content, size_t n) {
  std::optional<std::pair<Block, std::string>> first;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const auto found = outcome(maps, block, content, n);
    if (!first) first = found;
    CHECK(found.second == first->second, level, ": ", found.second, ", not ", first->second);
    CHECK(found.first == first->first, "other values at level ", level);
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
  check_outcomes(maps, block, content, n);
}

// Long runs from short inputs: each value is the one a period before, a little changed.
Block take_values(Input& input, DType element, size_t n) {
  if (n == 0) return {};
  const size_t bytes = size_of(element);
  const uint64_t slope = input.below(4);
  const size_t given = std::min(n * bytes, input.left() / bytes * bytes);
  const size_t period = given == 0 ? bytes : given;
  Block x(n * bytes);
  input.fill(x.data(), period);
  for (size_t at = period; at < x.size(); at += bytes) {
    const uint64_t bits = raw_bits(element, x.data() + at - period) + slope;
    std::memcpy(x.data() + at, &bits, bytes);
  }
  if (element == DType::kBool) {
    for (std::byte& value : x) value &= std::byte{1};
  }
  return x;
}

void encode_any(Input& input) {
  BoundKind kind;
  const auto maps = take_maps(input, &kind);
  if (maps == nullptr) return;
  const size_t n = 1 + input.below(5000);
  const Block x = take_values(input, maps->element(), n);
  const uint64_t shape[] = {n, 1 + n % 61, 1 + n % 83};
  const auto geometry = bounded::field::geometry_of(shape, n / 3, n);
  check_round_trip(maps, kind, x,
                   str_of("element ", static_cast<int>(maps->element()), ", kind ",
                          static_cast<int>(kind), ", bound ", maps->bound(), ", n ", n),
                   geometry);
}

// Bytes of a block are others, or missing, or more, at places that the input says.
void alter(Input& input, Block& block) {
  for (size_t left = 1 + input.below(3); left > 0 && !block.empty(); --left) {
    // Most are near the beginning: behind it are tokens.
    const size_t near = std::min<size_t>(block.size(), 150);
    const size_t place = input.flip() ? input.below(near) : input.take<uint16_t>() % block.size();
    const auto at = block.begin() + static_cast<std::ptrdiff_t>(place);
    switch (input.below(4)) {
      case 0:
        block.erase(at);
        break;
      case 1:
        block.insert(at, input.take<std::byte>());
        break;
      case 2:
        *at ^= static_cast<std::byte>(1 << input.below(8));
        break;
      default:
        *at = input.take<std::byte>();
    }
  }
}

template <typename T>
Block take_field(Input& input, Kind kind, DType element, const Geometry& geometry, size_t n) {
  Random random(input.take<uint16_t>());
  const auto pattern = static_cast<int>(input.below(kNumberPatterns));
  const size_t holes = input.below(3) * 9, escapes = input.below(3) * 9;
  FieldEncoder<T> encoder;
  FieldDecoder<T> decoder;
  const auto field = make_field<T>(kind, geometry, n, pattern, holes, escapes, random, element);
  return check_field(encoder, decoder, field, "a field");
}

// Blocks that an encoder has made, of fields and of windowed symbols, and then altered ones.
void decode_altered(Input& input) {
  BoundKind kind;
  const auto maps = take_maps(input, &kind);
  if (maps == nullptr) return;
  const DType element = maps->element();
  const size_t n = 1 + input.below(2600);
  Block block;
  if (input.flip() && n >= bounded::field::kLeastWidth) {
    // Rows that a field may have.
    const uint64_t shape[] = {n, 1 + input.below(60), 8 + input.below(70)};
    const Geometry geometry = bounded::field::geometry_of(shape, input.below(1000), n);
    const bool real = element == DType::kFloat32 || element == DType::kFloat64;
    block = {std::byte{6}};
    bool wide = element == DType::kFloat64;
    auto of = static_cast<Kind>(input.below(2));
    if (!real || maps->bounded() == bounded::Map::kLogGrid) {
      of = Kind::kWords;
      wide = input.flip();
      const auto map = input.flip() ? maps->bounded() : bounded::Map::kOrder;
      for (const int byte : {static_cast<int>(map), wide ? 8 : 4, 0}) {
        block.push_back(static_cast<std::byte>(byte));
      }
      bounded::append(block, int64_t{0});
    }
    const Block field = wide ? take_field<double>(input, of, element, geometry, n)
                             : take_field<float>(input, of, element, geometry, n);
    block.insert(block.end(), field.begin(), field.end());
  } else {
    const EncodedBlock made = encode_block(maps, take_values(input, element, n));
    block = made.windowed.empty() ? made.plain : made.windowed;
    block.resize(block.size() - std::min(block.size(), bounded::kCrcBytes));
  }
  alter(input, block);
  block.resize(block.size() + bounded::kCrcBytes);
  seal(block);
  check_outcomes(maps, block, {}, n);
}

// Frames of all values that an encoder has made, altered ones, and any others.
void whole_any(Input& input) {
  BoundKind kind;
  const auto maps = take_maps(input, &kind);
  if (maps == nullptr) return;
  const DType element = maps->element();
  const size_t n = input.below(3000);
  const size_t a = input.below(n + 1), b = input.below(n + 1);
  bounded::Whole whole;
  Block content;
  if (input.flip()) {
    const Block x = take_values(input, element, n);
    check_whole_round_trip(*maps, kind, x, std::min(a, b), std::max(a, b), "a tensor");
    auto made = bounded::words_of_all(*maps, x);
    if (!made) made = bounded::mostly_of_all(element, x);
    if (!made) return;
    whole = made->whole;
    content = std::move(made->content);
    alter(input, content);
  } else {
    whole.form = static_cast<bounded::Whole::Form>(input.below(3));
    whole.word_bytes = size_t{1} << input.below(3);
    whole.step = input.flip() ? maps->bound() : input.take<double>();
    content.resize(input.left());
    input.fill(content.data(), content.size());
  }
  const size_t words = whole.form == bounded::Whole::Form::kWords ? n * whole.word_bytes : 0;
  if (words <= content.size()) whole.others = content.size() - words;
  check_whole(*maps, whole, content, n, std::min(a, b), std::max(a, b));
}

}  // namespace

void fuzz_bounded(const uint8_t* data, size_t size) {
  Input input(data, size);
  // Inputs of the corpus begin with 0 to 3.
  switch (input.below(8)) {
    case 0:
      return read_container(input);
    case 1:
    case 6:
      return decode_any(input);
    case 2:
      return encode_any(input);
    case 3:
    case 7:
      return decode_altered(input);
    default:
      whole_any(input);
  }
}

}  // namespace cgx::native
