#include "tensors/activations/levels.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "codec/activations/integers/pack.h"
#include "codec/levels/level_table.h"
#include "tensors/activations/floating.h"
#include "tensors/activations/gpu.h"
#include "tensors/checks.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

void check_levels(size_t levels) {
  TORCH_CHECK_VALUE(levels >= 2 && levels <= kMostLevelsOfOperators, "a table has ", levels,
                    " levels, allowed: 2 to ", kMostLevelsOfOperators);
}

// A table for its levels alone.
LevelTable table_of(at::ArrayRef<double> levels) {
  check_levels(levels.size());
  std::vector<double> borders(levels.size() - 1);
  for (size_t i = 0; i < borders.size(); ++i) borders[i] = static_cast<double>(i);
  return {borders, levels.vec()};
}

size_t mask_bytes(size_t n) { return packed_bytes(n, 1); }

// The codes, and behind them a bit for each value.
at::Tensor with_mask(const at::Tensor& codes, const at::Tensor& x) {
  const at::Tensor nans = at::isnan(x);
  at::Tensor marked =
      at::empty({codes.numel() + static_cast<int64_t>(mask_bytes(count_of(x)))}, codes.options());
  marked.narrow(0, 0, codes.numel()).copy_(codes);
  pack_integers(nans.const_data_ptr(), DType::kBool, count_of(x), 0, 1,
                bytes_of_host(marked) + codes.numel());
  return marked;
}

void put_nans(const at::Tensor& y, const std::byte* mask) {
  const at::Tensor nans = at::empty(y.sizes(), y.options().dtype(at::kBool));
  unpack_integers(mask, DType::kBool, count_of(y), 0, 1, nans.mutable_data_ptr());
  const_cast<at::Tensor&>(y).masked_fill_(nans, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

at::Tensor level_encode(const at::Tensor& tensor, at::ArrayRef<double> borders, int64_t levels,
                        bool magnitude, bool mark_nans) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("tensor", tensor);
  const DType dtype = floating_dtype("tensor.dtype", tensor.scalar_type());
  check_levels(borders.size() + 1);
  check_levels(static_cast<size_t>(levels));
  TORCH_CHECK_VALUE(!mark_nans || tensor.is_cpu(), "mark_nans is True for a tensor on ",
                    tensor.device(), ", allowed on this device: False");
  const std::vector<double> no_levels(static_cast<size_t>(levels));
  const LevelTable table(borders.vec(), no_levels, magnitude);
  const at::Tensor x = readable(tensor);
  const size_t count = count_of(x);
  const at::Tensor codes =
      at::empty({static_cast<int64_t>(table.code_bytes(count))}, x.options().dtype(at::kByte));
  if (x.is_cuda()) {
    gpu_level_encode(x, dtype, table, codes);
    return codes;
  }
  const std::byte* from = bytes_of_host(x);
  std::byte* to = bytes_of_host(codes);
  std::atomic<bool> nan{false};
  in_parts(count, kPartStep, [&](size_t first, size_t n) {
    const bool found =
        table.encode(from + first * size_of(dtype), dtype, n, to + table.code_bytes(first));
    if (found) nan = true;
  });
  return nan && mark_nans ? with_mask(codes, x) : codes;
}

at::Tensor level_multiply(const at::Tensor& given, const at::Tensor& given_codes,
                          at::ArrayRef<double> levels) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("grad", given);
  const DType dtype = floating_dtype("grad.dtype", given.scalar_type());
  check_tensor("codes", given_codes);
  check_payload("codes", given_codes);
  check_device("codes", given_codes, "grad", given);
  const LevelTable table = table_of(levels);
  const at::Tensor grad = readable(given), codes = readable(given_codes);
  const size_t count = count_of(grad), bytes = table.code_bytes(count);
  const bool marked = codes.is_cpu() && count > 0 && count_of(codes) == bytes + mask_bytes(count);
  TORCH_CHECK_VALUE(count_of(codes) == bytes || marked, "codes has ", codes.numel(),
                    " bytes, allowed for ", count, " values of ", levels.size(), " levels: ", bytes,
                    ", and ", mask_bytes(count), " more where NaNs are marked");
  at::Tensor y = at::empty(grad.sizes(), grad.options());
  if (grad.is_cuda()) {
    gpu_level_multiply(grad, dtype, table, codes, y);
    return y;
  }
  const std::byte* from = bytes_of_host(codes);
  const std::byte* factors = bytes_of_host(grad);
  std::byte* to = bytes_of_host(y);
  in_parts(count, kPartStep, [&](size_t first, size_t n) {
    const size_t at = first * size_of(dtype);
    table.multiply(from + table.code_bytes(first), factors + at, n, to + at, dtype);
  });
  if (marked) put_nans(y, from + bytes);
  return y;
}

