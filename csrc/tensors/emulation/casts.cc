#include "tensors/emulation/casts.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensors/activations/floating.h"
#include "tensors/checks.h"
#include "tensors/emulation/gpu.h"
#include "tensors/emulation/layout.h"
#include "tensors/memory.h"
#include "tensors/results.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

// Values that one thread measures at a time: so the order of their sums is the tensor's.
constexpr size_t kMeasured = kJoinedBlocks * kStatisticsBlock;

struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView autograd;
  SafeAfterFork one_thread;
};

// A call on contiguous memory of the CPU.
struct HostCall {
  const Cast& cast;
  const CastLayout layout;
  const std::byte* x;
  std::byte* y;
  DType dtype;
  RandomKey key;

  const std::byte* in(size_t value) const { return x + value * size_of(dtype); }
  std::byte* out(size_t value) const { return y + value * size_of(dtype); }
};

Measured measure_samples(const HostCall& call, size_t first, size_t count) {
  const size_t each = size_of(call.dtype), samples = std::min(call.cast.samples(), count);
  std::vector<std::byte> values(samples * each);
  for (size_t i = 0; i < samples; ++i) {
    const size_t place = casting::sample_place(call.key, i, samples, count);
    std::copy_n(call.in(first + place), each, values.data() + i * each);
  }
  return call.cast.measure(values.data(), call.dtype, samples);
}

Measured measure_all(const HostCall& call) {
  const size_t count = call.layout.values();
  if (call.cast.samples() > 0) return measure_samples(call, 0, count);
  std::vector<Measured> parts((count + kMeasured - 1) / kMeasured);
  in_parts(count, kMeasured, [&](size_t first, size_t n) {
    for (size_t done = 0; done < n; done += kMeasured) {
      parts[(first + done) / kMeasured] =
          call.cast.measure(call.in(first + done), call.dtype, std::min(kMeasured, n - done));
    }
  });
  Measured all = parts.at(0);
  for (size_t i = 1; i < parts.size(); ++i) all = call.cast.join(all, parts[i]);
  return all;
}

Cast::Run run_of(const HostCall& call, CastLayout::Place place, const Measured& of_tensor) {
  Cast::Run run{.count = place.count,
                .columns = call.layout.columns(),
                .total = call.layout.values(),
                .key = call.key,
                .index = place.first,
                .measured = of_tensor};
  if (call.cast.group() == Group::kRun) {
    run.total = place.count;
    run.measured = call.cast.samples() > 0
                       ? measure_samples(call, place.first, place.count)
                       : call.cast.measure(call.in(place.first), call.dtype, place.count);
  }
  return run;
}

// The statistics of all runs' blocks, one behind the other.
class Blocks {
 public:
  Blocks(const CastLayout& layout, bool wanted)
      : each_(statistics_blocks(layout.longest())), blocks_(wanted ? each_ * layout.runs() : 0) {}

  CastStatistics* of(size_t run) {
    return blocks_.empty() ? nullptr : blocks_.data() + run * each_;
  }
  CastStatistics total() const { return add_up(blocks_); }

 private:
  size_t each_;
  std::vector<CastStatistics> blocks_;
};

void cast_one_run(const HostCall& call, const Measured& measured, CastStatistics* blocks) {
  const Cast::Run run = run_of(call, call.layout.run(0), measured);
  const size_t unit = call.cast.block();
  // Parts are whole blocks and fill cache lines; with statistics they are whole blocks of those, too.
  const size_t border = unit <= kPartStep && kPartStep % unit == 0 ? kPartStep
                        : blocks != nullptr ? std::lcm(unit, kStatisticsBlock)
                                            : unit * (1 + kPartStep / unit);
  const auto body = [&](size_t first, size_t n) {
    call.cast.roundtrip(call.in(first), call.dtype, run, first, n, call.out(first), call.dtype,
                        blocks);
  };
  if (call.cast.block_rows() > 1) return body(0, run.count);
  in_parts(run.count, border, body);
}

void cast_runs(const HostCall& call, const Measured& measured, Blocks& blocks) {
  const size_t longest = call.layout.longest();
  in_parts(call.layout.runs() * longest, longest, [&](size_t first, size_t n) {
    for (size_t i = first / longest; i < (first + n) / longest; ++i) {
      const CastLayout::Place place = call.layout.run(i);
      call.cast.roundtrip(call.in(place.first), call.dtype, run_of(call, place, measured), 0,
                          place.count, call.out(place.first), call.dtype, blocks.of(i));
    }
  });
}

CastStatistics cast_on_cpu(const HostCall& call, bool statistics) {
  if (call.layout.values() == 0) return {};
  const Measured measured = call.cast.group() == Group::kTensor ? measure_all(call) : Measured{};
  Blocks blocks(call.layout, statistics);
  if (call.layout.runs() == 1) {
    cast_one_run(call, measured, blocks.of(0));
  } else {
    cast_runs(call, measured, blocks);
  }
  return blocks.total();
}

// The same of values on a GPU. Numbers of values do not depend on an order; sums are torch's, in float64.
at::Tensor statistics_of(const at::Tensor& x, const at::Tensor& y, const at::Tensor& beyond) {
  const at::Tensor finite = x.isfinite();
  const at::Tensor value = at::where(finite, x, 0).to(at::kDouble);
  const at::Tensor error =
      at::where(at::logical_and(finite, y.isfinite()), y.to(at::kDouble) - value, 0.0);
  const auto number = [](const at::Tensor& one) { return one.to(at::kDouble).reshape({1}); };
  return at::cat({at::full({1}, static_cast<double>(x.numel()), value.options()),
                  number(at::logical_not(finite).sum()),
                  number(at::logical_and(value != 0, y == 0).sum()), number(beyond),
                  number(x.numel() == 0 ? beyond : value.abs().amax()),
                  number((value * value).sum()), number((error * error).sum())})
      .cpu();
}

