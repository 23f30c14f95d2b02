// Encoding and decoding of whole rotated blocks, over the vector operations of one level. Included
// inside the level's namespace, after its target pragma, the vector operations, extremes-inl.h and
// pack-inl.h; so nothing of the standard library is used here (see ops/target_avx2-inl.h).
//
// A block lies in 4 to 16 KiB of the first-level cache. A pass over it loads eight vectors and does
// up to three stages between them; the stages inside of vectors ride on the first pass (encoding),
// or on the last one (decoding).
//
// A family brings a Quantizer for each number of bits:
//   static constexpr int kBits
//   Quantizer(factor)                                for decoding: levels are multiplied by it
//   static constexpr size_t kTogether                blocks that are quantized at once
//   quantize(group, n)                               codes, a byte each, and sums of the blocks
//   levels(codes, n, levels)                         their levels, from the bits of a block:
//                                                    16 bytes behind them may be read

using rotation::kLargestBlock;
using rotation::kSumLanes;
using rotation::Loops;
using rotation::Part;
using rotation::Scale;

/// Vectors of a pass.
constexpr size_t kRows = 8;
/// Vectors that hold the accumulators of a sum.
constexpr size_t kSums = kSumLanes / kLanes;

static inline F load_row(const float* z) {
  return load(Float32{}, reinterpret_cast<const std::byte*>(z));
}
static inline void store_row(float* z, F v) {
  store(Float32{}, reinterpret_cast<std::byte*>(z), v);
}

/// Accumulators of one sum: vector number `i` of a block goes to number i % kSums.
struct BlockSum {
  F lanes[kSums];
  BlockSum() {
    for (size_t i = 0; i < kSums; ++i) lanes[i] = set(0.0f);
  }
  inline __attribute__((always_inline)) void see(size_t i, F a, F b) {
    lanes[i % kSums] = add(lanes[i % kSums], mul(a, b));
  }
  float total() const {
    alignas(64) float all[kSumLanes];
    for (size_t i = 0; i < kSums; ++i) store_row(all + i * kLanes, lanes[i]);
    return rotation::fold_sums(all);
  }
};

struct BlockSums {
  BlockSum product, square;
};

/// The stages between `rows` vectors: strides 1, 2, 4 of them, or back.
template <size_t rows>
static inline __attribute__((always_inline)) void rows_forth(F* v) {
  for (size_t stride = 1; stride < rows; stride *= 2) {
    for (size_t i = 0; i < rows; ++i) {
      if (i & stride) continue;
      const F a = v[i], b = v[i + stride];
      v[i] = add(a, b), v[i + stride] = sub(a, b);
    }
  }
}
template <size_t rows>
static inline __attribute__((always_inline)) void rows_back(F* v) {
  for (size_t stride = rows / 2; stride > 0; stride /= 2) {
    for (size_t i = 0; i < rows; ++i) {
      if (i & stride) continue;
      const F a = v[i], b = v[i + stride];
      v[i] = add(a, b), v[i + stride] = sub(a, b);
    }
  }
}
static inline __attribute__((always_inline)) F lanes_forth(F v) {
  v = butterfly<4>(butterfly<2>(butterfly<1>(v)));
  if constexpr (kLanes == 16) v = butterfly<kLanes / 2>(v);
  return v;
}
static inline __attribute__((always_inline)) F lanes_back(F v) {
  if constexpr (kLanes == 16) v = butterfly<kLanes / 2>(v);
  return butterfly<1>(butterfly<2>(butterfly<4>(v)));
}

/// Stages of the strides `stride`, 2 `stride`, ... `rows` / 2 `stride`.
template <size_t rows, bool back>
static void pass(float* z, size_t n, size_t stride) {
  for (size_t start = 0; start < n; start += rows * stride) {
    for (size_t at = start; at < start + stride; at += kLanes) {
      F v[rows];
      for (size_t i = 0; i < rows; ++i) v[i] = load_row(z + at + i * stride);
      if constexpr (back) {
        rows_back<rows>(v);
      } else {
        rows_forth<rows>(v);
      }
      for (size_t i = 0; i < rows; ++i) store_row(z + at + i * stride, v[i]);
    }
  }
}

