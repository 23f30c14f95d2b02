#include "codec/bounded/field/holes.h"

#include <algorithm>
#include <cstring>

#include "codec/bounded/ans/windowed.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded::field {
namespace {

enum class Alike : uint8_t { kNone = 0, kPlaces = 1, kRows = 2, kPlanes = 3 };

// How far back the place is that each is compared with; 0: with none.
size_t back(Alike alike, const Geometry& geometry) {
  return alike == Alike::kRows ? geometry.width : alike == Alike::kPlanes ? geometry.plane() : 0;
}

constexpr uint8_t kLong = 255;  // a length from here on takes three bytes more

std::vector<uint8_t> lengths_of(const std::vector<uint8_t>& holes, size_t distance) {
  std::vector<uint8_t> lengths;
  const auto add = [&](size_t length) {
    lengths.push_back(static_cast<uint8_t>(std::min<size_t>(length, kLong)));
    if (length < kLong) return;
    for (int shift = 0; shift < 24; shift += 8) {
      lengths.push_back(static_cast<uint8_t>(length >> shift));
    }
  };
  uint8_t now = 0;
  size_t begun = 0;
  for (size_t i = 0; i < holes.size(); ++i) {
    if (i >= distance && i + 8 <= holes.size()) {
      // Eight at once.
      uint64_t some, others = 0;
      std::memcpy(&some, &holes[i], sizeof some);
      if (distance > 0) std::memcpy(&others, &holes[i - distance], sizeof others);
      if ((some ^ others) == now * uint64_t{0x0101010101010101}) {
        i += 7;
        continue;
      }
    }
    const uint8_t before = distance > 0 && i >= distance ? holes[i - distance] : 0;
    if ((holes[i] ^ before) == now) continue;
    add(i - begun);
    begun = i;
    now ^= 1;
  }
  add(holes.size() - begun);
  return lengths;
}

void write_coded(const std::vector<uint8_t>& bytes, std::vector<std::byte>& out) {
  std::vector<std::byte> coded;
  ans::Windowed windows;
  windows.look(bytes.data(), bytes.size(), 0);
  windows.write(coded);
  append_number(out, coded.size());
  out.insert(out.end(), coded.begin(), coded.end());
}

std::vector<uint8_t> read_coded(size_t n, std::span<const std::byte>& in) {
  const uint64_t bytes = take_number(in);
  std::vector<uint8_t> out(n);
  ans::read_windowed(take_bytes(in, bytes), n, 0, out.data());
  return out;
}

}  // namespace

void Holes::write(const Geometry& geometry, DType element, size_t n,
                  std::vector<std::byte>& out) const {
  if (is_hole.empty()) {
    out.push_back(std::byte{0});
    return;
  }
  std::vector<uint8_t> shortest;
  Alike best = Alike::kNone;
  for (const Alike alike : {Alike::kPlaces, Alike::kRows, Alike::kPlanes}) {
    const size_t distance = back(alike, geometry);
    if (alike != Alike::kPlaces && distance >= n) continue;
    std::vector<uint8_t> lengths = lengths_of(is_hole, distance);
    if (best != Alike::kNone && lengths.size() >= shortest.size()) continue;
    shortest = std::move(lengths);
    best = alike;
  }
  out.push_back(static_cast<std::byte>(best));
  out.push_back(static_cast<std::byte>(fills.size()));
  for (const uint64_t bits : fills) {
    out.resize(out.size() + size_of(element));
    put_bits(element, out.data() + out.size() - size_of(element), 0, bits);
  }
  append_number(out, shortest.size());
  write_coded(shortest, out);
  if (fills.size() > 1) write_coded(fill_of, out);
}

Holes Holes::read(const Geometry& geometry, DType element, size_t n,
                  std::span<const std::byte>& in) {
  Holes holes;
  const auto alike = take<uint8_t>(in);
  if (alike == 0) return holes;
  const auto count = take<uint8_t>(in);
  if (alike > static_cast<uint8_t>(Alike::kPlanes) || count < 1 || count > kMostFills) {
    throw PayloadError(str_of("holes are written in the way ", static_cast<int>(alike), " with ",
                              static_cast<int>(count), " numbers, allowed: 0 to 3, 1 to ",
                              kMostFills));
  }
  for (size_t k = 0; k < count; ++k) {
    holes.fills.push_back(bits_at(element, take_bytes(in, size_of(element)).data(), 0));
  }
  const size_t distance = back(static_cast<Alike>(alike), geometry);
  const uint64_t bytes = take_number(in);
  // A run takes a byte or, if it is long, four: no more than this are needed.
  if (bytes > n + 4) {
    throw PayloadError(str_of("lengths of holes have ", bytes, " bytes, allowed: up to ", n + 4));
  }
  const std::vector<uint8_t> lengths = read_coded(bytes, in);
  holes.is_hole.resize(n);
  size_t at = 0, i = 0;
  for (uint8_t now = 0; i < lengths.size(); now ^= 1) {
    size_t length = lengths[i++];
    if (length == kLong) {
      if (lengths.size() - i < 3) throw PayloadError("lengths of holes are cut");
      length = size_t{lengths[i]} | size_t{lengths[i + 1]} << 8 | size_t{lengths[i + 2]} << 16;
      i += 3;
    }
    if (length > n - at) throw PayloadError("lengths of holes go on behind the last value");
    uint8_t* const is_hole = holes.is_hole.data();
    for (const size_t end = at + length; at < end;) {
      // Of what is `distance` before, no more than is there already.
      const bool before = distance > 0 && at >= distance;
      const size_t known = distance == 0 ? end : before ? at + distance : distance;
      const size_t some = std::min(end, known) - at;
      if (!before) {
        std::fill_n(is_hole + at, some, now);
      } else {
        std::transform(is_hole + at - distance, is_hole + at - distance + some, is_hole + at,
                       [now](uint8_t hole) { return static_cast<uint8_t>(hole ^ now); });
      }
      at += some;
    }
  }
  if (at != n) throw PayloadError("lengths of holes end before the last value");
  holes.count = static_cast<size_t>(std::count(holes.is_hole.begin(), holes.is_hole.end(), 1));
  if (count > 1) {
    holes.fill_of = read_coded(holes.count, in);
    for (const uint8_t which : holes.fill_of) {
      if (which >= count) throw PayloadError("a hole has a number that is not listed");
    }
  }
  return holes;
}

void Holes::put(DType element, std::byte* x) const {
  size_t hole = 0;
  for (size_t i = 0; i < is_hole.size(); ++i) {
    if (is_hole[i] == 0) continue;
    put_bits(element, x, i, fills[fill_of.empty() ? 0 : fill_of[hole]]);
    ++hole;
  }
}

}  // namespace cgx::bounded::field
