// Fields of the error-bounded compressor, of any shape and of hard numbers. For the native tests and
// for the fuzzer.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "base/float_mode.h"
#include "bounded_blocks.h"
#include "codec/bounded/field/coded.h"
#include "data.h"

namespace cgx::native {

using bounded::field::Decoded;
using bounded::field::FieldDecoder;
using bounded::field::FieldEncoder;
using bounded::field::Geometry;
using bounded::field::Kind;

/// What a field is made of. Elements have numbers of 4 or 8 bytes where they are no words.
template <typename T>
struct Field {
  Kind kind = Kind::kExact;
  Geometry geometry;
  DType element = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  double step = 0, bound = 0;
  T middle = 0;
  std::vector<T> numbers;
  Block values;  // with bits of their own, for escapes
  bounded::field::Holes holes;
  std::vector<uint8_t> escapes;  // empty: none

  size_t n() const { return numbers.size(); }
  bool is_hole(size_t i) const { return !holes.is_hole.empty() && holes.is_hole[i] != 0; }
};

inline constexpr int kNumberPatterns = 8;

/// n numbers of one of kNumberPatterns kinds: whole and small enough for words, or any that are finite.
template <typename T>
std::vector<T> field_numbers(const Geometry& geometry, size_t n, bool whole, int pattern,
                             Random& random) {
  const double most = !whole ? 1e30 : sizeof(T) == 4 ? 0x1p20 : 0x1p49;
  std::vector<T> x(n);
  double walk = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto place = static_cast<double>((geometry.start + i) % geometry.width);
    const auto row = static_cast<double>((geometry.start + i) / geometry.width);
    const double unit = random.signed_unit();
    double value = 0;
    switch (pattern) {
      case 0:
        value = 1000 * std::sin(place / 5) * std::cos(row / 7) + 3 * unit;
        break;
      case 1:
        value = walk += 5 * unit;
        break;
      case 2:
        value = 200 * unit;
        break;
      case 3:
        value = random(29) == 0 ? most * unit : unit;
        break;
      case 4:
        value = 7;
        break;
      case 5:
        value = random(2) == 0 ? most : -most;
        break;
      case 6:
        value = random(40) == 0 ? most : -most;
        break;
      default: {
        // Any bits.
        if constexpr (sizeof(T) == 4) {
          value = static_cast<double>(__builtin_bit_cast(float, static_cast<uint32_t>(random())));
        } else {
          value = __builtin_bit_cast(double, random());
        }
        if (!std::isfinite(value)) value = 0;
        if (whole) value = std::fmod(value, most);
      }
    }
    x[i] = static_cast<T>(whole ? std::nearbyint(value) : value);
  }
  return x;
}

/// A random field of n numbers. element: of words. holes: of how many values one has no number, 0: none. So for escapes.
template <typename T>
Field<T> make_field(Kind kind, const Geometry& geometry, size_t n, int pattern, size_t holes,
                    size_t escapes, Random& random, std::optional<DType> element = {}) {
  Field<T> made;
  made.kind = kind;
  made.geometry = geometry;
  if (kind == Kind::kWords) {
    made.element = element.value_or(sizeof(T) == 4 ? DType::kFloat16 : DType::kInt64);
  }
  if (kind == Kind::kGrid) {
    made.bound = std::ldexp(1 + random.signed_unit() / 3, static_cast<int>(random(30)) - 20);
    made.step = made.bound * (1.5 + random.signed_unit() / 2);
  }
  made.numbers = field_numbers<T>(geometry, n, kind == Kind::kWords, pattern, random);
  made.middle = made.numbers[random(n)];
  const size_t bytes = size_of(made.element);
  made.values.resize(n * bytes);
  for (std::byte& byte : made.values) byte = static_cast<std::byte>(random());
  if (kind != Kind::kWords) std::memcpy(made.values.data(), made.numbers.data(), n * bytes);
  auto& gone = made.holes;
  if (holes > 0) {
    gone.is_hole.resize(n);
    gone.fills.resize(1 + random(bounded::field::kMostFills));
    for (uint64_t& fill : gone.fills) fill = random() & (~uint64_t{0} >> (64 - 8 * bytes));
    uint8_t now = 0;
    for (size_t i = 0; i < n; ++i) {
      if (random(holes) == 0) now ^= 1;
      gone.is_hole[i] = now;
      if (now == 0) continue;
      ++gone.count;
      if (gone.fills.size() > 1) {
        gone.fill_of.push_back(static_cast<uint8_t>(random(gone.fills.size())));
      }
    }
    if (gone.count == 0) gone = {};
  }
  if (escapes > 0) {
    made.escapes.resize(n);
    for (uint8_t& escape : made.escapes) escape = random(escapes) == 0 ? 1 : 0;
  }
  return made;
}

