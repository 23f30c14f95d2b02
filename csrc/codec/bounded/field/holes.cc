#include "codec/bounded/field/holes.h"

#include <algorithm>
#include <bit>
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

// What is written down of each place: whether it is a hole, or differs from the one `distance` before.
std::vector<uint8_t> marks_of(const std::vector<uint8_t>& holes, size_t distance) {
  std::vector<uint8_t> marks = holes;
  if (distance == 0) return marks;
  const uint8_t *const some = holes.data() + distance, *const before = holes.data();
  uint8_t* const out = marks.data() + distance;
#pragma GCC ivdep
  for (size_t i = 0; i < holes.size() - distance; ++i) out[i] = some[i] ^ before[i];
  return marks;
}

// Runs of equal marks.
size_t runs_of(const std::vector<uint8_t>& marks) {
  size_t runs = 1;
  for (size_t i = 1; i < marks.size(); ++i) runs += marks[i] != marks[i - 1] ? 1 : 0;
  return runs;
}

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
  const std::vector<uint8_t> marks = marks_of(holes, distance);
  const auto take = [&](size_t i) {
    if (marks[i] == now) return;
    add(i - begun);
    begun = i;
    now ^= 1;
  };
  size_t i = 0;
  for (; i + 8 <= marks.size(); i += 8) {
    // Eight at once: where each differs from the one before.
    uint64_t some;
    std::memcpy(&some, &marks[i], sizeof some);
    uint64_t changed = some ^ (some << 8 | now);
    for (; changed != 0; changed &= changed - 1) {
      take(i + static_cast<size_t>(std::countr_zero(changed)) / 8);
    }
  }
  for (; i < marks.size(); ++i) take(i);
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
  constexpr Alike kWays[] = {Alike::kPlaces, Alike::kRows, Alike::kPlanes};
  const auto possible = [&](Alike alike) { return back(alike, geometry) < n; };
  size_t runs[std::size(kWays)] = {}, fewest = SIZE_MAX;
  for (size_t way = 0; way < std::size(kWays); ++way) {
    if (!possible(kWays[way])) continue;
    runs[way] = runs_of(marks_of(is_hole, back(kWays[way], geometry)));
    fewest = std::min(fewest, runs[way]);
  }
  // Long runs take four bytes, so the fewest runs are not always the shortest.
  std::vector<uint8_t> lengths;
  Alike best = Alike::kNone;
  for (size_t way = 0; way < std::size(kWays); ++way) {
    if (!possible(kWays[way]) || runs[way] > 2 * fewest) continue;
    std::vector<uint8_t> found = lengths_of(is_hole, back(kWays[way], geometry));
    if (best != Alike::kNone && found.size() >= lengths.size()) continue;
    lengths = std::move(found);
    best = kWays[way];
  }
  out.push_back(static_cast<std::byte>(best));
  out.push_back(static_cast<std::byte>(fills.size()));
  for (const uint64_t bits : fills) {
    out.resize(out.size() + size_of(element));
    put_bits(element, out.data() + out.size() - size_of(element), 0, bits);
  }
  append_number(out, lengths.size());
  write_coded(lengths, out);
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
  if (is_hole.empty()) return;
  if (fill_of.empty()) {
    with_bits(element, [&]<typename Bits>() {
      // By a choice and not by a branch, which nobody can predict.
      const auto fill = static_cast<Bits>(fills[0]);
      for (size_t i = 0; i < is_hole.size(); ++i) {
        const auto value = get<Bits>(x, i * sizeof(Bits));
        bounded::put(x, i * sizeof(Bits), is_hole[i] != 0 ? fill : value);
      }
    });
    return;
  }
  size_t hole = 0;
  for (size_t i = 0; i < is_hole.size(); ++i) {
    if (is_hole[i] == 0) continue;
    put_bits(element, x, i, fills[fill_of[hole]]);
    ++hole;
  }
}

}  // namespace cgx::bounded::field
