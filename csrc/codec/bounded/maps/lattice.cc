#include "codec/bounded/maps/lattice.h"

#include <cmath>

#include "base/half.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {

double half_value(DType element, uint16_t bits) {
  return element == DType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

bool Lattice::to_words(const uint16_t* bits, size_t n, int32_t* words) const {
  const int16_t* table = words_.data();
  int32_t least = 0;
  for (size_t i = 0; i < n; ++i) {
    words[i] = table[bits[i]];
    least = words[i] < least ? words[i] : least;
  }
  return least == kNone;
}

void Lattice::from_words(const int32_t* words, size_t n, uint16_t* bits) const {
  const uint16_t* middle = values_.data() + most();
  for (size_t i = 0; i < n; ++i) bits[i] = middle[words[i]];
}

Lattice::Lattice(DType element, double bound, bool absolute, bool subnormal)
    : words_(65536, kNone) {
  // Values that take part, ascending: 0 and the positive ones.
  std::vector<uint16_t> all;
  std::vector<double> value;
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    if (is_special(element, bits) || (!subnormal && is_subnormal(element, bits))) continue;
    all.push_back(static_cast<uint16_t>(bits));
    value.push_back(half_value(element, static_cast<uint16_t>(bits)));
  }
  std::vector<uint16_t> chosen_bits;  // by group
  const auto stands_for = [&](size_t chosen, size_t i) {
    const double allowed = absolute ? bound : bound * value[i];
    return std::fabs(value[i] - value[chosen]) <= allowed;
  };
  const auto take = [&](size_t i) {
    const auto word = static_cast<int16_t>(chosen_bits.size());
    words_[all[i]] = word;
    if (all[i] != 0) words_[all[i] | 0x8000u] = static_cast<int16_t>(-word);
  };
  // 0 stands for itself and for what it may stand for: a group of its own.
  size_t first = 0;
  for (; first < all.size() && stands_for(0, first); ++first) take(first);
  chosen_bits.push_back(0);
  while (first < all.size()) {
    size_t chosen = first;
    while (chosen + 1 < all.size() && stands_for(chosen + 1, first)) ++chosen;
    size_t next = first;
    for (; next < all.size() && (next <= chosen || stands_for(chosen, next)); ++next) take(next);
    chosen_bits.push_back(all[chosen]);
    first = next;
  }
  for (size_t i = chosen_bits.size(); i-- > 1;) {
    values_.push_back(static_cast<uint16_t>(chosen_bits[i] | 0x8000));
  }
  values_.insert(values_.end(), chosen_bits.begin(), chosen_bits.end());
}

}  // namespace cgx::bounded
