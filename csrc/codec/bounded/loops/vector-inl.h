// Loops that compilers do not vectorise, for every CPU. Included by loops-inl.h.

// Planes of bits, eight codes at a time in a register of 64 bits. Codes are bytes; n is rounded up to
// a multiple of 64; bit i of a plane belongs to code i.

inline void bits_to_planes(const uint8_t* codes, size_t n, int bits, uint8_t* planes,
                           size_t stride) {
  const size_t groups = (n + 63) / 64 * 8;
  for (int bit = 0; bit < bits; ++bit) {
    uint8_t* plane = planes + static_cast<size_t>(bit) * stride;
    for (size_t group = 0; group < groups; ++group) {
      uint64_t eight;
      __builtin_memcpy(&eight, codes + group * 8, 8);
      plane[group] =
          static_cast<uint8_t>((((eight >> bit) & 0x0101010101010101) * 0x0102040810204080) >> 56);
    }
  }
}

inline void planes_to_bits(const uint8_t* planes, size_t stride, size_t n, int bits,
                           uint8_t* codes) {
  const size_t groups = (n + 63) / 64 * 8;
  for (size_t group = 0; group < groups; ++group) {
    uint64_t eight = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const uint64_t byte = planes[static_cast<size_t>(bit) * stride + group];
      const uint64_t spread = (byte * 0x0101010101010101) & 0x8040201008040201;
      eight |= (((spread + 0x7f7f7f7f7f7f7f7f) >> 7) & 0x0101010101010101) << bit;
    }
    __builtin_memcpy(codes + group * 8, &eight, 8);
  }
}

// See quick-inl.h.
constexpr bool kQuick = false;
inline bool quick_place(const float*, size_t, const Grid&, int32_t*) { return true; }
inline bool quick_split(const int32_t*, size_t, int32_t, const Low<uint8_t>&, uint8_t*) {
  return true;
}
inline bool quick_symbols(const float*, size_t, const Grid&, int32_t, const Low<uint8_t>&,
                          uint8_t*) {
  return true;
}
