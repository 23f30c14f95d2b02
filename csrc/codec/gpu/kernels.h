// Launches the kernels of csrc/codec/gpu. Nothing here waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/activations/dropout/gpu/call.h"
#include "codec/bounded/gpu/call.h"
#include "codec/casts/gpu/call.h"
#include "codec/compat/gpu/call.h"
#include "codec/gpu/run_table.h"
#include "codec/gpu/stages.h"
#include "codec/levels/gpu/call.h"
#include "device/driver.h"

namespace cgx::gpu {

/// The kernels, loaded into one context. Functions run in that context, which must be current, and
/// put their work on `stream`. Pointers in calls are the device's; tables and lists of pointers
/// have to stay until the work is done. A call's table is set here. ResourceError: the driver
/// refused a call.
class KernelModule {
 public:
  /// `image`: a fatbin or PTX text with the kernels. Loads it into the current context.
  KernelModule(const device::Driver& driver, const void* image);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  void encode(const Tables& tables, EncodeCall call, device::Stream stream) const;
  void decode(const Tables& tables, DecodeCall call, device::Stream stream) const;
  void sum(const Tables& tables, SumCall call, device::Stream stream) const;
  void finite(const Tables& tables, FiniteCall call, device::Stream stream) const;

  /// Of the error-bounded compressor. wide: its words have 64 bits.
  void look(const bounded::on_gpu::LookCall& call, device::Stream stream) const;
  void encode(const bounded::on_gpu::BlocksCall& call, bool wide, device::Stream stream) const;
  void decode(const bounded::on_gpu::BlocksCall& call, bool wide, device::Stream stream) const;

  /// Of the format of cuda_float_compress.
  void encode(const cuda_float_compress::on_gpu::EncodeCall& call, device::Stream stream) const;
  void decode(const cuda_float_compress::on_gpu::DecodeCall& call, device::Stream stream) const;

  /// encode and multiply use a table of levels (codec/levels), dropout the random numbers of its key.
  void encode(const levels::on_gpu::EncodeCall& call, device::Stream stream) const;
  void multiply(const levels::on_gpu::MultiplyCall& call, device::Stream stream) const;
  void dropout(const dropping::on_gpu::Call& call, device::Stream stream) const;
  void cast(const casting::on_gpu::Call& call, device::Stream stream) const;

 private:
  /// Of warps: of a family; by type of the values, or one for all.
  struct OfWarps {
    uint8_t family;
    uint32_t warps;  // of a thread block
    device::Function encode[3], decode[3], sum;
  };

  device::Function function(const std::string& name) const;
  template <typename Call>
  void launch(device::Function kernel, const Call& call, uint64_t work, uint32_t each,
              uint32_t threads, device::Stream stream) const;
  template <typename Call>
  void by_blocks(device::Function kernel, const Table& table, Call& call, bool long_buckets,
                 device::Stream stream) const;
  /// choose(of_warps): the kernel.
  template <typename Call, typename Choose>
  void by_warps(const Tables& tables, Call& call, const Choose& choose,
                device::Stream stream) const;

  const device::Driver& driver_;
  device::Context context_ = nullptr;
  device::Module module_ = nullptr;
  device::Function encode_ = nullptr, decode_ = nullptr, sum_ = nullptr;
  device::Function long_encode_ = nullptr, long_sum_ = nullptr, finite_ = nullptr;
  // With error feedback.
  device::Function encode_feedback_ = nullptr, sum_feedback_ = nullptr;
  device::Function long_encode_feedback_ = nullptr, long_sum_feedback_ = nullptr;
  std::vector<OfWarps> warps_;
  // Of the error-bounded compressor; [1]: wide.
  device::Function look_ = nullptr, encode_blocks_[2] = {}, decode_blocks_[2] = {};
  device::Function cuda_float_encode_ = nullptr, cuda_float_decode_ = nullptr;
  device::Function level_encode_ = nullptr, level_multiply_ = nullptr, dropout_ = nullptr;
  device::Function cast_round_ = nullptr, cast_blocks_ = nullptr, cast_measure_ = nullptr,
                   cast_join_ = nullptr, cast_zscore_ = nullptr, cast_squeezed_ = nullptr;
  unsigned multiprocessors_ = 1;
};

}  // namespace cgx::gpu
