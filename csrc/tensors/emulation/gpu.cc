#include "tensors/emulation/gpu.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "codec/gpu/kernels.h"
#include "tensors/checks.h"
#include "tensors/gpu/here.h"
#include "tensors/gpu/kernels.h"

namespace cgx {
namespace {

using casting::on_gpu::Call;
using casting::on_gpu::Grid;
using casting::on_gpu::Work;

uint64_t parts_of(uint64_t values, uint64_t part) { return (values + part - 1) / part; }

// Eight values of each thread, if the block has so many.
uint32_t lanes_of(const Grid& grid) {
  const uint64_t groups = uint64_t{(grid.size + gpu::kGroup - 1) / gpu::kGroup} * grid.block_rows;
  uint32_t lanes = 1;
  while (lanes < groups && lanes < gpu::kThreads) lanes *= 2;
  return lanes;
}

void set_grid(Call& call, const CastLayout& layout) {
  Grid& grid = call.grid;
  grid.columns = layout.columns();
  grid.rows = layout.rows();
  // A block of a short row, or of few rows, needs no more threads than it has values.
  grid.size = grid.size == 0 ? grid.columns : std::min(grid.size, grid.columns);
  grid.block_rows = static_cast<uint32_t>(std::min<uint64_t>(grid.block_rows, grid.rows));
  grid.across = parts_of(grid.columns, grid.size);
  grid.strips = parts_of(grid.rows, grid.block_rows);
  call.blocks = grid.across * grid.strips * (call.values / (grid.columns * grid.rows));
  call.lanes = lanes_of(grid);
  call.count = parts_of(call.blocks, gpu::kThreads / call.lanes);
}

// What a cast needs of the whole tensor, on its device, where the call then points to it.
at::Tensor measure_tensor(Call& call, const at::Tensor& x) {
  if (call.work == Work::kRound) return {};
  if (call.work != Work::kBlocks) {
    const uint64_t all = parts_of(call.values, kStatisticsBlock);
    const auto numbers = static_cast<int64_t>(all * (sizeof(Measured) / sizeof(double)));
    at::Tensor measured = at::empty({numbers}, x.options().dtype(at::kDouble));
    call.measured = reinterpret_cast<Measured*>(measured.mutable_data_ptr<double>());
    return measured;
  }
  // Extremes do not depend on an order.
  const auto [least, greatest] = at::aminmax(x.detach().view({-1}));
  if (call.steps > 0) {
    at::Tensor range = at::stack({least, greatest}).to(at::kDouble);
    call.range = range.const_data_ptr<double>();
    return range;
  }
  at::Tensor amax = at::maximum(least.abs(), greatest.abs()).to(at::kDouble);
  call.amax = amax.const_data_ptr<double>();
  return amax;
}

}  // namespace

void gpu_cast(const Cast& cast, const CastLayout& layout, const at::Tensor& x, DType dtype,
              RandomKey key, const at::Tensor& y, at::Tensor* beyond) {
  Call call{};
  call.largest = cast.largest();
  call.lowest = -call.largest;
  call.values = layout.values();
  TORCH_CHECK_NOT_IMPLEMENTED(cast.set_call(call), "no kernel casts to ", cast.describe(),
                              ": cast x.cpu()");
  if (beyond != nullptr) *beyond = at::zeros({1}, x.options().dtype(at::kLong));
  if (layout.values() == 0) return;
  call.x = bytes_of(x);
  call.y = bytes_of(y);
  call.key = key;
  static_assert(static_cast<uint8_t>(DType::kFloat64) == gpu::kWideType);
  call.type = static_cast<uint8_t>(dtype);
  if (call.work == Work::kBlocks) {
    set_grid(call, layout);
  } else {
    call.count = parts_of(call.values, gpu::kPartValues);
  }
  const Here here(x.device(), "a cast of torch_cgx.emulate");
  const at::Tensor measured =
      cast.group() == Group::kTensor ? measure_tensor(call, x) : at::Tensor();
  if (beyond != nullptr) {
    call.beyond = reinterpret_cast<unsigned long long*>(beyond->mutable_data_ptr<int64_t>());
  }
  kernels_for(here.queue(), kernel_loader()).cast(call, here.queue().stream());
}

}  // namespace cgx
