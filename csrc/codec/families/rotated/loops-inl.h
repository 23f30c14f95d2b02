// The quantizer of `rotated` over the vector operations of one level. Included as
// rotation/blocks-inl.h, after it.

/// The magnitudes' levels, times a factor: from registers, or from memory where there are many.
template <int bits>
struct Magnitudes {
  static constexpr int kCount = 1 << (bits - 1);
  static constexpr bool kInRegisters = kCount < kSlowTable;
  alignas(64) float memory[kCount];
  Table<kInRegisters ? kCount : 1> table;

  explicit Magnitudes(float factor) : table(fill(memory, factor)) {}
  Magnitudes(const Magnitudes&) = delete;
  static const float* fill(float* levels, float factor) {
    for (int i = 0; i < kCount; ++i) {
      levels[i] = rotated::kLevels[rotated::first_level(bits) + i] * factor;
    }
    return levels;
  }
  F operator()(I index) const {
    if constexpr (kInRegisters) return table(index);
    return gather(memory, and_(index, set_int(kCount - 1)));
  }
};

/// The number of thresholds below a magnitude, plus 2^(bits-1).
template <int bits>
struct TreeSearch {
  Walk<1, 1 << (bits - 1)> walk{rotated::kTree<bits>.thresholds};
  I operator()(F magnitude) const { return walk(magnitude, set_int(1)); }
};
template <int bits>
struct CellSearch {
  I operator()(F magnitude) const {
    constexpr const auto& cells = rotated::kCells<bits>;
    static_assert(cells.works);
    const I cell = to_int_truncated(mul(magnitude, set(cells.kPerUnit)));
    const I below = gather(cells.below, min_unsigned(cell, set_int(cells.kCount - 1)));
    const F next = gather(cells.next, below);
    return or_(increment_where_greater(below, magnitude, next), set_int(1 << (bits - 1)));
  }
};
template <int bits, bool in_registers = Magnitudes<bits>::kInRegisters>
struct SearchOf {
  using Type = TreeSearch<bits>;
};
template <int bits>
struct SearchOf<bits, false> {
  using Type = CellSearch<bits>;
};

template <int bits>
struct Quantizer {
  static constexpr int kBits = bits, kMostBits = rotated::kMostBits;
  static constexpr size_t kTogether = 1;

  Magnitudes<bits> magnitudes;
  explicit Quantizer(float factor) : magnitudes(factor) {}

  struct NoLimit {
    static I limit(I codes) { return codes; }
  };

  void quantize(Group<kTogether>& group, size_t n) const {
    const typename SearchOf<bits>::Type search;
    const float* z = group.z[0];
    uint8_t* codes = group.codes[0];
    BlockSums& sums = group.sums[0];
    const F by = set(group.inverse[0]);
    const I mask = set_int(0x7fffffffu);
    for (size_t i = 0; i < n; i += 4 * kLanes) {
      I code[4];
      for (size_t k = 0; k < 4; ++k) {
        const F u = mul(load_row(z + i + k * kLanes), by);
        const F magnitude = float_of(and_(bits_of(u), mask));
        const I at = search(magnitude);
        const F level = magnitudes(at);
        sums.product.see(k, magnitude, level);
        sums.square.see(k, level, level);
        code[k] = exclusive_or(at, shift_left<bits - 1>(shift_right<31>(bits_of(u))));
      }
      store_bytes(codes + i, code[0], code[1], code[2], code[3], NoLimit{});
    }
  }

  void levels(const std::byte* codes, size_t n, float* z) const {
    const BlockCodes<bits> unpack;
    const I sign = set_int(0x80000000u);
    for (size_t i = 0; i < n; i += kLanes) {
      const I code = unpack(codes, i);
      const I negative = exclusive_or(and_(shift_left<32 - bits>(code), sign), sign);
      store_row(z + i, float_of(exclusive_or(bits_of(magnitudes(code)), negative)));
    }
  }
};

static void encode(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                   std::byte* codes) {
  encode_all<Quantizer>(rotated::kScalarLoops, part, x, dtype, scales, codes);
}
static void decode(const Part& part, const std::byte* scales, const std::byte* codes, float* y,
                   bool add_to) {
  decode_all<Quantizer>(rotated::kScalarLoops, part, scales, codes, y, add_to);
}
