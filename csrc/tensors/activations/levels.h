// The table of a derivative on tensors: operators level_encode and level_multiply (codec/levels).
//
// float32, float64, float16 and bfloat16, on the CPU or a GPU; any strides, values in row-major order.
// Long tensors on the CPU use the caller's intra-op threads; on a GPU all goes to its current stream, and
// the host waits for nothing. Errors: TypeError and ValueError for tensors that do not fit; ConfigError:
// a table that does not fit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace cgx {

inline constexpr size_t kMostLevelsOfOperators = 16;

/// The codes of x for a table of so many levels: uint8, ceil(bits * numel / 8) of them, where x is.
/// levels: one more than borders, or a power of two that is less, of levels that take turns.
/// magnitude: borders are compared with |x|. mark_nans: if a value is NaN, a bit for each value follows, lowest first, that is 1 where it
/// is; only on the CPU, as the size then depends on values.
at::Tensor level_encode(const at::Tensor& x, at::ArrayRef<double> borders, int64_t levels,
                        bool magnitude, bool mark_nans);

/// grad times the level of each code: as grad, contiguous. NaN where the codes mark one. codes: what
/// level_encode() gave for as many values, and as many levels.
at::Tensor level_multiply(const at::Tensor& grad, const at::Tensor& codes,
                          at::ArrayRef<double> levels);

/// The levels themselves of numel codes: `type`, one dimension. On the CPU.
at::Tensor level_decode(const at::Tensor& codes, at::ArrayRef<double> levels, int64_t numel,
                        at::ScalarType type);

/// Codes of a tensor on the CPU whose values are all low or high, a bit each, 1 for high; an empty
/// tensor if there are others.
at::Tensor pack_two_values(const at::Tensor& x, double low, double high);

}  // namespace cgx
