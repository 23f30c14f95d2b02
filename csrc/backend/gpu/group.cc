// How a group comes to its communicators for the tensors of a GPU: at the first call that needs
// them, as torch's own backends do. All ranks are in that call.
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "backend/byte_collectives.h"
#include "backend/c10d_adapters.h"
#include "backend/config/handshake.h"
#include "backend/process_group_cgx.h"
#include "backend/python_error.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/gpu/ipc.h"
#include "comm/gpu/staged.h"
#include "comm/in_process.h"

namespace cgx {
namespace {

// A GPU is done with a message of shared memory before its host has launched the next one: they are
// this much larger.
constexpr size_t kIpcFactor = 4;
// What NCCL is given at once; smaller layers are for wires that a GPU outruns.
constexpr size_t kLockstepArea = size_t{4} << 20;
constexpr size_t kUnusedSlotBytes = 4096;
// A program whose layouts change with every call is trusted after so many.
constexpr size_t kMostAgreedPlans = 1024;

// The exchanges that all ranks of the group can take inside their hosts. `mine`: null on a rank
// that is alone on its host.
Budget agree_on_room(Rendezvous& rendezvous, int rank, int size, const Communicator* mine,
                     const Deadline& deadline) {
  const size_t capacity = mine != nullptr ? mine->capacity() : kNoLimit;
  const size_t longest = mine != nullptr ? mine->longest() : kNoLimit;
  rendezvous.set(str_of("gpu-room/", rank), str_of(capacity, " ", longest));
  Budget least{kNoLimit, kNoLimit, kNoLimit};
  for (int r = 0; r < size; ++r) {
    size_t room = 0, limit = 0;
    std::istringstream(rendezvous.get(str_of("gpu-room/", r), deadline)) >> room >> limit;
    least = {std::min(least.wanted, room), std::min(least.most, room),
             std::min(least.limit, limit)};
  }
  return least;
}

// Why messages between GPUs, of `capacity` bytes, are too short for a bucket of the group's own
// configuration; empty: they are not.
std::string too_short(size_t capacity, EngineOptions options, const Topology& topology,
                      const std::shared_ptr<const Codec>& codec) {
  options.inner = {capacity, capacity, capacity};
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

// Which communicator AUTO means follows from it.
void agree_on_nccl(Rendezvous& rendezvous, int rank, int size, bool mine,
                   const Deadline& deadline) {
  rendezvous.set(str_of("gpu-nccl/", rank), mine ? "1" : "0");
  for (int r = 0; r < size; ++r) {
    const bool theirs = rendezvous.get(str_of("gpu-nccl/", r), deadline) == "1";
    if (theirs == mine) continue;
    throw ConfigError(str_of("rank ", mine ? rank : r, " has a torch with NCCL, rank ",
                             mine ? r : rank, " one without; for CUDA tensors set ",
                             "CGX_CROSS_COMMUNICATOR_TYPE and CGX_CUDA_BACKEND to GLOO, or "
                             "install equal versions"));
  }
}

// What the configuration asks for and CUDA tensors cannot have. `cross`: their communicator between
// hosts.
void refuse_impossible(const GroupConfig& config, const Topology& topology,
                       CommunicatorKind cross) {
  const bool two_levels = topology.two_levels(), on_one_host = topology.host_count() == 1;
  if (two_levels && config.inner == CommunicatorKind::kNccl) {
    throw ConfigError(
        str_of("CGX_INNER_COMMUNICATOR_TYPE='NCCL' for CUDA tensors is for groups on "
               "one host; this one spans ",
               topology.host_count(), " with several ranks on one: use SHM"));
  }
  const int team = two_levels ? topology.host_count() : topology.size();
  if (team > static_cast<int>(gpu::kMostMessages)) {
    throw ConfigError(str_of("CUDA tensors are reduced among at most ", gpu::kMostMessages,
                             " ranks (with several hosts: hosts) at once; here are ", team));
  }
  const bool nccl = (on_one_host ? config.inner : cross) == CommunicatorKind::kNccl;
  const bool ipc = (on_one_host || two_levels) && config.inner == CommunicatorKind::kShm;
  if (config.checksum && (nccl || ipc)) {
    throw ConfigError(
        "CGX_CHECKSUM=1 is for messages that pass through host memory; those of CUDA tensors do so "
        "with CGX_INNER_COMMUNICATOR_TYPE and CGX_CROSS_COMMUNICATOR_TYPE MPI or GLOO");
  }
  if (nccl && config.nonfinite == NonFinite::kRaise) {
    throw ConfigError(
        "nonfinite='raise' has the host look at the values, which calls over NCCL do not wait for; "
        "use another communicator for CUDA tensors, or nonfinite='propagate'");
  }
}

// As communicator_name() of the host's, by what there is.
std::string name_of(const Communicators& communicators) {
  std::string name;
  for (const Communicator* communicator : {communicators.inner.get(), communicators.cross.get()}) {
    if (communicator != nullptr) name += str_of(name.empty() ? "" : "+", communicator->name());
  }
  return name;
}

}  // namespace

std::unique_ptr<Communicator> ProcessGroupCGX::make_gpu_shm(const std::string& keys,
                                                            const std::vector<int>& members,
                                                            int rank, const GpuLane& lane) {
  const int size = static_cast<int>(members.size());
  const char* variable = "CGX_INNER_COMMUNICATOR_TYPE";
  auto rendezvous = rendezvous_at(c10::make_intrusive<c10d::PrefixStore>(keys + "/ipc", store_));
  const size_t headers = std::max<size_t>(kIpcControlBytes * members.size(), kUnusedSlotBytes);
  auto control = connect(CommunicatorKind::kShm, variable, keys + "/headers", rank, size, headers);
  control->call_ranks(members);
  const size_t capacity = kIpcFactor * config_.shm_segment_bytes;
  const Topology& topology = engine_->topology();
  std::string why_not = too_short(capacity, engine_options(config_, topology), topology,
                                  usual_codec(options_->fields, config_));
  if (why_not.empty()) {
    auto communicator = make_gpu_ipc(lane.queue(), control, *rendezvous, capacity,
                                     Deadline::after(options_->timeout), why_not);
    if (communicator) {
      communicator->call_ranks(members);
      return communicator;
    }
    why_not = "GPUs of this host do not reach each other's memory: " + why_not;
  }
  if (config_.log >= LogLevel::kWarn && rank == 0) {
    log_line(str_of("rank ", rank_, " of ", size_, ", group '", options_->group_name,
                    "': messages of CUDA tensors go through pinned host memory; ", why_not));
  }
  return make_staged(lane.queue(),
                     make_communicator(CommunicatorKind::kShm, variable, keys, members, rank));
}

std::unique_ptr<Communicator> ProcessGroupCGX::make_gpu_communicator(
    CommunicatorKind kind, const std::string& keys, const std::vector<int>& members, int rank,
    const GpuLane& lane) {
  if (size_ == 1) return std::move(make_in_process_group(1, kUnusedSlotBytes).front());
  if (kind == CommunicatorKind::kShm) return make_gpu_shm(keys, members, rank, lane);
  const bool inside = keys.find("host") != std::string::npos;
  const char* variable = inside ? "CGX_INNER_COMMUNICATOR_TYPE" : "CGX_CROSS_COMMUNICATOR_TYPE";
  if (kind != CommunicatorKind::kNccl) {
    return make_staged(lane.queue(), make_communicator(kind, variable, keys, members, rank));
  }
  require_nccl(variable);
  auto store = c10::make_intrusive<c10d::PrefixStore>(keys, store_);
  auto nccl =
      factories_.inner_nccl(store, rank, static_cast<int>(members.size()), options_->timeout);
  auto communicator = make_lockstep(
      lane.queue(), make_byte_collectives(std::move(nccl), lane.side(), "nccl"), relay_bytes());
  communicator->call_ranks(members);
  return communicator;
}

std::unique_ptr<GpuLane> ProcessGroupCGX::make_gpu_lane(c10::Device device) {
  // A failed attempt leaves keys behind.
  const std::string keys = str_of("cuda/", lanes_begun_++);
  auto rendezvous = rendezvous_at(c10::make_intrusive<c10d::PrefixStore>(keys, store_));
  try {
    return make_gpu_lane(device, keys, *rendezvous);
  } catch (...) {
    leave_together(*rendezvous, rank_, size_);
    throw;
  }
}

std::unique_ptr<GpuLane> ProcessGroupCGX::make_gpu_lane(c10::Device device, const std::string& keys,
                                                        Rendezvous& rendezvous) {
  std::unique_ptr<GpuLane> lane;
  // Not every rank has a driver, or kernels: those without would be waited for.
  connect_level("device", rendezvous,
                [&] { lane = std::make_unique<GpuLane>(device, factories_.kernels); });
  const Topology& topology = engine_->topology();
  const bool two_levels = topology.two_levels();
  const bool has_nccl = static_cast<bool>(factories_.inner_nccl);
  if (config_.cross_is_automatic || config_.cuda_backend == "AUTO") {
    agree_on_nccl(rendezvous, rank_, size_, has_nccl, Deadline::after(options_->timeout));
  }
  const CommunicatorKind cross =
      config_.cross_is_automatic && has_nccl ? CommunicatorKind::kNccl : config_.cross;
  if (size_ > 1) refuse_impossible(config_, topology, cross);
  Communicators communicators{topology, rank_, nullptr, nullptr, ""};
  Budget room;
  if (on_one_host_ || two_levels) {
    connect_level("inner", rendezvous, [&] {
      const int host = topology.host_of(rank_);
      const std::vector<int>& members = topology.host(host);
      if (!on_one_host_ && members.size() == 1) return;
      communicators.inner = make_gpu_communicator(config_.inner, str_of(keys, "/host", host),
                                                  members, topology.local_of(rank_), *lane);
    });
    room = agree_on_room(rendezvous, rank_, size_, communicators.inner.get(),
                         Deadline::after(options_->timeout));
  }
  if (!on_one_host_) {
    connect_level("cross", rendezvous, [&] {
      if (!topology.in_team(rank_)) return;
      const int number = topology.local_of(rank_);
      communicators.cross =
          make_gpu_communicator(cross, str_of(keys, "/team", number), topology.team(number),
                                topology.host_of(rank_), *lane);
    });
  }
  EngineOptions options = engine_options(config_, topology);
  options.direct_from = 0;  // those are transfers of host memory
  if (room.most > 0 && config_.inner == CommunicatorKind::kShm) options.inner = room;
  // The same on all ranks, also on those that have no communicator between hosts.
  const bool lockstep = (on_one_host_ ? config_.inner : cross) == CommunicatorKind::kNccl;
  if (lockstep) options.segment_bytes = std::max(options.segment_bytes, kLockstepArea);
  communicators.name = name_of(communicators);
  auto engine = std::make_unique<Engine>(
      std::move(communicators), options,
      [watchdog = watchdog_](Failure failure) { return watchdog->explain(std::move(failure)); });
  // With a level inside hosts the calling thread would wait for peers.
  const bool on_caller = lockstep && !two_levels;
  if (config_.log >= LogLevel::kInfo) {
    log_line(str_of("rank ", rank_, " of ", size_, ", group '", options_->group_name,
                    "': ", device.str(), " over ", engine->communicator()));
  }
  if (lockstep && !on_one_host_) watchdog_->answer_always();
  lane->serve(std::move(engine), lockstep, on_caller);
  return lane;
}

// Rank 0 compares for all: one key for each to wait for. A rank that has used the plan before takes
// no part, and is asked by those who wait in vain (Watchdog::answer_always).
std::string ProcessGroupCGX::compare_plans(const Fingerprint& mine, const std::string& text,
                                           const Deadline& deadline) {
  const std::string keys = str_of("cuda-plan/", mine.number);
  auto rendezvous = rendezvous_at(c10::make_intrusive<c10d::PrefixStore>(keys, store_));
  if (rank_ != 0) {
    rendezvous->set(std::to_string(rank_), text);
    return rendezvous->get("verdict", deadline).substr(sizeof("is:") - 1);
  }
  std::string verdict;
  for (int r = 1; r < size_ && verdict.empty(); ++r) {
    const std::string theirs = rendezvous->get(std::to_string(r), deadline);
    if (theirs == text) continue;
    Fingerprint note = mine;
    std::istringstream(theirs) >> note.words[0] >> note.words[1];
    verdict = disagreement(side_of(mine, 0), side_of(note, r), config_.log == LogLevel::kDebug);
  }
  rendezvous->set("verdict", "is:" + verdict);
  return verdict;
}

void ProcessGroupCGX::agree_on_plan(const CallRecord& record, const Deadline& deadline) {
  if (record.shape.plan == 0 || on_one_host_) return;
  const Fingerprint mine = record.note();
  const std::string text = str_of(mine.words[0], " ", mine.words[1], " ", record.shape.plan);
  {
    std::lock_guard<std::mutex> lock(agreed_mutex_);
    if (agreed_.size() >= kMostAgreedPlans || !agreed_.insert(text).second) return;
  }
  Failure failure;
  try {
    const std::string verdict = compare_plans(mine, text, deadline);
    if (verdict.empty()) return;
    failure = {FailureKind::kMismatch, verdict};
  } catch (const std::exception& e) {
    failure = failure_of(e);
  }
  if (failure.rank < 0) {
    failure.rank = rank_;
    failure.call = record.title().call;
  }
  failure = watchdog_->explain(std::move(failure));
  watchdog_->fail(failure);
  throw_failure(failure);
}

GpuLane& ProcessGroupCGX::gpu_lane(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(gpu_mutex_);
  if (!gpu_) {
    // A collective of its own, so that ranks that are in another one, or have died, are found.
    CallShape shape;
    shape.op = kConnectGpus;
    shape.engine = shape.cuda = true;
    const CallRecordPtr record = watchdog_->begin(shape, {}, {}, options_->timeout);
    record->start();
    try {
      gpu_ = make_gpu_lane(tensor.device());
    } catch (const std::exception& e) {
      watchdog_->finish(*record, e.what());
      std::rethrow_exception(for_python(std::current_exception()));
    }
    watchdog_->finish(*record, "");
    watchdog_->attach_also(&gpu_->engine());
    gpu_engine_ = &gpu_->engine();
  }
  TORCH_CHECK_VALUE(gpu_->device() == tensor.device(), "cgx: a tensor on ", tensor.device(),
                    ", while rank ", rank_, " of this group works on ", gpu_->device(),
                    ": a rank uses one GPU");
  return *gpu_;
}

// Callers may hold Python's lock.
Engine* ProcessGroupCGX::gpu_engine() { return gpu_engine_; }

Engine& ProcessGroupCGX::engine_for(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? *engine_ : gpu_lane(tensor).engine();
}

bool ProcessGroupCGX::gpu_has_nccl() const {
  const std::string& wanted = config_.cuda_backend;
  return wanted == "NCCL" || (wanted == "AUTO" && factories_.inner_nccl);
}

const ProcessGroupCGX::BackendPtr& ProcessGroupCGX::inner_for(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return inner_;
  if (!gpu_has_nccl()) return inner_;
  TORCH_CHECK_VALUE(factories_.inner_nccl, "cgx: CGX_CUDA_BACKEND='NCCL' needs a torch that was ",
                    "built with NCCL, and this one is not; use GLOO");
  std::lock_guard<std::mutex> lock(gpu_mutex_);
  if (!inner_gpu_) {
    inner_gpu_ = factories_.inner_nccl(c10::make_intrusive<c10d::PrefixStore>("inner-cuda", store_),
                                       rank_, size_, options_->timeout);
    watchdog_->attach_also(inner_gpu_);
  }
  return inner_gpu_;
}

const ProcessGroupCGX::BackendPtr& ProcessGroupCGX::inner_for_batch(const at::Tensor& tensor) {
  const BackendPtr& inner = inner_for(tensor);
  if (inner == inner_) return inner;
  std::lock_guard<std::mutex> lock(mutex_);
  // NCCL runs sends and receives one after the other, so that those that cross wait for ever, but
  // for those of one batch.
  if (coalescing_ && !std::exchange(batch_begun_, true)) inner->startCoalescing();
  return inner;
}

void ProcessGroupCGX::break_engines(const Failure& cause) {
  engine_->fail(cause);
  if (Engine* gpu = gpu_engine()) gpu->fail(cause);
}

}  // namespace cgx
