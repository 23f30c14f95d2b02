// The order of floating-point values: places of magnitudes, as place_of() and magnitude_of(). Included by loops-inl.h.

// The greatest place: all bits but the sign, shifted.
template <typename Word, typename Bits>
inline CGX_INLINE typename Of<Word>::Unsigned greatest_place(int shift) {
  using U = typename Of<Bits>::Unsigned;
  return static_cast<typename Of<Word>::Unsigned>(static_cast<U>(static_cast<U>(~U{0}) >> 1) >>
                                                  shift);
}

// Arithmetic is in the words' width, where no sum of two places wraps around.
template <typename Word, typename Bits>
void to_order(const Bits* x, size_t n, int shift, int64_t origin, Word* __restrict words) {
  using W = typename Of<Word>::Unsigned;
  const W top = greatest_place<Word, Bits>(shift), from = static_cast<W>(origin);
  for (size_t i = 0; i < n; ++i) {
    const Bits bits = x[i];
    const W magnitude =
        (static_cast<W>(static_cast<typename Of<Bits>::Unsigned>(bits)) >> shift) & top;
    const W turned = magnitude - from + (magnitude <= from ? top : W{0});
    const W place = magnitude == 0 ? W{0} : turned;
    words[i] = static_cast<Word>(place ^ (bits < 0 ? ~W{0} : W{0}));
  }
}

template <typename Word, typename Bits>
bool from_order(const Word* words, size_t n, int shift, int64_t origin, Bits* __restrict x) {
  using W = typename Of<Word>::Unsigned;
  const W top = greatest_place<Word, Bits>(shift), from = static_cast<W>(origin);
  constexpr W kSign = W{1} << (8 * sizeof(Bits) - 1);
  W beyond = 0;
  for (size_t i = 0; i < n; ++i) {
    const W negative = words[i] < 0 ? ~W{0} : W{0};
    const W whole = static_cast<W>(words[i]) ^ negative;
    beyond |= whole & ~top;
    const W place = whole & top;
    const W turned = place + from;
    const W magnitude = (turned > top ? turned - top : turned) & (place == 0 ? W{0} : ~W{0});
    x[i] = static_cast<Bits>((magnitude << shift) | (negative & kSign));
  }
  return beyond == 0;
}
