#include "codec/gpu/kernels.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "codec/gpu/warp.h"
#include "codec/gpu/warp_kernels.h"
#include "device/queue.h"

namespace cgx::gpu {
namespace {

using device::Driver;

constexpr int kMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kHipMultiprocessors = 63;
// Warps on a multiprocessor that hide the way to memory; there is room for more.
constexpr uint64_t kBusyWarps = 16;
constexpr uint32_t kMostParts = 2;  // of a tile, as a power of two
// Blocks of a launch, for each multiprocessor: several times what it has at once, so that the last
// ones end together.
constexpr uint64_t kWaves = 16;

/// Whether the address is a multiple of a value's size, which kernels of warps need. torch makes
/// other tensors, too: views of storages of bytes.
bool is_aligned(const void* values, Type type) {
  return reinterpret_cast<uintptr_t>(values) % size_of(type) == 0;
}

}  // namespace

KernelModule::KernelModule(const Driver& driver, const void* image)
    : driver_(driver), context_(device::current_context(driver)) {
  int device = 0, multiprocessors = 0;
  GPU(driver, context_device, &device);
  const bool cuda = driver.vendor == device::Vendor::kCuda;
  GPU(driver, device_attribute, &multiprocessors, cuda ? kMultiprocessors : kHipMultiprocessors,
      device);
  multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  GPU(driver, load_module, &module_, image);
  encode_ = function("cgx_encode");
  decode_ = function("cgx_decode");
  sum_ = function("cgx_sum");
  long_encode_ = function("cgx_long_encode");
  long_sum_ = function("cgx_long_sum");
  encode_feedback_ = function("cgx_encode_feedback");
  sum_feedback_ = function("cgx_sum_feedback");
  long_encode_feedback_ = function("cgx_long_encode_feedback");
  long_sum_feedback_ = function("cgx_long_sum_feedback");
  finite_ = function("cgx_finite");
  look_ = function("cgx_bounded_look");
  encode_blocks_[0] = function("cgx_bounded_encode");
  encode_blocks_[1] = function("cgx_bounded_encode_wide");
  decode_blocks_[0] = function("cgx_bounded_decode");
  decode_blocks_[1] = function("cgx_bounded_decode_wide");
  cuda_float_encode_ = function("cgx_cuda_float_encode");
  cuda_float_decode_ = function("cgx_cuda_float_decode");
  level_encode_ = function("cgx_level_encode");
  level_multiply_ = function("cgx_level_multiply");
  dropout_ = function("cgx_dropout");
  cast_round_ = function("cgx_cast_round");
  cast_blocks_ = function("cgx_cast_blocks");
  cast_measure_ = function("cgx_cast_measure");
  cast_join_ = function("cgx_cast_join");
  cast_zscore_ = function("cgx_cast_zscore");
  cast_squeezed_ = function("cgx_cast_squeezed");
  for (const WarpKernels& kernels : kWarpKernels) {
    const std::string name = str_of("cgx_", kernels.name, "_");
    OfWarps found{kernels.family, kernels.warps, {}, {}, function(name + "sum")};
    for (size_t type = 0; type < std::size(kTypeNames); ++type) {
      const std::string of_type = kernels.typed ? str_of("_", kTypeNames[type]) : "";
      found.encode[type] = function(name + "encode" + of_type);
      found.decode[type] = function(name + "decode" + of_type);
    }
    warps_.push_back(found);
  }
}

KernelModule::~KernelModule() {
  device::release_in(driver_, context_, [this] { driver_.unload_module(module_); });
}

device::Function KernelModule::function(const std::string& name) const {
  device::Function found = nullptr;
  GPU(driver_, get_function, &found, module_, name.c_str());
  return found;
}

template <typename Call>
void KernelModule::launch(device::Function kernel, const Call& call, uint64_t work, uint32_t each,
                          uint32_t threads, device::Stream stream) const {
  if (work == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<uint64_t>((work + each - 1) / each, multiprocessors_ * kWaves));
  void* arguments[] = {const_cast<Call*>(&call)};  // read before the driver returns
  GPU(driver_, launch_kernel, kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
}

template <typename Call>
void KernelModule::by_blocks(device::Function kernel, const Table& table, Call& call,
                             bool long_buckets, device::Stream stream) const {
  call.table = table;
  launch(kernel, call, long_buckets ? table.long_buckets : table.tiles, 1, kThreads, stream);
}

template <typename Call, typename Choose>
void KernelModule::by_warps(const Tables& tables, Call& call, const Choose& choose,
                            device::Stream stream) const {
  for (const Tables::OfWarps& list : tables.warps) {
    const auto found = std::find_if(warps_.begin(), warps_.end(), [&](const OfWarps& kernels) {
      return kernels.family == list.family;
    });
    call.table = list.table;
    // Of few tiles each is shared by warps, for all multiprocessors to have some.
    while (call.table.split < kMostParts &&
           call.table.tiles << call.table.split < multiprocessors_ * kBusyWarps) {
      ++call.table.split;
    }
    launch(choose(*found), call, call.table.tiles << call.table.split, found->warps,
           found->warps * kLanes, stream);
  }
}

void KernelModule::encode(const Tables& tables, EncodeCall call, device::Stream stream) const {
  const bool feedback = call.feedback.residual != nullptr;
  const bool warps = !feedback && is_aligned(call.x, call.type);
  if (warps) {
    const auto type = static_cast<size_t>(call.type);
    by_warps(tables, call, [&](const OfWarps& kernels) { return kernels.encode[type]; }, stream);
  }
  const Table& left = warps ? tables.rest : tables.all;
  by_blocks(feedback ? long_encode_feedback_ : long_encode_, left, call, true, stream);
  by_blocks(feedback ? encode_feedback_ : encode_, left, call, false, stream);
}

void KernelModule::decode(const Tables& tables, DecodeCall call, device::Stream stream) const {
  const bool warps = is_aligned(call.y, call.type);
  if (warps) {
    const auto type = static_cast<size_t>(call.type);
    by_warps(tables, call, [&](const OfWarps& kernels) { return kernels.decode[type]; }, stream);
  }
  by_blocks(decode_, warps ? tables.rest : tables.all, call, false, stream);
}

void KernelModule::sum(const Tables& tables, SumCall call, device::Stream stream) const {
  const bool feedback = call.feedback.residual != nullptr;
  const bool warps = !feedback && is_aligned(call.x, call.own) && is_aligned(call.y, call.type);
  if (warps) by_warps(tables, call, [](const OfWarps& kernels) { return kernels.sum; }, stream);
  const Table& left = warps ? tables.rest : tables.all;
  if (call.encoded != nullptr) {
    by_blocks(feedback ? long_sum_feedback_ : long_sum_, left, call, true, stream);
  }
  by_blocks(feedback ? sum_feedback_ : sum_, left, call, false, stream);
}

void KernelModule::finite(const Tables& tables, FiniteCall call, device::Stream stream) const {
  by_blocks(finite_, tables.all, call, false, stream);
}

void KernelModule::look(const bounded::on_gpu::LookCall& call, device::Stream stream) const {
  launch(look_, call, call.count, 1, kThreads, stream);
}

void KernelModule::encode(const bounded::on_gpu::BlocksCall& call, bool wide,
                          device::Stream stream) const {
  launch(encode_blocks_[wide ? 1 : 0], call, call.count, 1, kThreads, stream);
}

void KernelModule::decode(const bounded::on_gpu::BlocksCall& call, bool wide,
                          device::Stream stream) const {
  launch(decode_blocks_[wide ? 1 : 0], call, call.count, 1, kThreads, stream);
}

void KernelModule::encode(const cuda_float_compress::on_gpu::EncodeCall& call,
                          device::Stream stream) const {
  launch(cuda_float_encode_, call, call.count, 1, kThreads, stream);
}

void KernelModule::decode(const cuda_float_compress::on_gpu::DecodeCall& call,
                          device::Stream stream) const {
  launch(cuda_float_decode_, call, call.count, 1, kThreads, stream);
}

void KernelModule::encode(const levels::on_gpu::EncodeCall& call, device::Stream stream) const {
  launch(level_encode_, call, call.count, 1, kThreads, stream);
}

void KernelModule::multiply(const levels::on_gpu::MultiplyCall& call, device::Stream stream) const {
  launch(level_multiply_, call, call.count, 1, kThreads, stream);
}

void KernelModule::dropout(const dropping::on_gpu::Call& call, device::Stream stream) const {
  launch(dropout_, call, call.count, 1, kThreads, stream);
}

void KernelModule::cast(const casting::on_gpu::Call& call, device::Stream stream) const {
  using casting::on_gpu::Work;
  if (call.work == Work::kRound || call.work == Work::kBlocks) {
    const bool blocks = call.work == Work::kBlocks;
    return launch(blocks ? cast_blocks_ : cast_round_, call, call.count, 1, kThreads, stream);
  }
  casting::on_gpu::Call part = call;
  part.count = casting::on_gpu::measured_blocks(call);
  launch(cast_measure_, part, part.count, 1, kThreads, stream);
  part.count = 1;
  launch(cast_join_, part, part.count, 1, kThreads, stream);
  launch(call.work == Work::kZScore ? cast_zscore_ : cast_squeezed_, call, call.count, 1, kThreads,
         stream);
}

}  // namespace cgx::gpu
