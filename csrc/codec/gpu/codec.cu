// The kernels: a grid of blocks that take tiles in turn. Only data movement is here; what a tile
// needs is in stages.h, and what a family does with it in codec/families/<name>/gpu.
#include "codec/families/gpu_list.h"
#include "codec/gpu/stages.h"

namespace cgx::gpu {
namespace {

/// Neighbouring threads of a warp. All threads of the warp exchange at the same time. (AMD's warps
/// have 64, which work here as two of 32.)
struct Team {
  uint32_t lanes;

  template <typename T>
  __device__ __forceinline__ T exchange(T value, uint32_t step) const {
#if defined(__HIPCC__)
    return __shfl_xor(value, static_cast<int>(step), 32);
#else
    return __shfl_xor_sync(0xffffffffu, value, step);
#endif
  }
};

struct ThreadBlock {
  /// In registers: k is known to the compiler.
  struct Kept {
    float values[kLongestTile / kThreads];
    __device__ __forceinline__ float& at(uint32_t, uint32_t k) { return values[k]; }
  };

  template <typename Work>
  __device__ __forceinline__ void phase(const Work& work) {
    work(threadIdx.x);
    __syncthreads();
  }

  template <typename Work>
  __device__ __forceinline__ void team_phase(uint32_t lanes, const Work& work) {
    work(threadIdx.x, Team{lanes});
    __syncthreads();
  }
};

}  // namespace

// Arguments stay where the driver put them: no thread copies the lists of addresses.
#if defined(__HIPCC__)
#define CGX_ARGUMENT(Call) const Call
#define CGX_CALL(Call) (*(const Call*)__builtin_amdgcn_kernarg_segment_ptr())
// The block's memory leaves room for no second block on a compute unit of 64 KiB.
#define CGX_BOUNDS(blocks) __launch_bounds__(kThreads)
#else
#define CGX_ARGUMENT(Call) const __grid_constant__ Call
#define CGX_CALL(Call) argument
#define CGX_BOUNDS(blocks) __launch_bounds__(kThreads, blocks)
#endif

// `blocks`: number of blocks on a multiprocessor at once. Kernels that sum whole buckets or keep
// values for error feedback need more registers, so fewer of their blocks fit.
#define CGX_KERNEL(name, Call, count, stage, blocks)                                \
  extern "C" __global__ void CGX_BOUNDS(blocks) name(CGX_ARGUMENT(Call) argument) { \
    __shared__ BlockMemory<KernelFamilies> memory;                                  \
    const Call& call = CGX_CALL(Call);                                              \
    ThreadBlock block;                                                              \
    for (uint64_t i = blockIdx.x; i < call.table.count; i += gridDim.x) {           \
      stage(block, memory, call, i);                                                \
    }                                                                               \
  }

CGX_KERNEL(cgx_encode, EncodeCall, tiles, encode_stage, kBlocks)
CGX_KERNEL(cgx_decode, DecodeCall, tiles, decode_stage, kBlocks)
CGX_KERNEL(cgx_sum, SumCall, tiles, sum_stage, kBlocks)
CGX_KERNEL(cgx_long_encode, EncodeCall, long_buckets, long_encode_stage, kBlocks)
CGX_KERNEL(cgx_long_sum, SumCall, long_buckets, long_sum_stage, kBlocks - 1)
CGX_KERNEL(cgx_encode_feedback, EncodeCall, tiles, encode_feedback_stage, kBlocks - 2)
CGX_KERNEL(cgx_sum_feedback, SumCall, tiles, sum_feedback_stage, kBlocks - 2)
CGX_KERNEL(cgx_long_encode_feedback, EncodeCall, long_buckets, long_encode_feedback_stage, kBlocks)
CGX_KERNEL(cgx_long_sum_feedback, SumCall, long_buckets, long_sum_feedback_stage, kBlocks - 1)
CGX_KERNEL(cgx_finite, FiniteCall, tiles, finite_stage, kBlocks)

}  // namespace cgx::gpu
