// Codes symbols with asymmetric numeral systems (rANS), each by the table of its context. The symbols
// take turns on up to 32 states, so that a reader works on as many at once.
//
//     states   a number of 32 bits each, as they are when the reader begins
//     words    of 16 bits, in the order in which the reader needs them
//
// A state is from 2^15 on, below 2^31. To read a symbol, its lowest 12 bits are looked up in the table,
// and where what is left is below 2^15, the next word goes below it. In the end, each state is 2^15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/bounded/ans/loops.h"
#include "codec/bounded/ans/model.h"

namespace cgx::bounded::ans {

inline constexpr size_t kMostStates = 32;
inline constexpr uint32_t kLeastState = 1u << 15;

/// States for symbols of about so many bytes in all: few where these themselves would be much.
/// A power of 2, up to kMostStates.
size_t states_for(double bytes);
/// The same where each row has only so many symbols.
size_t states_for(double bytes, size_t row);
/// Whether that is a number of states.
bool are_states(size_t states);

/// Appends the states and words of symbols in rows, of so many each. tables: of each symbol the table
/// that it is coded by, in which its frequency is not 0. Symbol i of a row has the state i mod `states`.
void encode(const uint8_t* symbols, const uint8_t* tables, std::span<const uint32_t> rows,
            const Model& model, size_t states, std::vector<std::byte>& out);

/// Reads rows of symbols in the order in which they were written. The bytes must stay.
class Reader {
 public:
  /// Room behind symbols and tables that may be read and written.
  static constexpr size_t kRoom = 8;

  /// in: states and words of the symbols. PayloadError: it has fewer bytes than the states.
  Reader(const Model& model, size_t states, std::span<const std::byte> in);

  /// The next row, of n symbols, by their tables.
  void read(const uint8_t* tables, size_t n, uint8_t* symbols);

  /// The next n symbols, n a multiple of the number of states. State k reads the symbols
  /// [k * n / states, (k + 1) * n / states), each by the context of those before it: see window.h.
  void read_windows(size_t n, uint8_t center, int shift, uint8_t* symbols);

  /// PayloadError: the words end before the symbols that were read, or go on behind them, or a state
  /// is not what it is at the end.
  void finish() const;

 private:
  const size_t states_count_;
  std::unique_ptr<uint32_t[]> slots_;  // see loops.h
  uint32_t table_of_[kMostContexts];
  uint32_t states_[kMostStates];
  Stream stream_;
};

}  // namespace cgx::bounded::ans
