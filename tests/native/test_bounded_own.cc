// Blocks that bring their map and blocks without words: they come back as they were, and whatever their bytes become, with checksums that are right, a decoder gives values or a
// PayloadError. For sanitizers; CGX_MUTATIONS is how many are tried.
#include <cstdlib>

#include "bounded_blocks.h"
#include "data.h"

namespace cgx::native {
namespace {

using bounded::BlockHeader;
using bounded::Map;
using bounded::Maps;
using bounded::PayloadError;
using MapsPtr = std::shared_ptr<const Maps>;

constexpr size_t kWidth = 60;

// Value i of one of the kinds that these maps are for.
double value_of(int kind, size_t i, Random& random) {
  const auto row = static_cast<double>(i / kWidth);
  const double wave = std::sin(static_cast<double>(i % kWidth) * 0.1) + std::cos(row * 0.07);
  switch (kind) {
    case 0:  // a palette
      return 0.1 * static_cast<double>(random(9)) * static_cast<double>(random(9));
    case 1:  // decimal places
      return std::nearbyint(random.signed_unit() * 3000) / 100;
    case 2:  // rows of multiples
      return std::nearbyint(random.signed_unit() * 90) *
             static_cast<double>(float(0.01 + 1e-4 * row));
    case 3:  // mostly one
      return i % 190 == 5 ? random.signed_unit() : 2.5;
    case 4:  // a palette as a field
      return 0.37 * std::nearbyint(wave * 9) * std::nearbyint(wave * 9);
    case 5:  // decimal places as a field
      return std::nearbyint(wave * 500) / 100;
    case 6:  // values that are not finite, among those that fall: no order has NaN
      return i % 7 == 3 ? NAN : i % 32 == 9 ? -INFINITY : -static_cast<double>(i % 32);
    default:  // a field with holes
      return i % 50 < 9 ? 1e20 : wave * 1000 + random.signed_unit();
  }
}
constexpr int kKinds = 8;

Block values_of(DType element, int kind, size_t n, Random& random) {
  Block x(n * size_of(element));
  for (size_t i = 0; i < n; ++i) {
    const double value = value_of(kind, i, random);
    if (element == DType::kFloat64) {
      std::memcpy(x.data() + 8 * i, &value, 8);
    } else if (element == DType::kFloat32) {
      const auto narrow = static_cast<float>(value);
      std::memcpy(x.data() + 4 * i, &narrow, 4);
    } else {
      const auto whole =
          static_cast<int16_t>(std::isfinite(value) ? std::fmod(value * 100, 3e4) : 7);
      std::memcpy(x.data() + 2 * i, &whole, 2);
    }
  }
  return x;
}

struct Made {
  MapsPtr maps;
  size_t n = 0;
  Block block, content;  // content: of the frame, of which one byte is there
};

// The block in each of the forms that an encoder can give it.
std::vector<Made> forms_of(const MapsPtr& maps, const Block& x, size_t n) {
  std::vector<Made> all;
  const auto add = [&](std::span<const std::byte> block, std::span<const std::byte> content) {
    all.push_back({maps, n, {block.begin(), block.end()}, {content.begin(), content.end()}});
  };
  bounded::Encoder encoder(maps);
  const std::byte frame[] = {std::byte{1}};
  encoder.place(bounded::field::geometry_of(std::vector<uint64_t>{n / kWidth + 1, kWidth}, 0, n));
  encoder.encode(x.data(), n);
  add(encoder.finish({}), {});
  for (const auto way :
       {bounded::Rearranged::kNot, bounded::Rearranged::kBytes, bounded::Rearranged::kBits}) {
    const auto bytes = encoder.rearranged(way);
    if (!bytes.empty()) add(encoder.finish_bytes(way, frame), bytes);
  }
  encoder.encode(x.data(), n);
  if (!encoder.content().empty()) {
    const Block content(encoder.content().begin(), encoder.content().end());
    add(encoder.finish(frame), content);
    encoder.encode(x.data(), n);
    if (encoder.windowed() > 0) {
      encoder.use_windows();
      add(encoder.finish({}), {});
    }
  }
  // Without rows it is no field.
  encoder.place({});
  encoder.encode(x.data(), n);
  add(encoder.finish({}), {});
  return all;
}

std::vector<Made> all_made() {
  Random random(5);
  std::vector<Made> all;
  size_t found[11] = {};
  for (const DType element : {DType::kFloat32, DType::kFloat64, DType::kInt16}) {
    const auto maps = std::make_shared<const Maps>(element, BoundKind::kLossless, 0);
    for (int kind = 0; kind < kKinds; ++kind) {
      for (const size_t n : {size_t{1600}, size_t{2401}}) {
        const Block x = values_of(element, kind, n, random);
        for (Made& made : forms_of(maps, x, n)) {
          CHECK(decode_block(maps, made.block, made.content, n) == x, "element ",
                static_cast<int>(element), ", kind ", kind, ", n ", n);
          ++found[static_cast<size_t>(made.block[0])];
          all.push_back(std::move(made));
        }
      }
    }
  }
  for (const Map map : {Map::kField, Map::kPalette, Map::kMultiples, Map::kMostly, Map::kBytes}) {
    CHECK(found[static_cast<size_t>(map)] > 0, "no block with the map ", static_cast<int>(map));
  }
  return all;
}

size_t mutations() {
  const char* const text = std::getenv("CGX_MUTATIONS");
  return text == nullptr ? 2000 : std::strtoull(text, nullptr, 10);
}

// A few bytes are others; more often at the ends, where headers and maps are. Some are added, or gone.
void alter(Block& bytes, size_t from, Random& random) {
  for (size_t times = 1 + random(3); times > 0 && bytes.size() > from; --times) {
    const size_t room = bytes.size() - from, near = std::min<size_t>(room, 48);
    const size_t at = from + (random(3) == 0   ? random(room)
                              : random(2) == 0 ? random(near)
                                               : room - 1 - random(near));
    const auto any = static_cast<std::byte>(random());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random(8)) {
      case 0:
        bytes.insert(place, any);
        break;
      case 1:
        bytes.erase(place);
        break;
      case 2:
        bytes[at] = random(2) == 0 ? std::byte{0} : std::byte{255};
        break;
      case 3:
        bytes[at] ^= static_cast<std::byte>(1 << random(8));
        break;
      case 4:
        bytes[at] = static_cast<std::byte>(static_cast<int>(bytes[at]) + (random(2) == 0 ? 1 : -1));
        break;
      default:
        bytes[at] = any;
    }
  }
}

bool has_header(const Block& block) {
  const auto map = static_cast<Map>(block[0]);
  return map == Map::kOrder || map == Map::kPalette || map == Map::kMultiples;
}

// How many bytes the header says that a map has, and its coded part: as they are now.
void mend(Made& made, size_t grown) {
  if (made.block.size() < BlockHeader::kBytes || !has_header(made.block)) return;
  uint32_t coded;
  int64_t own;
  std::memcpy(&coded, made.block.data() + 32, 4);
  std::memcpy(&own, made.block.data() + 16, 8);
  coded += static_cast<uint32_t>(made.content.empty() ? grown : 0);
  own += static_cast<int64_t>(grown);
  std::memcpy(made.block.data() + 32, &coded, 4);
  if (static_cast<Map>(made.block[0]) != Map::kOrder) std::memcpy(made.block.data() + 16, &own, 8);
}

}  // namespace