/// The stages from stride kRows * kLanes on.
static void far_stages(float* z, size_t n) {
  size_t stride = kRows * kLanes;
  while (stride < n) {
    const size_t left = n / stride;
    if (left >= 8 && left != 16) {
      pass<8, false>(z, n, stride), stride *= 8;
    } else if (left >= 4) {
      pass<4, false>(z, n, stride), stride *= 4;
    } else {
      pass<2, false>(z, n, stride), stride *= 2;
    }
  }
}
static void far_stages_back(float* z, size_t n) {
  size_t end = n;  // of the strides that are left
  while (end > kRows * kLanes) {
    const size_t left = end / (kRows * kLanes);
    if (left >= 8 && left != 16) {
      pass<8, true>(z, n, end /= 8);
    } else if (left >= 4) {
      pass<4, true>(z, n, end /= 4);
    } else {
      pass<2, true>(z, n, end /= 2);
    }
  }
}

template <typename T>
static uint32_t largest_magnitude(T type, const std::byte* x, size_t n) {
  const I mask = set_int(0x7fffffffu);
  I most[4] = {set_int(0), set_int(0), set_int(0), set_int(0)};
  for (size_t i = 0; i < n; i += 4 * kLanes) {
    for (size_t k = 0; k < 4; ++k) {
      const F v = load(type, x + (i + k * kLanes) * T::kBytes);
      most[k] = max_unsigned(most[k], and_(bits_of(v), mask));
    }
  }
  return reduce_max_unsigned(
      max_unsigned(max_unsigned(most[0], most[1]), max_unsigned(most[2], most[3])));
}

/// v[0 .. n) of a block, and all stages. Returns the sum of v^2.
template <typename T>
static float rotate_block(T type, const std::byte* x, size_t n, float down, uint64_t signs,
                          float* z) {
  const F by = set(down);
  BlockSum energy;
  uint64_t word = 0;
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    for (size_t i = 0; i < kRows; ++i) {
      const size_t at = start + i * kLanes;
      if (at % 64 == 0) word = rotation::sign_word(rotation::sign_state(signs, at));
      v[i] = negate(mul(load(type, x + at * T::kBytes), by), word >> (at % 64));
      energy.see(i, v[i], v[i]);
      v[i] = lanes_forth(v[i]);
    }
    rows_forth<kRows>(v);
    for (size_t i = 0; i < kRows; ++i) store_row(z + start + i * kLanes, v[i]);
  }
  far_stages(z, n);
  return energy.total();
}

/// All stages back, and the values.
template <bool add_to>
static void values_of_block(float* z, size_t n, float scale, uint64_t signs, float* y) {
  far_stages_back(z, n);
  const F by = set(scale);
  uint64_t word = 0;
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    for (size_t i = 0; i < kRows; ++i) v[i] = load_row(z + start + i * kLanes);
    rows_back<kRows>(v);
    for (size_t i = 0; i < kRows; ++i) {
      const size_t at = start + i * kLanes;
      if (at % 64 == 0) word = rotation::sign_word(rotation::sign_state(signs, at));
      const F value = negate(mul(lanes_back(v[i]), by), word >> (at % 64));
      store_row(y + at, add_to ? add(load_row(y + at), value) : value);
    }
  }
}

/// The same for scales at which values may overflow.
static void careful_values(float* z, size_t n, float scale, uint64_t signs, float* y, bool add_to) {
  far_stages_back(z, n);
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    for (size_t i = 0; i < kRows; ++i) v[i] = load_row(z + start + i * kLanes);
    rows_back<kRows>(v);
    for (size_t i = 0; i < kRows; ++i) store_row(z + start + i * kLanes, lanes_back(v[i]));
  }
  for (size_t i = 0; i < n; ++i) {
    const float value = rotation::signed_value(z[i], scale, signs, static_cast<uint32_t>(i));
    y[i] = add_to ? y[i] + value : value;
  }
}

