// Blocks of fields.
#include <algorithm>
#include <cstring>
#include <vector>

#include "codec/bounded/bytes.h"
#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/field/coded.h"
#include "codec/bounded/maps/grid.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {

Decoder::Decoder(std::shared_ptr<const Maps> maps) : maps_(std::move(maps)) {}
Decoder::~Decoder() = default;

template <typename T>
field::FieldDecoder<T>& Decoder::fields() {
  const auto made = [](auto& decoder) -> auto& {
    if (!decoder) decoder = std::make_unique<field::FieldDecoder<T>>();
    return *decoder;
  };
  if constexpr (sizeof(T) == 4) {
    return made(narrow_fields_);
  } else {
    return made(wide_fields_);
  }
}

// Numbers are the values.
template <typename T>
void Decoder::decode_numbers(std::span<const std::byte> in, size_t n, std::byte* x) {
  const Maps& maps = *maps_;
  const auto decoded = fields<T>().decode(in, maps.element(), n);
  if (decoded.kind == field::Kind::kWords) throw PayloadError("a field of words has no map");
  if (decoded.kind == field::Kind::kGrid &&
      (maps.bounded() != Map::kGrid || decoded.step > 2 * maps.bound())) {
    throw PayloadError(str_of("a field has the step ", decoded.step, ", which the bound ",
                              maps.bound(), " does not allow"));
  }
  std::memcpy(x, decoded.numbers, n * sizeof(T));
  decoded.holes.put(maps.element(), x);
  for (size_t i = 0; i < decoded.escapes.size(); ++i) {
    std::memcpy(x + decoded.escapes[i] * sizeof(T), decoded.escaped.data() + i * sizeof(T),
                sizeof(T));
  }
}

template <typename Word, typename T>
void Decoder::decode_word_field(const BlockHeader& header, std::span<const std::byte> in, size_t n,
                                std::span<const std::byte> own_bytes, std::byte* x) {
  const auto decoded = fields<T>().decode(in, maps_->element(), n);
  if (decoded.kind != field::Kind::kWords || decoded.holes.count > 0) {
    throw PayloadError("a field of words is of another kind, or has holes");
  }
  const size_t bytes = size_of(maps_->element());
  const Limits limits = limits_of<Word>(header);
  Own own = own_of(header, n, own_bytes);
  constexpr double kMost = sizeof(Word) == 4 ? 0x1p31 : 0x1p51;
  Word words[kSlice];
  for (size_t first = 0; first < n; first += kSlice) {
    const size_t some = std::min(kSlice, n - first);
    for (size_t i = 0; i < some; ++i) {
      const auto number = static_cast<double>(decoded.numbers[first + i]);
      if (!(number >= -kMost && number < kMost)) {
        throw PayloadError(str_of("value ", first + i, " of a field has the word ", number,
                                  ", which stands for no number"));
      }
      words[i] = static_cast<Word>(number);
    }
    own.first = first;
    if (!from_words(header, words, nullptr, some, limits, own, x + first * bytes)) {
      refuse_word(header, words, some, first, limits, own, x + first * bytes);
    }
  }
  for (size_t i = 0; i < decoded.escapes.size(); ++i) {
    std::memcpy(x + decoded.escapes[i] * bytes, decoded.escaped.data() + i * bytes, bytes);
  }
}

void Decoder::decode_field(std::span<const std::byte> in, size_t n, std::byte* x) {
  const DType element = maps_->element();
  const bool real = element == DType::kFloat32 || element == DType::kFloat64;
  // Words have the number of their map where numbers have their kind, which is less.
  const bool own_words = !in.empty() && is_own(static_cast<Map>(in[0]));
  if (real && maps_->bounded() != Map::kLogGrid && !own_words) {
    if (element == DType::kFloat32) return decode_numbers<float>(in, n, x);
    return decode_numbers<double>(in, n, x);
  }
  BlockHeader header;
  const auto map = take<uint8_t>(in), wide = take<uint8_t>(in), shift = take<uint8_t>(in);
  header.map = static_cast<Map>(map);
  header.shift = shift;
  header.origin = take<int64_t>(in);
  header.check_map(*maps_, n);
  const auto own = take_bytes(in, is_own(header.map) ? static_cast<size_t>(header.origin) : 0);
  if (wide != 4 && wide != 8) {
    throw PayloadError(
        str_of("a field has numbers of ", static_cast<int>(wide), " bytes, allowed: 4, 8"));
  }
  with_word(element, [&]<typename Word>() {
    if (wide == 4) return decode_word_field<Word, float>(header, in, n, own, x);
    decode_word_field<Word, double>(header, in, n, own, x);
  });
}

}  // namespace cgx::bounded
