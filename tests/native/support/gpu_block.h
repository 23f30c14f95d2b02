// What a thread block does with a codec's run, by a loop over its threads, against the codec of the
// CPU. Barriers and warps are not tested here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec/codec.h"
#include "codec/gpu/run_table.h"

namespace cgx::native {

inline constexpr RandomKey kKey{0x12345678u, 0x9abcdef0u};

inline constexpr uint64_t kIndex = 0xffffff80u;  // the counter's low word overflows soon

/// A run, and the table with which the kernels see it.
struct BlockCase {
  std::shared_ptr<const Codec> codec;
  DType dtype;
  size_t n;
  std::vector<std::byte> x;

  gpu::Type type() const { return static_cast<gpu::Type>(dtype); }
  size_t bytes() const { return codec->encoded_bytes(n, dtype); }
  gpu::RunTable table() const {
    gpu::RunTable table;
    table.add(*codec, dtype, 0, 0, n, kIndex, 0, 0);
    return table;
  }
};

inline std::string name_of(const BlockCase& c) {
  return str_of(c.codec->describe(), ", ", cgx::name_of(c.dtype), ", n=", c.n);
}

/// Values between -2 and 2, some of them 0.
inline std::vector<float> ordinary(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  uint64_t state = seed;
  for (float& v : x) {
    state = splitmix64(state);
    v = static_cast<float>(static_cast<int64_t>(state)) * 0x1p-62f;
    if (state % 97 == 0) v = 0.0f;
  }
  return x;
}

/// Bits that are NaN in a type, of each kind: of either sign, quiet or signalling, with a payload or
/// without.
std::vector<uint32_t> nans_of(DType dtype);

/// Whether each NaN among n values is the one that is written: base/nan.h.
bool has_one_nan(const void* values, DType dtype, size_t n);

/// Payload of the codec of the CPU.
std::vector<std::byte> encode_on_cpu(const BlockCase& c, const std::vector<std::byte>& x);

/// CHECK that the stages give the bytes and values of the CPU: encode; decode, also added; the sum
/// of three payloads and this rank's own values.
void check_encode(const BlockCase& c);
void check_decode(const BlockCase& c);
void check_sum(const BlockCase& c);

/// What a call with error feedback may differ in.
struct FeedbackWay {
  size_t shift = 0;  // bytes of values and residual off a multiple of 16
  bool plus = true;  // the residual is added to own values
  float divisor = 2;
  bool own_first = false;  // of the summands
};

/// The same with error feedback: the residual that encode, and the sum of a payload and own values,
/// leave behind.
void check_feedback(const BlockCase& c, const FeedbackWay& way = {});

/// The two checks for finite values: of what a case's payload decodes to, and of the case's own values.
bool finite_on_block(const BlockCase& c);
bool values_finite_on_block(const BlockCase& c);

}  // namespace cgx::native
