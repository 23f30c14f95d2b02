// Symbols that stand in a row, coded by the size of those before them (window.h): where large symbols
// keep together, as in gradients and Adam's moments, each neighbourhood has a table of its own.
//
//     shift, states   a byte each
//     model           model.h
//     states, words   coder.h
//
// A row is cut into as many parts as there are states, which are read at once. What is left of it, fewer
// symbols than states, has context 0.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/ans/model.h"

namespace cgx::bounded::ans {

/// A row of symbols on its way. Not thread-safe.
class Windowed {
 public:
  /// Looks at n symbols, 1 to 2^17, and keeps what write() needs. Returns false, without bytes() and
  /// write(), if a sample estimates more than share * bytes_of_one_table() + more bytes.
  bool look(const uint8_t* symbols, size_t n, uint8_t center, double share = INFINITY,
            double more = 0);

  /// What write() appends, to 1 % or so, and what it would be if all symbols had one table.
  double bytes() const { return bytes_; }
  double bytes_of_one_table() const { return plain_; }

  /// Appends what read_windowed() reads. After look().
  void write(std::vector<std::byte>& out) const;

 private:
  double sampled(const uint8_t* symbols, size_t n, uint8_t center, int shift);
  void take_turns(const uint8_t* symbols, size_t n, uint8_t center);

  int shift_ = 0;
  size_t states_ = 1;
  double bytes_ = 0, plain_ = 0;
  Model model_;
  std::vector<Counts> counts_;
  std::vector<uint8_t> symbols_, contexts_;  // in the order of the reader
};

/// n symbols of what write() has written; all of `in` is theirs. PayloadError.
void read_windowed(std::span<const std::byte> in, size_t n, uint8_t center, uint8_t* symbols);

}  // namespace cgx::bounded::ans
