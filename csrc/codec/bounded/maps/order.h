// The lossless map of values to words: numbers in the order of the values.
//
// A whole number is its own word. A floating-point number's word is the bits of its magnitude,
// complemented where it is negative. Values of one tensor have few exponents, far from that of 0, so
// words of both signs would lie far apart: magnitudes are rotated so that `origin` + 1 becomes 1 (and
// what is below goes to the end); 0 stays 0. Low bits that are 0 in all of a block's bits are shifted
// out first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bounded/element.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/order_places.h"

namespace cgx::bounded {

/// What the bits of n >= 1 values show, of any type; `greatest` is 0 for whole numbers.
Seen look_at(DType element, const std::byte* x, size_t n);

struct Order {
  int shift = 0;       // low bits that no value has set
  int64_t origin = 0;  // of magnitudes, after the shift; 0 for whole numbers
};

/// Words of n values.
template <typename Word>
void to_order(DType element, const std::byte* x, size_t n, const Order& order, Word* words);

/// The inverse. False: the type has no value for one of the words.
template <typename Word>
bool from_order(DType element, const Word* words, size_t n, const Order& order, std::byte* x);

/// The greatest origin of a type.
int64_t last_origin(DType element, int shift);

/// An origin two binades below the least magnitude of these n >= 1 values; zeros do not count.
int64_t origin_for(DType element, const std::byte* x, size_t n, int shift);

/// The bits of value number i.
uint64_t bits_at(DType element, const std::byte* x, size_t i);
/// Appends the bits of n values.
void append_bits(DType element, const std::byte* x, size_t n, std::vector<uint64_t>& out);
/// Value number i as a number; uint64 as the order has it, as int64.
double value_at(DType element, const std::byte* x, size_t i);
void put_bits(DType element, std::byte* x, size_t i, uint64_t bits);

/// How many of n values have these bits.
size_t count_bits(DType element, const std::byte* x, size_t n, uint64_t bits);

/// Of a floating-point type.
FloatLayout layout_of(DType element);
bool is_special(DType element, uint64_t bits);
bool is_subnormal(DType element, uint64_t bits);

}  // namespace cgx::bounded
