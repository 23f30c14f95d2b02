// Turns one value into its word and back, by the map of its block; encode/words.cc and decode/ do
// the same with many at once.
#pragma once

#include "codec/bounded/gpu/threads.h"

namespace cgx::bounded::on_gpu {

template <typename Word>
struct Of;
template <>
struct Of<int32_t> {
  using Unsigned = uint32_t;
  static constexpr int32_t kLeast = -2147483647 - 1;
  CGX_HD static double number(int32_t bits) {
    return static_cast<double>(from_bits(static_cast<uint32_t>(bits)));
  }
  CGX_HD static int32_t bits(double number) {
    return static_cast<int32_t>(as_bits(static_cast<float>(number)));
  }
};
template <>
struct Of<int64_t> {
  using Unsigned = uint64_t;
  static constexpr int64_t kLeast = -9223372036854775807 - 1;
  CGX_HD static double number(int64_t bits) { return bits_double(static_cast<uint64_t>(bits)); }
  CGX_HD static int64_t bits(double number) { return static_cast<int64_t>(double_bits(number)); }
};

CGX_HD double magnitude(double x) { return x < 0 ? -x : x; }

/// Magnitudes of the order's map are from 0 to this.
template <typename Word>
CGX_HD typename Of<Word>::Unsigned top_of(const ValueType& type, uint32_t shift) {
  return static_cast<typename Of<Word>::Unsigned>((type.layout.sign - 1) >> shift);
}

template <typename Word>
CGX_HD Word order_word(const ValueType& type, const BlockForm& form, Word bits) {
  using U = typename Of<Word>::Unsigned;
  if (type.floating == 0) return static_cast<Word>(bits >> form.shift);
  const U top = top_of<Word>(type, form.shift);
  const U magnitude = static_cast<U>(static_cast<U>(bits) >> form.shift) & top;
  const Word place = static_cast<Word>(place_of(magnitude, static_cast<U>(form.origin), top));
  return bits < 0 ? ~place : place;
}

/// False: the type has no value for the word.
template <typename Word>
CGX_HD bool order_bits(const ValueType& type, const BlockForm& form, Word word, Word& bits) {
  using U = typename Of<Word>::Unsigned;
  if (type.floating == 0) {
    bits = narrowed(type, static_cast<Word>(static_cast<U>(word) << form.shift));
    return bits >> form.shift == word;
  }
  const U top = top_of<Word>(type, form.shift);
  const U place = static_cast<U>(word < 0 ? ~word : word);
  if (place > top) return false;
  const U made =
      static_cast<U>(magnitude_of(place, static_cast<U>(form.origin), top) << form.shift);
  bits = static_cast<Word>(word < 0 ? made | static_cast<U>(type.layout.sign) : made);
  return true;
}

/// False: the value does not come back from its word as the bound promises. `fit`: of a curve.
template <typename Word>
CGX_HD bool grid_word(const BlocksCall& call, const BlockForm& form, Word bits, double fit,
                      Word& word) {
  const double value = Of<Word>::number(bits);
  const double position = value * form.inverse - fit;
  word = word_of<Word>(position + kRounder);
  const double back = Of<Word>::number(Of<Word>::bits((number_of(word) + fit) * form.step));
  if (!(magnitude(value - back) <= call.bound)) return false;
  if (!is_written(word)) return false;
  return !is_special(call.type.layout, plain_bits(call.type, bits));
}

template <typename Word>
CGX_HD bool log_word(const BlocksCall& call, const BlockForm& form, Word bits, Word& word) {
  const uint64_t plain = plain_bits(call.type, bits);
  word = 0;
  if (plain == 0) return true;
  if (is_special(call.type.layout, plain)) return false;
  const double value = Of<Word>::number(bits);
  const LogTable::Place place = call.log_table->place(value, form.origin);
  word = static_cast<Word>(place.word);
  const double back = Of<Word>::number(Of<Word>::bits(place.value));
  return word == place.word && word != 0 && word != Of<Word>::kLeast &&
         is_within(value, back, call.bound);
}

/// Computes the word of a value, without room for signed zeros. False: the value is a special one.
template <typename Word>
CGX_HD bool to_word(const BlocksCall& call, const BlockForm& form, Word bits, double fit,
                    Word& word) {
  switch (form.map) {
    case Map::kOrder:
      word = order_word(call.type, form, bits);
      return true;
    case Map::kGrid:
      return grid_word(call, form, bits, fit, word);
    case Map::kLogGrid:
      return log_word(call, form, bits, word);
    default:
      if constexpr (sizeof(Word) == 4) {
        word = call.lattice_words[static_cast<uint16_t>(bits)];
      }
      return word != -32768;  // Lattice::kNone
  }
}

/// The bits of a word's value. False: the word stands for none.
template <typename Word>
CGX_HD bool from_word(const BlocksCall& call, const BlockForm& form, Word word, double fit,
                      Word& bits) {
  bits = 0;
  switch (form.map) {
    case Map::kOrder:
      return order_bits(call.type, form, word, bits);
    case Map::kGrid:
      bits = Of<Word>::bits((number_of(word) + fit) * form.step);
      return (sizeof(Word) == 8 && form.most < 0) || (word >= -form.most && word <= form.most);
    case Map::kLogGrid: {
      const int64_t most = call.log_table->most(form.origin);
      if (word < -most || word > most) return false;
      bits = Of<Word>::bits(call.log_table->value(word, form.origin));
      // A narrow type has no number for it, or only 0.
      const bool zero = (plain_bits(call.type, bits) & (call.type.layout.sign - 1)) == 0;
      return is_finite(call.type, bits) && zero == (word == 0);
    }
    default:
      if constexpr (sizeof(Word) == 4) {
        if (word < -call.lattice_most || word > call.lattice_most) return false;
        bits = call.lattice_values[word];
      }
      return true;
  }
}

/// Of a floating-point type.
template <typename Word>
CGX_HD bool is_finite(const ValueType& type, Word bits) {
  return (plain_bits(type, bits) & (type.layout.sign - 1)) < type.layout.infinity;
}

template <typename Word>
CGX_HD Word minus_zero(const ValueType& type) {
  using U = typename Of<Word>::Unsigned;
  const U sign = static_cast<U>(type.layout.sign);
  // As load() gives it.
  return static_cast<Word>(type.bytes == 2 ? U{0} - sign : sign);
}

template <typename Word>
CGX_HD Word plus(Word a, Word b) {
  using U = typename Of<Word>::Unsigned;
  return static_cast<Word>(static_cast<U>(a) + static_cast<U>(b));
}
template <typename Word>
CGX_HD Word minus(Word a, Word b) {
  using U = typename Of<Word>::Unsigned;
  return static_cast<Word>(static_cast<U>(a) - static_cast<U>(b));
}

/// Place i of 256 of a curve.
CGX_HD double draw(const double* table, const int32_t* nodes, uint32_t i) {
  return ((table[i] * nodes[0] + table[kCurveRun + i] * nodes[1]) +
          table[2 * kCurveRun + i] * nodes[2]) +
         table[3 * kCurveRun + i] * nodes[3];
}

}  // namespace cgx::bounded::on_gpu
