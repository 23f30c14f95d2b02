// The stages on a GPU: one launch for all runs of all messages of a step.
//
// Work goes to the group's stream. Nothing here waits for the device except under
// NonFinite::kRaise, where the values have to be looked at before they are sent, and when there are
// too many tables of runs: those are made once for the runs of a plan's step, and stay on the
// device.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "codec/gpu/device_table.h"
#include "codec/gpu/kernels.h"
#include "device/queue.h"
#include "device/upload.h"
#include "reduce/schedule/stages.h"

namespace cgx {

class DeviceStages final : public Stages {
 public:
  /// In the context that is current now. Both outlive the result.
  DeviceStages(const device::Queue& queue, const gpu::KernelModule& kernels);
  /// Waits for the work on the stream.
  ~DeviceStages() override;

  void encode(Call& call, std::span<const ChunkToSend> chunks, const View& input, Stage stage,
              bool final) override;
  void decode(Call& call, std::span<const ReceivedChunk> chunks, const View& output) override;
  void sum(Call& call, const Chunk& chunk, const Sum& wanted) override;
  void copy(void* to, const void* from, size_t bytes) override { queue_.copy(to, from, bytes); }
  void check_input(Call& call, const void* data, size_t values) override;
  bool on_device() const override { return true; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override;

 private:
  /// Runs that share a seed, and so a key.
  struct Seeded {
    uint64_t seed;
    gpu::DeviceTable table;
  };
  using Step = std::vector<Seeded>;

  /// The tables of the runs of chunks. `flags`: tells the uses of the same runs apart. place(run):
  /// of its first value, where it is read or decoded to, and where its sum goes.
  template <typename Chunks, typename Place>
  const Step& tables(const Call& call, const Chunks& chunks, uint8_t flags, const Place& place);
  /// The step of this key, or a new one by make().
  template <typename Make>
  const Step& found(const Call& call, std::string key, const Make& make);
  void look_for_nonfinite(Call& call, const gpu::Tables& tables, gpu::FiniteCall work);

  const device::Queue& queue_;
  const gpu::KernelModule& kernels_;
  device::Uploads uploads_;
  std::unordered_map<std::string, Step> steps_;
  size_t table_bytes_ = 0;                       // of the steps
  std::shared_ptr<std::byte> flag_, host_flag_;  // of look_for_nonfinite()
  /// Outgrown work memory, which the stream may still use.
  std::vector<std::shared_ptr<std::byte>> memory_;
};

}  // namespace cgx