at::Tensor level_decode(const at::Tensor& given, at::ArrayRef<double> levels, int64_t numel,
                        at::ScalarType type) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("codes", given);
  check_payload("codes", given);
  TORCH_CHECK_VALUE(given.is_cpu(), "codes is on device ", given.device(), ", allowed: cpu");
  TORCH_CHECK_VALUE(numel >= 0, "numel is ", numel, ", allowed: 0 or more");
  const DType dtype = floating_dtype("dtype", type);
  const LevelTable table = table_of(levels);
  const auto count = static_cast<size_t>(numel);
  TORCH_CHECK_VALUE(count_of(given) == table.code_bytes(count), "codes has ", given.numel(),
                    " bytes, allowed for ", numel, " values of ", levels.size(),
                    " levels: ", table.code_bytes(count));
  const at::Tensor codes = readable(given);
  at::Tensor y = at::empty({numel}, codes.options().dtype(type));
  const std::byte* from = bytes_of_host(codes);
  std::byte* to = bytes_of_host(y);
  in_parts(count, kPartStep, [&](size_t first, size_t n) {
    std::byte* out = to + first * size_of(dtype);
    if (dtype == DType::kFloat64) {
      table.decode(from + table.code_bytes(first), n, reinterpret_cast<double*>(out));
    } else {
      table.decode(from + table.code_bytes(first), n, out, dtype);
    }
  });
  return y;
}

at::Tensor pack_two_values(const at::Tensor& tensor, double low, double high) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("tensor", tensor);
  TORCH_CHECK_VALUE(tensor.is_cpu(), "tensor is on device ", tensor.device(), ", allowed: cpu");
  const DType dtype = floating_dtype("tensor.dtype", tensor.scalar_type());
  TORCH_CHECK_VALUE(low < high, "low is ", low, ", allowed: less than high, ", high);
  const double none = -std::numeric_limits<double>::infinity();
  // A value has an odd number of these borders below it where it is low or high.
  const LevelTable fits({std::nextafter(low, none), low, std::nextafter(high, none), high}, {0, 1});
  const LevelTable table({low}, {low, high});
  const at::Tensor x = readable(tensor);
  const size_t count = count_of(x);
  const at::Tensor codes =
      at::empty({static_cast<int64_t>(table.code_bytes(count))}, x.options().dtype(at::kByte));
  const std::byte* from = bytes_of_host(x);
  std::byte* to = bytes_of_host(codes);
  std::atomic<bool> others{false};
  in_parts(count, kPartStep, [&](size_t first, size_t n) {
    std::byte bits[kPartStep / 8];
    for (size_t at = first; at < first + n && !others; at += kPartStep) {
      const size_t some = std::min(kPartStep, first + n - at);
      const std::byte* values = from + at * size_of(dtype);
      bool nan = fits.encode(values, dtype, some, bits);
      for (size_t i = 0; i < some / 8; ++i) nan |= bits[i] != std::byte{0xff};
      nan |= some % 8 != 0 && bits[some / 8] != static_cast<std::byte>((1u << some % 8) - 1);
      if (nan) others = true;
      table.encode(values, dtype, some, to + at / 8);
    }
  });
  return others ? at::empty({0}, codes.options()) : codes;
}

}  // namespace cgx
