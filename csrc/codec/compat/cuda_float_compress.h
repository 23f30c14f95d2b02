// The stages of cuda_float_compress 0.2.3 before its entropy coder, and their inverse.
//
//   x --quantise--> q --deltas in runs of 128--> d --zig-zag--> u --2-bit shuffle--> words
//
// Values are dealt with in blocks of 32768, a block is 1024 groups of 32 values, and 4 groups are a
// run. With step e, all arithmetic in float32:
//
//   q = round_half_even(x * (1 / e)), an int32;  decoded: float(q) * e
//   d = q - (the quotient before it in its run, 0 at the start), mod 2^32
//   u = (d << 1) ^ (d >> 31), so that small |d| have few bits; 0 behind the last value
//   word 2j of a group: bits 2j and 2j+1 of its values 0-15, value i at bit 2i;
//   word 2j+1: those of its values 16-31
//
// Word w of group g of a block is the block's word w * 1024 + g. Words are little-endian.
//
// Results are the same on every machine, whatever the float mode of the calling thread. Pure
// functions, thread-safe. x and y: any alignment of their type; they do not overlap raw.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/compat/cuda_float_formulas.h"

namespace cgx::cuda_float_compress {

inline constexpr size_t kMostValues = (size_t{1} << 31) - 1;  // the original counts in an int

/// Words of the stages' output for n values: those of whole blocks.
inline size_t raw_words(size_t n) { return (n + kBlockValues - 1) / kBlockValues * kBlockValues; }

/// What stands between values and a decoded result within the bound. n: no value does.
struct Misfits {
  size_t range;  // index of the first value that is NaN, infinite or has |x| * (1 / step) >= 2^31
  size_t bound;  // index of the first value that decodes further than max_error from x
};

/// step: normal. max_error: finite, above 0.
Grid make_grid(float step, double max_error);

/// Writes raw_words(n) words. The quotient is the original's, where it decodes within max_error,
/// in float64; else the nearest of it and its two neighbours. Stops at the first misfit that
/// `keep_going` does not cover, and leaves words behind it unwritten: a value out of range always
/// stops, a value out of the bound only without `keep_going`.
/// step: normal. max_error: finite, above 0. Errors: none.
Misfits encode(const float* x, size_t n, float step, double max_error, bool keep_going,
               uint32_t* raw);

/// Reads raw_words(n) words, writes n values.
void decode(const uint32_t* raw, size_t n, float step, float* y);

/// The index of the first value that is NaN, infinite or has |x| * (1 / step) >= 2^31; n: none.
/// `largest` gets the largest |x|, 0 for n = 0; NaN if a value is.
size_t first_out_of_range(const float* x, size_t n, float step, float* largest);

/// A step of at most 2 * max_error, near to it, with which every value of magnitude up to `largest`
/// decodes within max_error, if it is in range and not next to the largest float32. The proof is in
/// the source. max_error: 2^-127 to (2 - 2^-23) * 2^126; largest: finite. Errors: none.
float exact_step(double max_error, float largest);

}  // namespace cgx::cuda_float_compress
