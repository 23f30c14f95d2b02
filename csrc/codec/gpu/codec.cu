// The kernels: a grid of thread blocks that take tiles in turn. Only data movement is here; what a tile
// needs is in stages.h, and what a family does with it in codec/families/<name>/gpu.
#include "codec/activations/dropout/gpu/stage.h"
#include "codec/bounded/gpu/decode.h"
#include "codec/bounded/gpu/encode.h"
#include "codec/bounded/gpu/look.h"
#include "codec/casts/gpu/blocks.h"
#include "codec/casts/gpu/measured.h"
#include "codec/compat/gpu/decode.h"
#include "codec/compat/gpu/encode.h"
#include "codec/families/gpu_list.h"
#include "codec/gpu/stages.h"
#include "codec/gpu/warp.h"
#include "codec/levels/gpu/stages.h"

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

/// Also on AMD, whose warps have 64 lanes and work here as two.
struct DeviceWarp {
  template <typename T>
  struct Own {
    T value;
    __device__ __forceinline__ T& operator()(uint32_t) { return value; }
    __device__ __forceinline__ const T& operator()(uint32_t) const { return value; }
  };

  template <typename Work>
  __device__ __forceinline__ void each(const Work& work) {
    work(threadIdx.x % kLanes);
  }

  template <typename T>
  __device__ __forceinline__ Own<T> exchange(const Own<T>& own, uint32_t step) const {
    return {Team{kLanes}.exchange(own.value, step)};
  }
  template <typename T, uint32_t n>
  __device__ __forceinline__ Own<Array<T, n>> exchange(const Own<Array<T, n>>& own,
                                                       uint32_t step) const {
    Own<Array<T, n>> others;
    CGX_UNROLL for (uint32_t i = 0; i < n; ++i) {
      others.value[i] = Team{kLanes}.exchange(own.value[i], step);
    }
    return others;
  }

  template <typename T>
  __device__ __forceinline__ Own<T> take(const Own<T>& own, const Own<uint32_t>& from) const {
#if defined(__HIPCC__)
    return {__shfl(own.value, static_cast<int>(from.value % kLanes), 32)};
#else
    return {__shfl_sync(0xffffffffu, own.value, from.value)};
#endif
  }

  __device__ __forceinline__ void share() const {
#if defined(__HIPCC__)
    __threadfence_block();
    __builtin_amdgcn_wave_barrier();
#else
    __syncwarp();
#endif
  }
};

/// The number of this warp in its thread block. A value that comes from one lane is known to be the same in
/// all: what follows from it, and branches on that, need no registers of each lane, and no code for
/// lanes that have parted.
__device__ __forceinline__ uint32_t number_of_warp() {
#if defined(__HIPCC__)
  return threadIdx.x / kLanes;
#else
  return __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0);
#endif
}

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

  /// A phase of a work that returns a bool: whether any thread's is true. Before the next one with the
  /// same memory there is another phase.
  template <typename Work>
  __device__ __forceinline__ bool any_phase(uint32_t (&warps)[kThreads / kLanes],
                                            const Work& work) {
    uint32_t found = work(threadIdx.x) ? 1 : 0;
    CGX_UNROLL for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
      found |= Team{kLanes}.exchange(found, step);
    }
    if (threadIdx.x % kLanes == 0) warps[threadIdx.x / kLanes] = found;
    __syncthreads();
    uint32_t any = 0;
    CGX_UNROLL for (uint32_t warp = 0; warp < kThreads / kLanes; ++warp) any |= warps[warp];
    return any != 0;
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
// The memory of a thread block leaves room for no second one on a compute unit of 64 KiB.
#define CGX_BOUNDS(threads, blocks) __launch_bounds__(threads)
#else
#define CGX_ARGUMENT(Call) const __grid_constant__ Call
#define CGX_CALL(Call) argument
#define CGX_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

// `blocks`: number of thread blocks on a multiprocessor at once. Kernels that sum whole buckets or keep
// values for error feedback need more registers, so fewer of their thread blocks fit.
#define CGX_KERNEL(name, Call, count, stage, blocks)                                          \
  extern "C" __global__ void CGX_BOUNDS(kThreads, blocks) name(CGX_ARGUMENT(Call) argument) { \
    __shared__ BlockMemory<KernelFamilies> memory;                                            \
    const Call& call = CGX_CALL(Call);                                                        \
    ThreadBlock block;                                                                        \
    for (uint64_t i = blockIdx.x; i < call.table.count; i += gridDim.x) {                     \
      stage(block, memory, call, i);                                                          \
    }                                                                                         \
  }

