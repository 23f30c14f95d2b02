#include "backend/gpu/communicator_factory.h"

#include <algorithm>
#include <utility>

#include "backend/config/codec_policy.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/gpu/ipc.h"
#include "comm/gpu/lockstep.h"
#include "comm/gpu/staged.h"
#include "comm/in_process.h"
#include "comm/nccl/byte_collectives.h"

namespace cgx {
namespace {

// A GPU is done with a message of shared memory before its host has launched the next one: they are
// this much larger.
constexpr size_t kIpcFactor = 4;

// The reason why messages between GPUs, of `capacity` bytes, are too short for a bucket of the
// group's configuration; empty: they are long enough.
std::string too_short(size_t capacity, EngineOptions options, const Topology& topology,
                      const std::shared_ptr<const Codec>& codec) {
  options.intra = {capacity, capacity, capacity};
  const size_t bucket = codec->granule();
  try {
    make_all_reduce_plan(options, topology, {{bucket, codec}}, DType::kFloat32);
    for (Operation operation : {Operation::kReduceScatter, Operation::kAllGather}) {
      make_shards_plan(options, topology, operation, bucket, codec, DType::kFloat32);
    }
    return "";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

}  // namespace

std::unique_ptr<Communicator> GpuCommunicatorFactory::make_shm(const std::string& keys,
                                                               const std::vector<int>& members,
                                                               int rank) const {
  const int size = static_cast<int>(members.size());
  auto rendezvous = hosts_.rendezvous(keys + "/ipc");
  const size_t headers = std::max<size_t>(kIpcControlBytes * members.size(), kUnusedSlotBytes);
  auto control = hosts_.connect(CommunicatorKind::kShm, keys + "/headers", rank, size, headers);
  control->call_ranks(members);
  const size_t capacity = kIpcFactor * group_.config.shm_segment_bytes;
  const Topology& topology = host_.topology();
  std::string why_not = too_short(capacity, engine_options(group_.config, topology), topology,
                                  usual_codec(group_.options->fields, group_.config));
  if (why_not.empty()) {
    IpcLog log;  // may be called when the group is gone
    if (group_.logs(LogLevel::kWarn)) {
      log = [where = group_.title()](const std::string& text) { log_line(where + text); };
    }
    auto communicator = make_gpu_ipc(lane_.queue(), control, *rendezvous, capacity,
                                     Deadline::after(group_.timeout()), why_not, std::move(log));
    if (communicator) {
      communicator->call_ranks(members);
      return communicator;
    }
    why_not = "GPUs of this host do not reach each other's memory: " + why_not;
  }
  if (group_.logs(LogLevel::kWarn) && rank == 0) {
    log_line(group_.title() + "messages of CUDA tensors go through pinned host memory; " + why_not);
  }
  return make_staged(lane_.queue(), hosts_.make(CommunicatorKind::kShm, keys, members, rank));
}

std::unique_ptr<Communicator> GpuCommunicatorFactory::make(CommunicatorKind kind,
                                                           const char* variable,
                                                           const std::string& keys,
                                                           const std::vector<int>& members,
                                                           int rank) const {
  if (group_.size == 1) return std::move(make_in_process_group(1, kUnusedSlotBytes).front());
  if (kind == CommunicatorKind::kShm) return make_shm(keys, members, rank);
  if (kind != CommunicatorKind::kNccl) {
    return make_staged(lane_.queue(), hosts_.make(kind, keys, members, rank));
  }
  hosts_.require_nccl(variable);
  auto nccl = group_.factories.inner_nccl(store_at(group_, keys), rank,
                                          static_cast<int>(members.size()), group_.timeout());
  auto communicator =
      make_lockstep(lane_.queue(), make_byte_collectives(std::move(nccl), lane_.side(), "nccl"),
                    hosts_.relay_bytes());
  communicator->call_ranks(members);
  return communicator;
}

}  // namespace cgx
