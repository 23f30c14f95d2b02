// The steps of reduce/schedule/stages.h on a GPU: one launch for all runs of all messages of a
// step.
//
// Work goes to the group's stream. Nothing here waits for the device except under
// NonFinite::kRaise, where the values have to be looked at before they are sent, and when there are
// too many tables of runs: those are made once and stay on the device, found again by their
// content.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "codec/gpu/kernels.h"
#include "device/queue.h"
#include "reduce/schedule/stages.h"

namespace cgx {

class DeviceStages {
 public:
  /// In the context that is current now. Both outlive the result.
  DeviceStages(const device::Queue& queue, const gpu::KernelModule& kernels);
  /// Waits for the work on the stream.
  ~DeviceStages();

  void encode(Call& call, const std::vector<ChunkToSend>& chunks, const View& input, Stage stage,
              bool final);
  void decode(Call& call, const std::vector<ReceivedChunk>& chunks, const View& output);
  void sum(Call& call, const Chunk& chunk, const Sum& wanted);
  void copy(void* to, const void* from, size_t bytes) const { queue_.copy(to, from, bytes); }
  void check_input(Call& call, const void* data, size_t values);

  std::shared_ptr<std::byte> allocate(size_t bytes);

 private:
  /// Runs that share a seed, and so a key.
  struct Seeded {
    uint64_t seed = 0;
    gpu::RunTable table;
  };

  template <typename Chunks, typename Place>
  std::vector<Seeded> tables(const Call& call, const Chunks& chunks, const Place& place) const;
  gpu::Table on_device(const gpu::RunTable& table);
  void look_for_nonfinite(Call& call, const gpu::RunTable& table, const void* data, DType dtype);

  const device::Queue& queue_;
  const gpu::KernelModule& kernels_;
  std::unordered_map<std::string, gpu::DeviceTable> tables_;  // by the bytes of their runs
  std::shared_ptr<std::byte> flag_, host_flag_;               // of look_for_nonfinite()
  /// Outgrown work memory, which the stream may still use.
  std::vector<std::shared_ptr<std::byte>> memory_;
};

}  // namespace cgx
