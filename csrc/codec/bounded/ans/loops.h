// The loops that read symbols, compiled once per SIMD level, with equal results on each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::bounded::ans {

/// States and the words that are left of a stream.
struct Stream {
  uint32_t* states;
  const std::byte* at;
  const std::byte* end;
  bool cut = false;  // words were missing; zeros were read instead
};

struct Loops {
  /// n symbols; symbol i by tables[i] and state i mod `states`. slots: 2^12 for each table, 32 bits
  /// each: symbol, frequency - 1, place behind the symbol's first slot, of 8, 12 and 12 bits. Symbols
  /// and tables have room for 8 more, which may be read and written.
  void (*read)(Stream& stream, size_t states, const uint32_t* slots, const uint8_t* tables,
               size_t n, uint8_t* symbols);
  /// n / states symbols by each state, which read one part of the row each; each by the context of
  /// those before it in its part (window.h). table_of: by context, 32 of them, 2^12 times the number
  /// of its table.
  void (*read_windows)(Stream& stream, size_t states, const uint32_t* slots,
                       const uint32_t* table_of, size_t n, uint8_t center, int shift,
                       uint8_t* symbols);
};

/// The loops of the level in force.
const Loops& loops();

}  // namespace cgx::bounded::ans
