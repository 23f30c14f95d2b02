// The kernels that the stub driver launches: the stages of csrc/codec/gpu, each by its name. In an
// unnamed namespace, as stub_device.h.
#pragma once

#include <cstdint>
#include <functional>

#include "codec/activations/dropout/gpu/stage.h"
#include "codec/bounded/gpu/decode.h"
#include "codec/bounded/gpu/encode.h"
#include "codec/bounded/gpu/look.h"
#include "codec/casts/gpu/blocks.h"
#include "codec/casts/gpu/measured.h"
#include "codec/compat/gpu/decode.h"
#include "codec/compat/gpu/encode.h"
#include "codec/levels/gpu/stages.h"
#include "host_kernels.h"

namespace {

using cgx::bounded::on_gpu::BlocksCall;
using cgx::bounded::on_gpu::DecodeMemory;
using cgx::bounded::on_gpu::EncodeMemory;
using cgx::bounded::on_gpu::LookCall;
using cgx::bounded::on_gpu::LookMemory;
namespace cuda_float = cgx::cuda_float_compress::on_gpu;
namespace levels = cgx::levels::on_gpu;
namespace dropout = cgx::dropping::on_gpu;
namespace casting = cgx::casting::on_gpu;
using cgx::gpu::DecodeCall;
using cgx::gpu::EncodeCall;
using cgx::gpu::FiniteCall;
using cgx::gpu::NoMemory;
using cgx::gpu::SumCall;

template <typename Call>
std::function<void()> job(const void* argument, uint64_t (*count)(const Call&),
                          cgx::device::Stage<Call, cgx::gpu::KernelFamilies> stage) {
  const Call call = *static_cast<const Call*>(argument);
  return [call, count, stage] { cgx::device::launch(call, count(call), stage); };
}

template <typename Call>
uint64_t tiles(const Call& call) {
  return call.table.tiles;
}
template <typename Call>
uint64_t long_buckets(const Call& call) {
  return call.table.long_buckets;
}

/// Whether addresses are multiples of a value's size: warps read and write values whole.
bool aligned(const void* values, cgx::gpu::Type type) {
  return reinterpret_cast<uintptr_t>(values) % cgx::gpu::size_of(type) == 0;
}
bool aligned(const EncodeCall& call) { return aligned(call.x, call.type); }
bool aligned(const DecodeCall& call) { return aligned(call.y, call.type); }
bool aligned(const SumCall& call) {
  return aligned(call.x, call.own) && aligned(call.y, call.type);
}

template <typename Call>
std::function<void()> warps(const void* argument, void (*work)(const Call&)) {
  const Call call = *static_cast<const Call*>(argument);
  if (!aligned(call)) return nullptr;
  return [call, work] { work(call); };
}

#define CGX_STUB_WARPS(name, Family)                                                    \
  {"cgx_" name "_sum",                                                                  \
   [](const void* a) { return warps<SumCall>(a, cgx::device::sum_by_warps<Family>); }}, \
      CGX_STUB_TYPE(name, Family, "_fp32"), CGX_STUB_TYPE(name, Family, "_fp16"),       \
      CGX_STUB_TYPE(name, Family, "_bf16")
/// The same with kernels that serve all types.
#define CGX_STUB_UNTYPED_WARPS(name, Family)                                            \
  {"cgx_" name "_sum",                                                                  \
   [](const void* a) { return warps<SumCall>(a, cgx::device::sum_by_warps<Family>); }}, \
      CGX_STUB_TYPE(name, Family, "")
#define CGX_STUB_TYPE(name, Family, type)                                                        \
  {"cgx_" name "_encode" type,                                                                   \
   [](const void* a) { return warps<EncodeCall>(a, cgx::device::encode_by_warps<Family>); }},    \
  {                                                                                              \
    "cgx_" name "_decode" type,                                                                  \
        [](const void* a) { return warps<DecodeCall>(a, cgx::device::decode_by_warps<Family>); } \
  }

/// Of the error-bounded compressors.
template <typename Call, typename Memory>
std::function<void()> blocks(const void* argument, void (*stage)(cgx::device::HostBlock&, Memory&,
                                                                 const Call&, uint64_t)) {
  const Call call = *static_cast<const Call*>(argument);
  return [call, stage] { cgx::device::launch_blocks(call, stage); };
}
template <typename Word>
std::function<void()> encode_blocks(const void* argument) {
  return blocks<BlocksCall, EncodeMemory<Word>>(argument, cgx::bounded::on_gpu::encode_stage);
}
template <typename Word>
std::function<void()> decode_blocks(const void* argument) {
  return blocks<BlocksCall, DecodeMemory<Word>>(argument, cgx::bounded::on_gpu::decode_stage);
}

/// bind: the work of a launch; null where a device would report a misaligned address.
struct Kernel {
  const char* name;
  std::function<void()> (*bind)(const void* argument);
};
const Kernel kKernels[] = {
    {"cgx_encode", [](const void* a) { return job<EncodeCall>(a, tiles, cgx::gpu::encode_stage); }},
    {"cgx_decode", [](const void* a) { return job<DecodeCall>(a, tiles, cgx::gpu::decode_stage); }},
    {"cgx_sum", [](const void* a) { return job<SumCall>(a, tiles, cgx::gpu::sum_stage); }},
    {"cgx_long_encode",
     [](const void* a) { return job<EncodeCall>(a, long_buckets, cgx::gpu::long_encode_stage); }},
    {"cgx_long_sum",
     [](const void* a) { return job<SumCall>(a, long_buckets, cgx::gpu::long_sum_stage); }},
    {"cgx_encode_feedback",
     [](const void* a) { return job<EncodeCall>(a, tiles, cgx::gpu::encode_feedback_stage); }},
    {"cgx_sum_feedback",
     [](const void* a) { return job<SumCall>(a, tiles, cgx::gpu::sum_feedback_stage); }},
    {"cgx_long_encode_feedback",
     [](const void* a) {
       return job<EncodeCall>(a, long_buckets, cgx::gpu::long_encode_feedback_stage);
     }},
    {"cgx_long_sum_feedback",
     [](const void* a) {
       return job<SumCall>(a, long_buckets, cgx::gpu::long_sum_feedback_stage);
     }},
    CGX_STUB_WARPS("maxmin", cgx::gpu::maxmin::Warps),
    CGX_STUB_UNTYPED_WARPS("rotated", cgx::gpu::rotated::Warps),
    CGX_STUB_UNTYPED_WARPS("trellis", cgx::gpu::trellis::Warps),
    {"cgx_bounded_look",
     [](const void* a) {
       return blocks<LookCall, LookMemory>(a, cgx::bounded::on_gpu::look_stage);
     }},
    {"cgx_bounded_encode", encode_blocks<int32_t>},
    {"cgx_bounded_encode_wide", encode_blocks<int64_t>},
    {"cgx_bounded_decode", decode_blocks<int32_t>},
    {"cgx_bounded_decode_wide", decode_blocks<int64_t>},
    {"cgx_cuda_float_encode",
     [](const void* a) {
       return blocks<cuda_float::EncodeCall, cuda_float::EncodeMemory>(a, cuda_float::encode_stage);
     }},
    {"cgx_cuda_float_decode",
     [](const void* a) {
       return blocks<cuda_float::DecodeCall, cuda_float::DecodeMemory>(a, cuda_float::decode_stage);
     }},
    {"cgx_level_encode",
     [](const void* a) { return blocks<levels::EncodeCall, NoMemory>(a, levels::encode_stage); }},
    {"cgx_level_multiply",
     [](const void* a) {
       return blocks<levels::MultiplyCall, NoMemory>(a, levels::multiply_stage);
     }},
    {"cgx_dropout",
     [](const void* a) { return blocks<dropout::Call, NoMemory>(a, dropout::stage); }},
    {"cgx_cast_round",
     [](const void* a) { return blocks<casting::Call, NoMemory>(a, casting::round_stage); }},
    {"cgx_cast_blocks",
     [](const void* a) {
       return blocks<casting::Call, casting::BlocksMemory>(a, casting::blocks_stage);
     }},
    {"cgx_cast_measure",
     [](const void* a) {
       return blocks<casting::Call, casting::MeasureMemory>(a, casting::measure_stage);
     }},
    {"cgx_cast_join",
     [](const void* a) { return blocks<casting::Call, NoMemory>(a, casting::join_stage); }},
    {"cgx_cast_zscore",
     [](const void* a) {
       return blocks<casting::Call, NoMemory>(a, casting::measured_stage<casting::ByZScore>);
     }},
    {"cgx_cast_squeezed",
     [](const void* a) {
       return blocks<casting::Call, NoMemory>(a, casting::measured_stage<casting::BySlope>);
     }},
    {"cgx_finite", [](const void* a) { return job<FiniteCall>(a, tiles, cgx::gpu::finite_stage); }},
};

}  // namespace
