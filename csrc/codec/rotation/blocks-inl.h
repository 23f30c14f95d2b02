// Encoding and decoding of whole rotated blocks, over the vector operations of one level. Included after
// ops/simd-inl.h, like it.
//
// A block lies in 4 to 16 KiB of the first-level cache. A pass over it loads eight vectors and does
// up to three stages between them; the stages inside of vectors ride on the first pass (encoding),
// or on the last one (decoding).
//
// A family brings, for each number of bits, with tables that are loaded once a call:
//   Encoder: static constexpr int kBits, kMostBits
//            static constexpr size_t kTogether       blocks that are quantized at once
//            quantize(group, n)                      codes, a byte each, and sums of the blocks
//   Decoder: static constexpr int kBits, kMostBits
//            Decoder(factor)                         levels are multiplied by it
//            level(codes, at)                        the levels of a vector, from the bits of its
//                                                    block: 16 bytes behind them may be read
//            or levels(codes, n, levels)             the levels of a block, where those of a vector
//                                                    depend on the vectors before it

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

// These need the rows.
#include "codec/rotation/codes-inl.h"
#include "codec/rotation/signs-inl.h"

/// Asks the memory for `bytes` bytes from `p` on; they need not be there. Between two reads of new
/// values a block is worked on for longer than the processor looks ahead.
template <bool to_write>
static inline CGX_INLINE void fetch(const void* p, size_t at, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(p) + at;
  for (size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + i), to_write ? 1 : 0);
  }
}

/// Accumulators of one sum: vector number `i` of a block goes to number i % kSums.
struct BlockSum {
  F lanes[kSums];
  BlockSum() {
    for (size_t i = 0; i < kSums; ++i) lanes[i] = set(0.0f);
  }
  inline CGX_INLINE void see(size_t i, F a, F b) {
    lanes[i % kSums] = add(lanes[i % kSums], mul(a, b));
  }
  inline CGX_INLINE float total() const {
#if defined(CGX_ON_AVX2)
    return sum_of_lanes(add(add(lanes[0], lanes[2]), add(lanes[1], lanes[3])));
#else
    alignas(64) float all[kSumLanes];
    for (size_t i = 0; i < kSums; ++i) store_row(all + i * kLanes, lanes[i]);
    return rotation::fold_sums(all);
#endif
  }
};

struct BlockSums {
  BlockSum product, square;
};

/// The stages between `rows` vectors: strides 1, 2, 4 of them, or back.
template <size_t rows>
static inline CGX_INLINE void rows_forth(F* v) {
  for (size_t stride = 1; stride < rows; stride *= 2) {
    for (size_t i = 0; i < rows; ++i) {
      if (i & stride) continue;
      const F a = v[i], b = v[i + stride];
      v[i] = add(a, b), v[i + stride] = sub(a, b);
    }
  }
}
template <size_t rows>
static inline CGX_INLINE void rows_back(F* v) {
  for (size_t stride = rows / 2; stride > 0; stride /= 2) {
    for (size_t i = 0; i < rows; ++i) {
      if (i & stride) continue;
      const F a = v[i], b = v[i + stride];
      v[i] = add(a, b), v[i + stride] = sub(a, b);
    }
  }
}
static inline CGX_INLINE F lanes_forth(F v) {
  v = butterfly<4>(butterfly<2>(butterfly<1>(v)));
  if constexpr (kLanes == 16) v = butterfly<kLanes / 2>(v);
  return v;
}
static inline CGX_INLINE F lanes_back(F v) {
  if constexpr (kLanes == 16) v = butterfly<kLanes / 2>(v);
  return butterfly<1>(butterfly<2>(butterfly<4>(v)));
}

/// The vector at a position of a block.
struct RowOf {
  const float* z;
  F operator()(size_t at) const { return load_row(z + at); }
};
template <typename Decoder>
struct LevelOf {
  Decoder
      decoder;  // of its own: stores to a block could change another's, as far as compilers know
  const std::byte* codes;
  F operator()(size_t at) const { return decoder.level(codes, at); }
};

/// Stages of the strides `stride`, 2 `stride`, ... `rows` / 2 `stride`, from `input` to z.
template <size_t rows, bool back, typename Input>
static void pass(const Input& input, float* z, size_t n, size_t stride) {
  for (size_t start = 0; start < n; start += rows * stride) {
    for (size_t at = start; at < start + stride; at += kLanes) {
      F v[rows];
      for (size_t i = 0; i < rows; ++i) v[i] = input(at + i * stride);
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
      pass<8, false>(RowOf{z}, z, n, stride), stride *= 8;
    } else if (left >= 4) {
      pass<4, false>(RowOf{z}, z, n, stride), stride *= 4;
    } else {
      pass<2, false>(RowOf{z}, z, n, stride), stride *= 2;
    }
  }
}
/// One pass back over the strides below `end`; returns the end of those that are left.
template <typename Input>
static size_t pass_back(const Input& input, float* z, size_t n, size_t end) {
  const size_t left = end / (kRows * kLanes);
  if (left >= 8 && left != 16) {
    pass<8, true>(input, z, n, end /= 8);
  } else if (left >= 4) {
    pass<4, true>(input, z, n, end /= 4);
  } else {
    pass<2, true>(input, z, n, end /= 2);
  }
  return end;
}
/// The far stages back, from `input` to z.
template <typename Input>
static void far_stages_back(const Input& input, float* z, size_t n) {
  static_assert(rotation::kLeastBlock > kRows * kLanes, "there is a pass");
  size_t end = pass_back(input, z, n, n);
  while (end > kRows * kLanes) end = pass_back(RowOf{z}, z, n, end);
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

/// v[0 .. n) of a block, and the stages below stride kRows * kLanes. Returns the sum of v^2.
template <typename T>
static float rotate_block(T type, const std::byte* x, size_t n, float down, uint64_t signs,
                          float* z) {
  const F by = set(down);
  BlockSum energy;
  Signs sign(signs, n);
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    fetch<false>(x, (n + start) * T::kBytes, kRows * kLanes * T::kBytes);
#pragma GCC unroll kRows  // or v lies in memory
    for (size_t i = 0; i < kRows; ++i) {
      const size_t at = start + i * kLanes;
      v[i] = sign.on(mul(load(type, x + at * T::kBytes), by), at);
      energy.see(i, v[i], v[i]);
      v[i] = lanes_forth(v[i]);
    }
    rows_forth<kRows>(v);
    for (size_t i = 0; i < kRows; ++i) store_row(z + start + i * kLanes, v[i]);
  }
  return energy.total();
}