CGX_KERNEL(cgx_encode, EncodeCall, tiles, encode_stage, kThreadBlocks)
CGX_KERNEL(cgx_decode, DecodeCall, tiles, decode_stage, kThreadBlocks)
CGX_KERNEL(cgx_sum, SumCall, tiles, sum_stage, kThreadBlocks - 1)
CGX_KERNEL(cgx_long_encode, EncodeCall, long_buckets, long_encode_stage, kThreadBlocks)
CGX_KERNEL(cgx_long_sum, SumCall, long_buckets, long_sum_stage, kThreadBlocks - 1)
CGX_KERNEL(cgx_encode_feedback, EncodeCall, tiles, encode_feedback_stage, kThreadBlocks - 1)
CGX_KERNEL(cgx_sum_feedback, SumCall, tiles, sum_feedback_stage, kThreadBlocks - 1)
CGX_KERNEL(cgx_long_encode_feedback, EncodeCall, long_buckets, long_encode_feedback_stage,
           kThreadBlocks)
CGX_KERNEL(cgx_long_sum_feedback, SumCall, long_buckets, long_sum_feedback_stage, kThreadBlocks - 1)
CGX_KERNEL(cgx_finite, FiniteCall, tiles, finite_stage, kThreadBlocks)

/// A kernel without a table of runs: a thread block takes a block of values at a time, or a part of
/// one.
#define CGX_BLOCK_KERNEL(name, Call, Memory, stage)                 \
  extern "C" __global__ void CGX_BOUNDS(kThreads, kThreadBlocks)    \
      name(CGX_ARGUMENT(Call) argument) {                           \
    __shared__ Memory memory;                                       \
    const Call& call = CGX_CALL(Call);                              \
    ThreadBlock block;                                              \
    for (uint64_t i = blockIdx.x; i < call.count; i += gridDim.x) { \
      stage(block, memory, call, i);                                \
    }                                                               \
  }

CGX_BLOCK_KERNEL(cgx_bounded_look, bounded::on_gpu::LookCall, bounded::on_gpu::LookMemory,
                 bounded::on_gpu::look_stage)
CGX_BLOCK_KERNEL(cgx_bounded_encode, bounded::on_gpu::BlocksCall,
                 bounded::on_gpu::EncodeMemory<int32_t>, bounded::on_gpu::encode_stage)
CGX_BLOCK_KERNEL(cgx_bounded_encode_wide, bounded::on_gpu::BlocksCall,
                 bounded::on_gpu::EncodeMemory<int64_t>, bounded::on_gpu::encode_stage)
CGX_BLOCK_KERNEL(cgx_bounded_decode, bounded::on_gpu::BlocksCall,
                 bounded::on_gpu::DecodeMemory<int32_t>, bounded::on_gpu::decode_stage)
CGX_BLOCK_KERNEL(cgx_bounded_decode_wide, bounded::on_gpu::BlocksCall,
                 bounded::on_gpu::DecodeMemory<int64_t>, bounded::on_gpu::decode_stage)
CGX_BLOCK_KERNEL(cgx_cuda_float_encode, cuda_float_compress::on_gpu::EncodeCall,
                 cuda_float_compress::on_gpu::EncodeMemory,
                 cuda_float_compress::on_gpu::encode_stage)
CGX_BLOCK_KERNEL(cgx_cuda_float_decode, cuda_float_compress::on_gpu::DecodeCall,
                 cuda_float_compress::on_gpu::DecodeMemory,
                 cuda_float_compress::on_gpu::decode_stage)

CGX_BLOCK_KERNEL(cgx_level_encode, levels::on_gpu::EncodeCall, NoMemory,
                 levels::on_gpu::encode_stage)
CGX_BLOCK_KERNEL(cgx_level_multiply, levels::on_gpu::MultiplyCall, NoMemory,
                 levels::on_gpu::multiply_stage)
