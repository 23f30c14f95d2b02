// The kernels: a grid of blocks that take tiles in turn. Only data movement is here; what a tile
// needs is in stages.h, and the formulas in codec/maxmin.h.
#include "codec/cuda/stages.h"

namespace cgx::gpu {
namespace {

struct ThreadBlock {
  template <typename Phase>
  __device__ __forceinline__ void phase(const Phase& run) {
    run(threadIdx.x);
    __syncthreads();
  }

  __device__ __forceinline__ void extremes(Shared& shared, const Tile& tile) {
    const auto fold = [](Extremes& e, uint32_t lanes) {
      for (uint32_t step = lanes / 2; step > 0; step /= 2) {
        const Extremes other = {
            __shfl_xor_sync(0xffffffffu, e.min, step), __shfl_xor_sync(0xffffffffu, e.max, step),
            __shfl_xor_sync(0xffffffffu, static_cast<int>(e.finite), step) != 0};
        e.join(other);
      }
    };
    extremes_phase(shared, tile, threadIdx.x, fold, lanes_of(tile.run->bucket), kThreads);
    __syncthreads();
  }
};

template <typename Stage>
__device__ __forceinline__ void for_each(uint64_t n, const Stage& stage) {
  __shared__ Shared shared;
  ThreadBlock block;
  for (uint64_t i = blockIdx.x; i < n; i += gridDim.x) stage(block, shared, i);
}

}  // namespace

// Arguments stay where the driver put them: no thread copies the lists of addresses.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define CGX_ARGUMENT const __grid_constant__
#else
#define CGX_ARGUMENT const
#endif

#define CGX_KERNEL(name, Call, count, stage)                                            \
  extern "C" __global__ void __launch_bounds__(kThreads) name(CGX_ARGUMENT Call call) { \
    for_each(call.table.count, [&](ThreadBlock& block, Shared& shared, uint64_t i) {    \
      stage(block, shared, call, i);                                                    \
    });                                                                                 \
  }

CGX_KERNEL(cgx_encode, EncodeCall, tiles, encode_stage)
CGX_KERNEL(cgx_decode, DecodeCall, tiles, decode_stage)
CGX_KERNEL(cgx_sum, SumCall, tiles, sum_stage)
CGX_KERNEL(cgx_wide_encode, EncodeCall, wide_buckets, wide_encode_stage)
CGX_KERNEL(cgx_wide_sum, SumCall, wide_buckets, wide_sum_stage)
CGX_KERNEL(cgx_finite, FiniteCall, tiles, finite_stage)

}  // namespace cgx::gpu