static void fill_zeros(float* y, size_t n, bool add_to) {
  const F zero = set(0.0f);
  for (size_t i = 0; i < n; i += kLanes) {
    store_row(y + i, add_to ? add(load_row(y + i), zero) : zero);  // -0 becomes +0
  }
}

/// Blocks that are quantized together. A block without finite values, or of zeros, has an inverse
/// of 0; so have blocks behind the last one.
template <size_t count>
struct Group {
  alignas(64) float z[count][kLargestBlock] = {};
  float inverse[count];
  alignas(64) uint8_t codes[count][kLargestBlock + 64];
  BlockSums sums[count];
};

/// A rotated block whose codes are not there yet.
struct Pending {
  float scale;  // if no codes are needed
  float root;
  float up;
};

template <typename T>
static Pending prepare(T type, const Part& part, const std::byte* x, size_t start, float* z,
                       float* inverse) {
  *inverse = 0.0f;
  const std::byte* block = x + start * T::kBytes;
  const uint32_t largest = largest_magnitude(type, block, part.block);
  if (largest == 0) return {0.0f, 0.0f, 0.0f};
  if (largest >= 0x7f800000u) return {from_bits(rotation::kNotFinite), 0.0f, 0.0f};
  const rotation::Prescale by = rotation::prescale(from_bits(largest));
  const float energy =
      rotate_block(type, block, part.block, by.down, rotation::sign_state(part.signs, start), z);
  const rotation::Norm norm = rotation::norm_of(energy, part.block);
  *inverse = norm.inverse;
  return {0.0f, norm.root, by.up};
}

static void put_codes(const uint8_t* codes, size_t n, Sink& sink) {
  for (size_t done = 0; done < n;) {
    const size_t take = smaller(n - done, kSinkCodes - sink.fill);
    __builtin_memcpy(sink.codes + sink.fill, codes + done, take);
    sink.fill += take, done += take;
    if (sink.fill == kSinkCodes) sink.flush();
  }
}

template <typename T, typename Quantizer>
static void encode_as(const Part& part, const std::byte* x, std::byte* scales, std::byte* codes) {
  constexpr size_t kTogether = Quantizer::kTogether;
  static thread_local Group<kTogether> group;
  const Quantizer quantizer(1.0f);
  const size_t n = part.block, whole = part.n / n * n;
  Sink sink(codes, whole, part.bits);
  for (size_t start = 0; start < whole; start += kTogether * n) {
    const size_t blocks = smaller(kTogether, (whole - start) / n);
    Pending pending[kTogether] = {};
    for (size_t k = 0; k < kTogether; ++k) {
      group.inverse[k] = 0.0f;
      group.sums[k] = BlockSums();
      if (k < blocks) {
        pending[k] = prepare(T{}, part, x, start + k * n, group.z[k], &group.inverse[k]);
      }
    }
    quantizer.quantize(group, n);
    for (size_t k = 0; k < blocks; ++k) {
      float scale = pending[k].scale;
      if (group.inverse[k] == 0.0f) {
        __builtin_memset(group.codes[k], 0, n);
      } else {
        scale = rotation::scale_of(part.scale, group.sums[k].product.total(),
                                   group.sums[k].square.total(), part.block, pending[k].root,
                                   pending[k].up);
      }
      __builtin_memcpy(scales + (start / n + k) * sizeof scale, &scale, sizeof scale);
      put_codes(group.codes[k], n, sink);
    }
  }
  sink.flush();
}

template <typename Quantizer>
static void encode_part(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                        std::byte* codes) {
  switch (dtype) {
    case DType::kFloat32:
      return encode_as<Float32, Quantizer>(part, x, scales, codes);
    case DType::kFloat16:
      return encode_as<Float16, Quantizer>(part, x, scales, codes);
    case DType::kBFloat16:
      return encode_as<BFloat16, Quantizer>(part, x, scales, codes);
  }
}

