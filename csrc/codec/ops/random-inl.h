// The generator's numbers in [0, 1), over the vector operations of one level. Included by simd-inl.h.

/// random_unit() of each lane.
static inline F unit_of(I bits) {
  const I inverted = exclusive_or(bits, set_int(0xffffffffu));
  return mul(to_float(shift_right<8>(inverted)), set(0x1p-24f));
}