/// The field behind its block's map, at the level in force.
template <typename T>
Block encode_field(FieldEncoder<T>& encoder, const Field<T>& field) {
  bounded::field::Numbers<T> from;
  from.kind = field.kind;
  from.geometry = field.geometry;
  from.step = field.step;
  from.bound = field.bound;
  from.middle = field.middle;
  from.n = field.n();
  from.numbers = field.numbers.data();
  from.values = field.values.data();
  from.element = field.element;
  from.holes = &field.holes;
  from.escapes = field.escapes.empty() ? nullptr : field.escapes.data();
  Block made;
  encoder.encode(from, made);
  return made;
}

/// All that a decoder gives, or the text of its error.
template <typename T>
struct DecodedField {
  std::string error;
  Block numbers;                          // 0 where it has none
  std::vector<uint8_t> is_hole, escaped;  // by value
  Block escapes;                          // values, in the order of the block
  Block holes;                            // values that have holes only

  bool operator==(const DecodedField&) const = default;
};

template <typename T>
DecodedField<T> decode_field(FieldDecoder<T>& decoder, const Block& block, DType element,
                             size_t n) {
  DecodedField<T> made;
  const ExactBytes in(block, block.size() % 3);
  const FloatMode mode;
  try {
    const Decoded<T> found = decoder.decode(in.span(), element, n);
    const size_t bytes = size_of(element);
    made.escaped.resize(n);
    made.escapes.resize(n * bytes);
    for (size_t k = 0; k < found.escapes.size(); ++k) {
      const size_t place = found.escapes[k];
      CHECK(place < n && made.escaped[place] == 0, "an escape at ", place);
      made.escaped[place] = 1;
      std::memcpy(made.escapes.data() + place * bytes, found.escaped.data() + k * bytes, bytes);
    }
    made.is_hole = found.holes.is_hole;
    made.holes.resize(n * bytes);
    found.holes.put(element, made.holes.data());
    made.numbers.resize(n * sizeof(T));
    for (size_t i = 0; i < n; ++i) {
      const bool hole = !made.is_hole.empty() && made.is_hole[i] != 0;
      CHECK(!hole || made.escaped[i] == 0, "a hole that is an escape");
      if (hole || made.escaped[i] != 0) continue;
      std::memcpy(made.numbers.data() + i * sizeof(T), found.numbers + i, sizeof(T));
    }
  } catch (const bounded::PayloadError& error) {
    made = {};
    made.error = error.what();
    CHECK(!made.error.empty());
  }
  return made;
}

/// What comes back is what went in, or within the bound.
template <typename T>
void check_decoded(const Field<T>& field, const DecodedField<T>& found, const std::string& what) {
  CHECK(found.error.empty(), what, ": ", found.error);
  CHECK(found.is_hole == field.holes.is_hole, what);
  const size_t bytes = size_of(field.element);
  Block holes(field.n() * bytes);
  field.holes.put(field.element, holes.data());
  CHECK(holes == found.holes, what);
  for (size_t i = 0; i < field.n(); ++i) {
    if (field.is_hole(i)) continue;
    if (found.escaped[i] != 0) {
      CHECK(std::memcmp(found.escapes.data() + i * bytes, field.values.data() + i * bytes, bytes) ==
                0,
            what, ", escape ", i);
      continue;
    }
    CHECK(field.escapes.empty() || field.escapes[i] == 0, what, ": no escape at ", i);
    T y;
    std::memcpy(&y, found.numbers.data() + i * sizeof(T), sizeof y);
    const T x = field.numbers[i];
    if (field.kind == Kind::kExact) {
      CHECK(std::memcmp(&x, &y, sizeof x) == 0, what, ", value ", i, ": ", x, " became ", y);
    } else if (field.kind == Kind::kWords) {
      CHECK(x == y, what, ", value ", i, ": ", x, " became ", y);
    } else {
      const double off = std::fabs(static_cast<double>(x) - static_cast<double>(y));
      CHECK(off <= field.bound, what, ", value ", i, ": ", x, " became ", y,
            ", allowed: ", field.bound);
    }
  }
}

/// Alike at all levels, and as it should be. Returns the block.
template <typename T>
Block check_field(FieldEncoder<T>& encoder, FieldDecoder<T>& decoder, const Field<T>& field,
                  const std::string& what) {
  std::optional<Block> first;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const FloatMode mode;
    const Block made = encode_field(encoder, field);
    if (!first) first = made;
    CHECK(made == *first, what, ": another field at level ", level);
    check_decoded(field, decode_field(decoder, made, field.element, field.n()),
                  what + " at level " + level);
  }
  return *first;
}

/// Any bytes are values or an error, alike at all levels.
template <typename T>
bool check_any_field(FieldDecoder<T>& decoder, const Block& block, DType element, size_t n,
                     const std::string& what) {
  std::optional<DecodedField<T>> first;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    const auto found = decode_field(decoder, block, element, n);
    if (!first) first = found;
    CHECK(found == *first, what, ", level ", level, ": ", found.error, ", not ", first->error);
  }
  return first->error.empty();
}

}  // namespace cgx::native