TEST(bounded_own_maps_of_any_bytes) {
  const std::vector<Made> all = all_made();
  Random random(static_cast<uint32_t>(mutations()));
  size_t refused = 0, taken = 0;
  for (size_t round = 0; round < mutations(); ++round) {
    Made made = all[random(static_cast<uint32_t>(all.size()))];
    made.block.resize(made.block.size() - std::min(made.block.size(), bounded::kCrcBytes));
    if (made.block.empty()) continue;
    Block& part = !made.content.empty() && random(3) > 0 ? made.content : made.block;
    const size_t before = part.size();
    alter(part, part.data() == made.block.data() && random(4) > 0 ? 1 : 0, random);
    if (made.block.empty()) continue;
    if (random(4) > 0) mend(made, part.size() - before);
    made.block.resize(made.block.size() + bounded::kCrcBytes);
    seal(made.block);
    const size_t n = random(40) == 0 ? 1 + random(3000) : made.n;
    std::optional<std::pair<Block, std::string>> first;
    for (const std::string& level : simd_levels()) {
      const AtSimdLevel at(level);
      std::pair<Block, std::string> found;
      try {
        found.first = decode_block(made.maps, made.block, made.content, n);
      } catch (const PayloadError& error) {
        found.second = error.what();
      }
      if (!first) {
        first = found;
        ++(found.second.empty() ? taken : refused);
      }
      CHECK(found.second == first->second, "round ", round, ", level ", level, ": ", found.second,
            ", not ", first->second);
      CHECK(found.first == first->first, "round ", round, ": other values at level ", level);
    }
  }
  CHECK(refused > 0 && taken > 0, refused, " refused, ", taken, " taken");
}

}  // namespace cgx::native