void cast_on_gpu(const Cast& cast, const at::Tensor& x, DType dtype, RandomKey key,
                 const at::Tensor& y, at::Tensor* statistics) {
  const CastLayout layout(cast, x.sizes());
  if (statistics == nullptr) return gpu_cast(cast, layout, x, dtype, key, y, nullptr);
  // Of results before they are rounded to the tensor's type; and of x as it was, in place.
  at::Tensor beyond;
  const bool wide = dtype == DType::kFloat64;
  const at::Tensor from = x.to(wide ? at::kDouble : at::kFloat);
  const at::Tensor to = at::empty_like(from);
  gpu_cast(cast, layout, from, wide ? dtype : DType::kFloat32, key, to, &beyond);
  *statistics = statistics_of(from, to, beyond);
  // Not by torch's copy, which writes other NaN bits.
  gpu_cast(cast, layout, x, dtype, key, y, nullptr);
}

at::Tensor as_tensor(const CastStatistics& s) {
  at::Tensor all = at::empty({7}, at::TensorOptions().dtype(at::kDouble));
  double* to = all.mutable_data_ptr<double>();
  to[0] = static_cast<double>(s.values);
  to[1] = static_cast<double>(s.nonfinite);
  to[2] = static_cast<double>(s.underflows);
  to[3] = static_cast<double>(s.saturations);
  to[4] = s.amax;
  to[5] = s.squared_values;
  to[6] = s.squared_error;
  return all;
}

RandomKey random_key_of(const CastKey& key) { return local_key(key.seed, key.step, key.number, 0); }

// x and y: the same strides, dense.
void cast_to(const Cast& cast, const at::Tensor& x, DType dtype, const CastKey& key,
             const at::Tensor& y, at::Tensor* statistics) {
  if (x.is_cuda()) return cast_on_gpu(cast, x, dtype, random_key_of(key), y, statistics);
  const HostCall call{cast,  CastLayout(cast, x.sizes()), bytes_of_host(x), bytes_of_host(y),
                      dtype, random_key_of(key)};
  const CastStatistics found = cast_on_cpu(call, statistics != nullptr);
  if (statistics != nullptr) *statistics = as_tensor(found);
}

// Whether values may be cast in the order in which they lie.
bool in_any_order(const Cast& cast, const at::Tensor& x) {
  return cast.elementwise() && !cast.stochastic() && x.is_non_overlapping_and_dense() &&
         !x.is_neg() && !x._is_zerotensor();
}

DType checked(const at::Tensor& tensor) {
  check_tensor("tensor", tensor);
  return floating_dtype("tensor.dtype", tensor.scalar_type());
}

}  // namespace

std::shared_ptr<const Cast> cast_of_text(std::string_view text) {
  using Known = std::unordered_map<std::string, std::shared_ptr<const Cast>>;
  constexpr size_t kMost = 1024;
  thread_local std::pair<std::string, std::shared_ptr<const Cast>> latest;
  if (latest.second && latest.first == text) return latest.second;
  static std::mutex mutex;
  static auto* known = new Known;  // never destroyed: threads may cast while the process ends
  std::string own(text);
  const std::lock_guard lock(mutex);
  auto found = known->find(own);
  if (found == known->end()) {
    auto cast = make_cast(casts().parse(own));
    if (known->size() >= kMost) known->clear();
    found = known->emplace(std::move(own), std::move(cast)).first;
  }
  latest = *found;
  return latest.second;
}

at::Tensor cast_tensor(const Cast& cast, const at::Tensor& tensor, const CastKey& key,
                       at::Tensor* statistics) {
  const BelowAutograd below;
  const DType dtype = checked(tensor);
  at::Tensor y = at::empty_like(tensor, at::MemoryFormat::Preserve);
  if (in_any_order(cast, tensor) && y.strides() == tensor.strides()) {
    cast_to(cast, tensor, dtype, key, y, statistics);
    return y;
  }
  const Result result(y, y.is_contiguous());
  cast_to(cast, dense_values(tensor), dtype, key, result.memory(), statistics);
  result.deliver();
  return y;
}

void cast_tensor_out(const Cast& cast, const at::Tensor& tensor, const CastKey& key,
                     const at::Tensor& out, at::Tensor* statistics) {
  const BelowAutograd below;
  const DType dtype = checked(tensor);
  check_tensor("out", out);
  check_device("out", out, "tensor", tensor);
  TORCH_CHECK_TYPE(out.scalar_type() == tensor.scalar_type(), "out is ", text_of(out.scalar_type()),
                   ", allowed: ", text_of(tensor.scalar_type()), ", as tensor");
  TORCH_CHECK_VALUE(out.sizes() == tensor.sizes(), "out has the shape ", out.sizes(),
                    ", allowed: ", tensor.sizes(), ", as tensor");
  check_writable("cast", out, false);
  // In place, a value is read before it is written.
  const bool same = tensor.const_data_ptr() == out.const_data_ptr() &&
                    tensor.strides() == out.strides() && !out.is_neg();
  if (in_any_order(cast, tensor) && tensor.strides() == out.strides() && !out.is_neg() &&
      !out._is_zerotensor() && (same || !overlaps(out, tensor))) {
    return cast_to(cast, tensor, dtype, key, out, statistics);
  }
  const at::Tensor x = dense_values(tensor);
  const bool in_place = x.const_data_ptr() == out.const_data_ptr();
  const Result result(out, can_write(out) && (in_place || !overlaps(out, x)));
  cast_to(cast, x, dtype, key, result.memory(), statistics);
  result.deliver();
}

}  // namespace cgx
