// Codecs on tensors: the operators encode, decode and roundtrip of operators.h, on the CPU and on a GPU.
//
// Tensors may have any strides, and be lazily negated or zero. Long tensors on the CPU use the
// caller's intra-op threads; on a GPU all goes to its current stream. Errors: TypeError and ValueError
// for tensors that do not fit; ConfigError: the text is no codec's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "codec/codec.h"

namespace cgx {

/// What a random number depends on beside the codec's seed and the element: local_key() of
/// codec/ops/random.h. index: number of the first element.
struct ElementKey {
  uint64_t step = 0;
  uint64_t number = 0;
  int64_t rank = 0;
  uint64_t index = 0;
};

at::Tensor encode(const Codec& codec, const at::Tensor& x, const ElementKey& key);
/// out: uint8, one dimension, of exactly the payload's size, on the device of x.
void encode_out(const Codec& codec, const at::Tensor& x, const ElementKey& key,
                const at::Tensor& out);

/// `numel` values of a tensor of type `type`. ValueError unless the payload is as long as theirs.
at::Tensor decode(const Codec& codec, const at::Tensor& payload, int64_t numel,
                  at::ScalarType type);
/// To `out`, or added to it in float32. type: of the tensor that was encoded; none: of `out`.
void decode_out(const Codec& codec, const at::Tensor& payload, std::optional<at::ScalarType> type,
                bool add, const at::Tensor& out);

/// What decode() gives of the encoding of x, slice by slice: nothing holds the whole payload on the
/// CPU. On a GPU one kernel does it, with memory for a payload that is free afterwards.
at::Tensor roundtrip(const Codec& codec, const at::Tensor& x, const ElementKey& key);
/// out: as x, which it may be.
void roundtrip_out(const Codec& codec, const at::Tensor& x, const ElementKey& key,
                   const at::Tensor& out);

}  // namespace cgx