CGX_BLOCK_KERNEL(cgx_dropout, dropping::on_gpu::Call, NoMemory, dropping::on_gpu::stage)
CGX_BLOCK_KERNEL(cgx_cast_round, casting::on_gpu::Call, NoMemory, casting::on_gpu::round_stage)
CGX_BLOCK_KERNEL(cgx_cast_blocks, casting::on_gpu::Call, casting::on_gpu::BlocksMemory,
                 casting::on_gpu::blocks_stage)
CGX_BLOCK_KERNEL(cgx_cast_measure, casting::on_gpu::Call, casting::on_gpu::MeasureMemory,
                 casting::on_gpu::measure_stage)
CGX_BLOCK_KERNEL(cgx_cast_join, casting::on_gpu::Call, NoMemory, casting::on_gpu::join_stage)
CGX_BLOCK_KERNEL(cgx_cast_zscore, casting::on_gpu::Call, NoMemory,
                 casting::on_gpu::measured_stage<casting::on_gpu::ByZScore>)
CGX_BLOCK_KERNEL(cgx_cast_squeezed, casting::on_gpu::Call, NoMemory,
                 casting::on_gpu::measured_stage<casting::on_gpu::BySlope>)

/// The shared memory of a warp's family; none where it has an empty struct for it.
#define CGX_WARP_KERNEL(name, Call, Family, stage, warps, blocks)                                  \
  extern "C" __global__ void CGX_BOUNDS(warps* kLanes, blocks) name(CGX_ARGUMENT(Call) argument) { \
    __shared__ typename Family::Memory memory[warps];                                              \
    const Call& call = CGX_CALL(Call);                                                             \
    DeviceWarp warp;                                                                               \
    const uint32_t mine = number_of_warp();                                                        \
    const uint64_t items = call.table.tiles << call.table.split;                                   \
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * warps + mine; i < items;                 \
         i += static_cast<uint64_t>(gridDim.x) * warps) {                                          \
      stage(warp, memory[mine], call, i);                                                          \
    }                                                                                              \
  }

/// Encode and decode with a kernel for each type; `blocks`: thread blocks on a multiprocessor at once.
#define CGX_TYPED_WARP_KERNELS(family, Family, warps, encoders, decoders)                          \
  CGX_WARP_KERNEL(cgx_##family##_encode_fp32, EncodeCall, Family, Family::encode<Type::kFloat32>,  \
                  warps, encoders)                                                                 \
  CGX_WARP_KERNEL(cgx_##family##_encode_fp16, EncodeCall, Family, Family::encode<Type::kFloat16>,  \
                  warps, encoders)                                                                 \
  CGX_WARP_KERNEL(cgx_##family##_encode_bf16, EncodeCall, Family, Family::encode<Type::kBFloat16>, \
                  warps, encoders)                                                                 \
  CGX_WARP_KERNEL(cgx_##family##_decode_fp32, DecodeCall, Family, Family::decode<Type::kFloat32>,  \
                  warps, decoders)                                                                 \
  CGX_WARP_KERNEL(cgx_##family##_decode_fp16, DecodeCall, Family, Family::decode<Type::kFloat16>,  \
                  warps, decoders)                                                                 \
  CGX_WARP_KERNEL(cgx_##family##_decode_bf16, DecodeCall, Family, Family::decode<Type::kBFloat16>, \
                  warps, decoders)

CGX_TYPED_WARP_KERNELS(maxmin, maxmin::Warps, 4, 5, 7)
CGX_WARP_KERNEL(cgx_maxmin_sum, SumCall, maxmin::Warps, maxmin::Warps::sum, 4, 3)

CGX_WARP_KERNEL(cgx_rotated_encode, EncodeCall, rotated::Warps, rotated::Warps::encode, 4, 6)
CGX_WARP_KERNEL(cgx_rotated_decode, DecodeCall, rotated::Warps, rotated::Warps::decode, 4, 7)
CGX_WARP_KERNEL(cgx_rotated_sum, SumCall, rotated::Warps, rotated::Warps::sum, 4, 3)
CGX_WARP_KERNEL(cgx_trellis_encode, EncodeCall, trellis::Warps, trellis::Warps::encode, 2, 5)
CGX_WARP_KERNEL(cgx_trellis_decode, DecodeCall, trellis::Warps, trellis::Warps::decode, 2, 12)
CGX_WARP_KERNEL(cgx_trellis_sum, SumCall, trellis::Warps, trellis::Warps::sum, 2, 4)

}  // namespace cgx::gpu