/// The stages that are left after far_stages_back(), and the values. A NaN among the sums is rare: they
/// are added up, and looked through where that is one.
template <bool add_to>
static void values_of_block(const float* z, size_t n, float scale, uint64_t signs, float* y) {
  const F by = set(scale);
  F all = set(0.0f);
  Signs sign(signs, n);
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    fetch<true>(y, (n + start) * sizeof(float), kRows * kLanes * sizeof(float));
    for (size_t i = 0; i < kRows; ++i) v[i] = load_row(z + start + i * kLanes);
    rows_back<kRows>(v);
#pragma GCC unroll kRows
    for (size_t i = 0; i < kRows; ++i) {
      const size_t at = start + i * kLanes;
      F value = sign.on(mul(lanes_back(v[i]), by), at);
      if constexpr (add_to) {
        value = add(load_row(y + at), value);
        all = add(all, value);
      }
      store_row(y + at, value);
    }
  }
  if (add_to && any(nans(all, all))) make_one_nan(Float32{}, reinterpret_cast<std::byte*>(y), n);
}

/// The same for scales at which values may overflow.
static void careful_values(float* z, size_t n, float scale, uint64_t signs, float* y, bool add_to) {
  for (size_t start = 0; start < n; start += kRows * kLanes) {
    F v[kRows];
    for (size_t i = 0; i < kRows; ++i) v[i] = load_row(z + start + i * kLanes);
    rows_back<kRows>(v);
    for (size_t i = 0; i < kRows; ++i) store_row(z + start + i * kLanes, lanes_back(v[i]));
  }
  for (size_t i = 0; i < n; ++i) {
    const float value = rotation::signed_value(z[i], scale, signs, static_cast<uint32_t>(i));
    y[i] = add_to ? cgx::one_nan(y[i] + value) : value;
  }
}

static void fill_zeros(float* y, size_t n, bool add_to) {
  const F zero = set(0.0f);
  for (size_t i = 0; i < n; i += kLanes) {
    store_row(y + i, add_to ? one_nan(add(load_row(y + i), zero)) : zero);  // -0 becomes +0
  }
}

/// Of a block that was not finite; added or not.
static void fill_nan(float* y, size_t n) {
  const F nan = set(from_bits(kNan));
  for (size_t i = 0; i < n; i += kLanes) store_row(y + i, nan);
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
  if (largest >= 0x7f800000u) return {from_bits(kNan), 0.0f, 0.0f};
  const rotation::Prescale by = rotation::prescale(from_bits(largest));
  const float energy =
      rotate_block(type, block, part.block, by.down, rotation::sign_state(part.signs, start), z);
  // A long way, which the other stages hide.
  const rotation::Norm norm = rotation::norm_of(energy, part.block);
  far_stages(z, part.block);
  *inverse = norm.inverse;
  return {0.0f, norm.root, by.up};
}

/// The memory of this thread. Not inlined, or its address is asked for again in each step.
template <size_t count>
static __attribute__((noinline)) Group<count>& group_of_thread() {
  static thread_local Group<count> group;
  return group;
}

template <typename T, typename Encoder>
static void encode_as(const Part& part, const std::byte* x, std::byte* scales, std::byte* codes) {
  constexpr size_t kTogether = Encoder::kTogether;
  Group<kTogether>& group = group_of_thread<kTogether>();
  const Encoder encoder;
  const size_t n = part.block, whole = part.n / n * n;
  Codes<Encoder::kBits> out(codes, whole);
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
    encoder.quantize(group, n);
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
      out.put(group.codes[k], n);
    }
  }
  out.finish();
}

template <typename Encoder>
static void encode_part(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                        std::byte* codes) {
  switch (dtype) {
    default:  // float32
      return encode_as<Float32, Encoder>(part, x, scales, codes);
    case DType::kFloat16:
      return encode_as<Float16, Encoder>(part, x, scales, codes);
    case DType::kBFloat16:
      return encode_as<BFloat16, Encoder>(part, x, scales, codes);
  }
}

template <typename Decoder>
static void decode_part(const Part& part, const std::byte* scales, const std::byte* codes, float* y,
                        bool add_to) {
  constexpr size_t kBits = Decoder::kBits;
  alignas(64) float z[kLargestBlock];
  alignas(64) std::byte last[kLargestBlock * kBits / 8 + 64];
  const size_t n = part.block, whole = part.n / n * n, bytes = n / 8 * kBits;
  const Decoder decoder(rotation::stage_factor(rotation::stages_of(part.block)));
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
    if (scale != scale) {
      fill_nan(y + start, n);
      continue;
    }
    if constexpr (requires { decoder.level(in, start); }) {
      far_stages_back(LevelOf<Decoder>{decoder, in}, z, n);
    } else {
      decoder.levels(in, n, z);
      far_stages_back(RowOf{z}, z, n);
    }
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
