// Places of a field that have no value of it: land in a map of the sea, NaN, a number such as 1e20.
//
// Which places these are is written as lengths of runs, of places that are alike, by turns: first
// those that are no holes. "Alike" is said of the places themselves, or of whether each is as the one a
// row or a plane before, whatever makes the shortest lengths.
//
//     1      0: there are no holes, and nothing follows; 1: places themselves; 2: of rows; 3: of planes
//     1      how many numbers holes have, 1 to 16; and these, with the bits of the values
//     ...    number of bytes of the lengths (bytes.h), and of their coded bytes; these: ans/windowed.h
//     ...    of more than one number: which one each hole has, a byte, coded like the lengths
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/element.h"
#include "codec/bounded/field/geometry.h"

namespace cgx::bounded::field {

inline constexpr size_t kMostFills = 16;

struct Holes {
  std::vector<uint8_t> is_hole;  // by value of the block, 0 or 1; empty: there are none
  std::vector<uint64_t> fills;   // bits of their numbers
  std::vector<uint8_t> fill_of;  // of each hole; empty where there is one number
  size_t count = 0;

  /// n: values of the block.
  void write(const Geometry& geometry, DType element, size_t n, std::vector<std::byte>& out) const;
  /// PayloadError.
  static Holes read(const Geometry& geometry, DType element, size_t n,
                    std::span<const std::byte>& in);
  /// Puts their numbers to their places.
  void put(DType element, std::byte* x) const;
};

}  // namespace cgx::bounded::field