/// Codes of kLanes values from number `at` of a block on, whose first code starts a byte.
template <int bits>
struct BlockCodes {
  const Unpack unpack{bits, 0};
  I operator()(const std::byte* codes, size_t at) const { return unpack(codes + at / 8 * bits); }
};

template <typename Quantizer>
static void decode_part(const Part& part, const std::byte* scales, const std::byte* codes, float* y,
                        bool add_to) {
  constexpr size_t kBits = Quantizer::kBits;
  alignas(64) float z[kLargestBlock];
  alignas(64) std::byte last[kLargestBlock * kBits / 8 + 64];
  const size_t n = part.block, whole = part.n / n * n, bytes = n / 8 * kBits;
  const Quantizer quantizer(rotation::stage_factor(rotation::stages_of(part.block)));
  for (size_t start = 0; start < whole; start += n) {
    const std::byte* in = codes + start / 8 * kBits;
    if (start + n == whole) {  // what follows need not be memory
      __builtin_memcpy(last, in, bytes);
      __builtin_memset(last + bytes, 0, 64);
      in = last;
    }
    float scale;
    __builtin_memcpy(&scale, scales + start / n * sizeof scale, sizeof scale);
    const uint64_t signs = rotation::sign_state(part.signs, start);
    if (scale == 0.0f) {
      fill_zeros(y + start, n, add_to);
      continue;
    }
    quantizer.levels(in, n, z);
    if (rotation::may_overflow(scale)) {
      careful_values(z, n, scale, signs, y + start, add_to);
    } else if (add_to) {
      values_of_block<true>(z, n, scale, signs, y + start);
    } else {
      values_of_block<false>(z, n, scale, signs, y + start);
    }
  }
}

/// The values behind the whole blocks.
static inline Part rest_of(const Part& part, size_t whole) {
  Part rest = part;
  rest.n = part.n - whole;
  rest.signs = rotation::sign_state(part.signs, whole);
  return rest;
}

/// What encode() and decode() of a level do: whole blocks by `Of<bits>`, the rest by the oracle.
template <template <int> typename Of, int bits = 1>
static void encode_blocks(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                          std::byte* codes) {
  if constexpr (bits < Of<1>::kMostBits) {
    if (part.bits != bits) return encode_blocks<Of, bits + 1>(part, x, dtype, scales, codes);
  }
  encode_part<Of<bits>>(part, x, dtype, scales, codes);
}
template <template <int> typename Of, int bits = 1>
static void decode_blocks(const Part& part, const std::byte* scales, const std::byte* codes,
                          float* y, bool add_to) {
  if constexpr (bits < Of<1>::kMostBits) {
    if (part.bits != bits) return decode_blocks<Of, bits + 1>(part, scales, codes, y, add_to);
  }
  decode_part<Of<bits>>(part, scales, codes, y, add_to);
}

template <template <int> typename Of>
static void encode_all(const Loops& oracle, const Part& part, const std::byte* x, DType dtype,
                       std::byte* scales, std::byte* codes) {
  const size_t whole = part.n / part.block * part.block;
  if (whole > 0) encode_blocks<Of>(part, x, dtype, scales, codes);
  if (whole == part.n) return;
  oracle.encode(rest_of(part, whole), x + whole * size_of(dtype), dtype,
                scales + whole / part.block * sizeof(float),
                codes + whole / 8 * static_cast<size_t>(part.bits));
}
template <template <int> typename Of>
static void decode_all(const Loops& oracle, const Part& part, const std::byte* scales,
                       const std::byte* codes, float* y, bool add_to) {
  const size_t whole = part.n / part.block * part.block;
  if (whole > 0) decode_blocks<Of>(part, scales, codes, y, add_to);
  if (whole == part.n) return;
  oracle.decode(rest_of(part, whole), scales + whole / part.block * sizeof(float),
                codes + whole / 8 * static_cast<size_t>(part.bits), y + whole, add_to);
}
