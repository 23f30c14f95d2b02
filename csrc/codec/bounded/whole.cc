#include "codec/bounded/whole.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_mode.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// The list of others may be this much longer than all values: by the one value and the list's length.
constexpr uint64_t kOthersBeside = 18;

// Decodes the values [first, last). Throws PayloadError if any word is too large, also outside of these.
template <typename Narrow, typename Word>
void decode_words(std::span<const std::byte> content, double step, uint64_t first, uint64_t last,
                  std::byte* x) {
  using Value = ValueOf<Word>;
  const Word most = most_word<Word>(step);
  Narrow narrow[kSlice];
  const uint64_t count = content.size() / sizeof(Narrow);
  const auto take = [&](uint64_t at, size_t n) {
    std::memcpy(narrow, content.data() + at * sizeof(Narrow), n * sizeof(Narrow));
  };
  for (uint64_t at = 0; at < count; at += kSlice) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kSlice, count - at));
    take(at, n);
    Narrow least = 0, greatest = 0;
    for (size_t i = 0; i < n; ++i) {
      least = narrow[i] < least ? narrow[i] : least;
      greatest = narrow[i] > greatest ? narrow[i] : greatest;
    }
    if (Word{least} >= -most && Word{greatest} <= most) continue;
    for (size_t i = 0; i < n; ++i) {
      if (Word{narrow[i]} >= -most && Word{narrow[i]} <= most) continue;
      throw PayloadError(str_of("value ", at + i, " has the word ", Word{narrow[i]},
                                ", which stands for no number, allowed: magnitudes up to ", most));
    }
  }
  Word words[kSlice];
  for (uint64_t at = first; at < last; at += kSlice) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kSlice, last - at));
    take(at, n);
    std::copy_n(narrow, n, words);
    auto* const to = reinterpret_cast<Value*>(x + (at - first) * sizeof(Value));
    word_loops<Word>().from_grid(words, n, step, nullptr, most, to);
  }
}

const std::byte* take_value(DType element, std::span<const std::byte>& in) {
  const std::byte* const value = take_bytes(in, size_of(element)).data();
  check_bools(element, value, 1);
  return value;
}

// Checks the whole list, and copies the values in [first, last) to x.
void put_others(DType element, std::span<const std::byte> in, uint64_t n, uint64_t first,
                uint64_t last, std::byte* x) {
  const size_t bytes = size_of(element);
  const uint64_t count = take_number(in);
  uint64_t after = 0;
  for (uint64_t k = 0; k < count; ++k) {
    const uint64_t gap = take_number(in);
    if (gap >= n - after) {
      throw PayloadError(str_of("one of ", n, " values has another value behind its end"));
    }
    const uint64_t place = after + gap;
    const std::byte* const other = take_value(element, in);
    if (place >= first && place < last) std::memcpy(x + (place - first) * bytes, other, bytes);
    after = place + 1;
  }
  if (!in.empty()) throw PayloadError("the list of other values goes on behind its last value");
}

}  // namespace

void Whole::write(std::vector<std::byte>& out) const {
  append(out, form);
  if (form == Form::kWords) {
    append(out, static_cast<uint8_t>(word_bytes));
    append(out, step);
  }
  if (form != Form::kValues) append_number(out, others);
}

Whole Whole::read(std::span<const std::byte>& in) {
  const auto form = take<uint8_t>(in);
  if (form > static_cast<uint8_t>(Form::kMostly)) {
    throw PayloadError(
        str_of("the payload's frame has the form ", static_cast<int>(form), ", allowed: 0 to 2"));
  }
  Whole whole;
  whole.form = static_cast<Form>(form);
  if (whole.form == Form::kWords) {
    whole.word_bytes = take<uint8_t>(in);
    whole.step = take<double>(in);
    if (whole.word_bytes != 1 && whole.word_bytes != 2 && whole.word_bytes != 4) {
      throw PayloadError(str_of("the payload's frame has words of ", whole.word_bytes,
                                " bytes, allowed: 1, 2, 4"));
    }
  }
  if (whole.form != Form::kValues) whole.others = take_number(in);
  return whole;
}

size_t Whole::content(const Maps& maps, uint64_t n) const {
  const FloatMode mode;
  const uint64_t bytes = n * size_of(maps.element());
  if (form == Form::kValues) return bytes;
  if (form == Form::kWords && maps.bounded() != Map::kGrid) {
    throw PayloadError("the payload's frame has words of a grid, which its bound does not have");
  }
  if (form == Form::kWords && !(step > 0 && step <= 2 * maps.bound())) {
    throw PayloadError(str_of("the payload's frame has the step ", step,
                              ", allowed: above 0, at most ", 2 * maps.bound()));
  }
  const uint64_t most = bytes + kOthersBeside;
  if (others > most) {
    throw PayloadError(
        str_of("the payload's frame has others of ", others, " bytes, allowed: at most ", most));
  }
  return others + (form == Form::kWords ? n * word_bytes : 0);
}

void Whole::decode(const Maps& maps, std::span<const std::byte> content, uint64_t n, uint64_t first,
                   uint64_t last, std::byte* x) const {
  const FloatMode mode;
  const DType element = maps.element();
  const size_t bytes = size_of(element), expected = this->content(maps, n);
  if (content.size() != expected) {
    throw PayloadError(
        str_of("the payload's frame holds ", content.size(), " bytes, expected ", expected));
  }
  switch (form) {
    case Form::kWords:
      with_word(element, [&]<typename Word>() {
        const auto words = content.first(n * word_bytes);
        if (word_bytes == 1) return decode_words<int8_t, Word>(words, step, first, last, x);
        if (word_bytes == 2) return decode_words<int16_t, Word>(words, step, first, last, x);
        decode_words<int32_t, Word>(words, step, first, last, x);
      });
      put_others(element, content.subspan(n * word_bytes), n, first, last, x);
      return;
    case Form::kMostly:
      decode_mostly(element, content, n, first, last, x);
      return;
    case Form::kValues:
      check_bools(element, content.data(), n);
      std::copy_n(content.data() + first * bytes, (last - first) * bytes, x);
  }
}

void decode_mostly(DType element, std::span<const std::byte> in, uint64_t n, uint64_t first,
                   uint64_t last, std::byte* x) {
  const uint64_t value = bits_at(element, take_value(element, in), 0);
  with_bits(element, [&]<typename Bits>() {
    std::fill_n(reinterpret_cast<Bits*>(x), last - first, static_cast<Bits>(value));
  });
  put_others(element, in, n, first, last, x);
}

void check_bools(DType element, const std::byte* x, size_t n) {
  if (element != DType::kBool) return;
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint8_t>(x[i]) > 1) {
      throw PayloadError(str_of("a bool is ", static_cast<int>(x[i]), ", allowed: 0, 1"));
    }
  }
}

}  // namespace cgx::bounded
