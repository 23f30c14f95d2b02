// Frames that hold all values of a tensor, without an entropy coder. For the native tests and for the
// fuzzer.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "bounded_blocks.h"
#include "codec/bounded/encode/whole.h"

namespace cgx::native {

/// Decodes a frame's content. Returns the values, or the text of the PayloadError. Checks that every SIMD
/// level, and decoding [first, last) alone, gives the same.
inline std::pair<Block, std::string> check_whole(const bounded::Maps& maps,
                                                 const bounded::Whole& whole, const Block& content,
                                                 size_t n, size_t first, size_t last) {
  const size_t bytes = size_of(maps.element());
  const ExactBytes held(content, content.size() % 5);
  const auto decode = [&](size_t from, size_t to) -> std::pair<Block, std::string> {
    const ExactBytes y(Block((to - from) * bytes), 0);
    try {
      whole.decode(maps, held.span(), n, from, to, y.data());
    } catch (const bounded::PayloadError& error) {
      return {{}, error.what()};
    }
    return {Block(y.data(), y.data() + (to - from) * bytes), ""};
  };
  const auto all = decode(0, n);
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    CHECK(decode(0, n) == all, "other values at level ", level);
    const auto part = decode(first, last);
    CHECK(part.second == all.second, part.second, ", of all ", all.second);
    if (!all.second.empty()) continue;
    const auto begin = all.first.begin();
    const Block expected(begin + static_cast<std::ptrdiff_t>(first * bytes),
                         begin + static_cast<std::ptrdiff_t>(last * bytes));
    CHECK(part.first == expected, "values ", first, " to ", last, " are others at level ", level);
  }
  return all;
}

/// Encodes values as words and as mostly one value. Checks that every SIMD level makes the same content and
/// that decoding keeps the bound. Returns how many of the two forms took the values.
inline size_t check_whole_round_trip(const bounded::Maps& maps, BoundKind kind, const Block& values,
                                     size_t first, size_t last, const std::string& what) {
  const DType element = maps.element();
  const size_t n = values.size() / size_of(element);
  const ExactBytes x(values, 0);
  size_t found = 0;
  for (const bool words : {true, false}) {
    const auto make = [&] {
      return words ? bounded::words_of_all(maps, x.span())
                   : bounded::mostly_of_all(element, x.span());
    };
    const auto made = make();
    for (const std::string& level : simd_levels()) {
      const AtSimdLevel at(level);
      const auto again = make();
      CHECK(again.has_value() == made.has_value(), what, ", level ", level);
      CHECK(!made || again->content == made->content, what, ": others at level ", level);
    }
    if (!made) continue;
    ++found;
    CHECK(made->content.size() == made->whole.content(maps, n), what);
    const auto [y, error] = check_whole(maps, made->whole, made->content, n, first, last);
    CHECK(error.empty(), what, ": ", error);
    check_promise(element, words ? kind : BoundKind::kLossless, maps.bound(), values, y, what);
  }
  return found;
}

}  // namespace cgx::native
