// The `cgx` backend of torch.distributed.
//
// SUM and AVG all-reduces of fp32, fp16 and bf16 tensors run on the engine, compressed where the
// configuration or the call says so; so do reduce-scatters and all-gathers that are to be
// compressed. Everything else goes to the inner backend (Gloo) unchanged and exact.
//
// Thread-safety: as c10d::Backend: collectives of one group are called from one thread at a time,
// in the same order on all ranks; different groups are independent; abort(), shutdown() and stats
// may be called from any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_set>
#include <vector>

#include "backend/config/call_codec.h"
#include "backend/config/notices.h"
#include "backend/config/settings.h"
#include "backend/gpu/lane.h"
#include "backend/health/watchdog.h"
#include "backend/torch_compat.h"
#include "backend/work/call_record.h"
#include "backend/work/task_queue.h"
#include "backend/work/work.h"
#include "comm/rendezvous.h"
#include "reduce/engine.h"
#include "reduce/tuning/autotuner.h"

namespace cgx {

/// One layer of an explicit all-reduce: `codec` null means exact.
struct LayerRequest {
  int64_t numel = 0;
  std::shared_ptr<const Codec> codec;
};

/// Who decides how many bits a call takes: the group's settings, or a policy, which the autotuner
/// may raise, or the call.
enum class Bits : uint8_t { kTunable, kFixed };

/// How a collective is called.
struct CallOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  /// False: the caller waits for the work at once, so its own thread may do it.
  bool async = true;
  Bits bits = Bits::kFixed;
  /// Who chose the codecs of an explicit call, for the log; empty: the caller.
  std::string chosen_by{};
};

class ProcessGroupCGX : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  struct Options : c10d::Backend::Options {
    Options() : c10d::Backend::Options("cgx") {}
#if CGX_TORCH_AT_LEAST(2, 14)
    // What torch gives to the children of a group; the base's copy would lose the fields.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
#endif
    OptionFields fields;
  };

  /// Makes an inner backend over the ranks of a store: (store, rank, size, timeout).
  using InnerFactory =
      std::function<BackendPtr(const StorePtr&, int, int, std::chrono::milliseconds)>;
  /// The same of Gloo; the last: the address of this host to listen at, or empty.
  using GlooFactory = std::function<BackendPtr(const StorePtr&, int, int, std::chrono::milliseconds,
                                               const std::string&)>;
  /// That address, from what all ranks have said of theirs: (rank, addresses). Throws, on all ranks
  /// alike, where there is none.
  using ChooseAddress = std::function<std::string(int, const std::vector<std::string>&)>;
  /// The table of functions of the MPI that is installed (comm/mpi/api.h). Throws what is missing.
  using MpiFactory = std::function<const void*()>;
  /// What Python gives a group.
  struct Factories {
    GlooFactory inner;        // for tensors of the host
    InnerFactory inner_nccl;  // empty: this torch has no NCCL
    MpiFactory mpi;
    LoadKernels kernels;
    ChooseAddress choose_address;
    std::string address;  // what this rank says of its own, in a line; empty: nobody asks
  };

  /// Collective: all ranks of the group construct it. Compares configurations, finds the hosts,
  /// sets up the communicator.
  ProcessGroupCGX(StorePtr store, int rank, int size, c10::intrusive_ptr<Options> options,
                  Factories factories);
  ~ProcessGroupCGX() override;

  // --- what torch asks about
  const std::string getBackendName() const override { return "cgx"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // --- reductions: engine or inner backend (reductions.cc)
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;

  // --- explicit calls of torch_cgx.*
  /// Layers must add up to the tensor. A compressed layer of a tensor that the engine does not take
  /// is an error.
  WorkPtr all_reduce_layers(at::Tensor tensor, const c10d::ReduceOp& op,
                            const std::vector<LayerRequest>& requests, const CallOptions& call);
  /// `codec` empty: exact, whatever the group's configuration says.
  WorkPtr reduce_scatter_codec(at::Tensor output, at::Tensor input, const c10d::ReduceOp& op,
                               const std::shared_ptr<const Codec>& codec, const CallOptions& call);
  WorkPtr all_gather_codec(at::Tensor output, at::Tensor input,
                           const std::shared_ptr<const Codec>& codec, const CallOptions& call);

  Engine& engine() { return *engine_; }
  /// Null before the first call on a GPU's tensors.
  Engine* gpu_engine();
  /// Null without CGX_AUTOTUNE.
  Autotuner* autotuner() { return autotuner_.get(); }
  /// Differs between all groups of this process, also those that are gone.
  uint64_t serial() const { return serial_; }
  const OptionFields& fields() const { return options_->fields; }
  std::vector<std::string> hosts() const { return hosts_; }

  // --- everything else: the inner backend (forward.cc)
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  using Body = std::function<void(const Deadline&, CallRecord&)>;

  /// Of the constructor: compares configurations, finds the hosts, sets up the communicators.
  void make(Rendezvous& rendezvous);
  /// Collective over `members`, ranks of this group of which this one is number `rank`, and which
  /// alone use `keys`.
  std::unique_ptr<Communicator> make_communicator(CommunicatorKind kind, const char* variable,
                                                  const std::string& keys,
                                                  const std::vector<int>& members, int rank);
  std::unique_ptr<Communicator> connect(CommunicatorKind kind, const char* variable,
                                        const std::string& keys, int rank, int size,
                                        size_t shm_bytes);
  void connect_level(const char* level, Rendezvous& rendezvous,
                     const std::function<void()>& connect);
  /// Communicators and engine of the first GPU whose tensors are reduced. Collective.
  GpuLane& gpu_lane(const at::Tensor& tensor);
  std::unique_ptr<GpuLane> make_gpu_lane(c10::Device device);
  std::unique_ptr<GpuLane> make_gpu_lane(c10::Device device, const std::string& keys,
                                         Rendezvous& rendezvous);
  /// Before a call over messages without headers: MismatchError unless all ranks have the same
  /// plan. Ranks of one host have compared it; those of several do so for each plan that is new.
  void agree_on_plan(const CallRecord& record, const Deadline& deadline);
  /// Empty, or how ranks differ.
  std::string compare_plans(const Fingerprint& mine, const std::string& text,
                            const Deadline& deadline);
  /// Whose waits end when the group fails.
  std::unique_ptr<Rendezvous> rendezvous_at(StorePtr store);
  std::unique_ptr<Communicator> make_gpu_communicator(CommunicatorKind kind,
                                                      const std::string& keys,
                                                      const std::vector<int>& members, int rank,
                                                      const GpuLane& lane);
  std::unique_ptr<Communicator> make_gpu_shm(const std::string& keys,
                                             const std::vector<int>& members, int rank,
                                             const GpuLane& lane);
  /// The engine that serves a tensor.
  Engine& engine_for(const at::Tensor& tensor);
  /// Does NCCL carry what the engine does not reduce of CUDA tensors?
  bool gpu_has_nccl() const;
  /// The backend for what the engine does not reduce.
  const BackendPtr& inner_for(const at::Tensor& tensor);
  /// The same for a send or a receive: one that torch is coalescing belongs to a batch there, too.
  const BackendPtr& inner_for_batch(const at::Tensor& tensor);
  /// After a failure of one engine: the others, too.
  void break_engines(const Failure& cause);
  void connect_inner(Communicators& communicators);
  void connect_cross(Communicators& communicators);
  /// ConfigError where this torch has none.
  void require_nccl(const char* variable) const;
  /// The largest exchange over a message library.
  size_t relay_bytes() const;
  std::shared_ptr<const Codec> codec_for(bool collective_compresses, int64_t numel) const;
  std::vector<Layer> layers_for(const at::Tensor& tensor) const;
  /// Of a reduction without a configuration of its own, which `codecs` are the group's choice for.
  void notice(const char* what, const at::Tensor& tensor, const std::vector<Layer>& layers);
  std::vector<Layer> layers_of_request(const at::Tensor& tensor,
                                       const std::vector<LayerRequest>& requests) const;
  /// Exact inside the host where CGX_INTRA_COMPRESS=0 says so.
  std::shared_ptr<const Codec> allowed_in_group(std::shared_ptr<const Codec> codec) const;

  /// Why a call is compressed, or not; empty where nobody wants to know.
  std::string why_codec(bool collective_compresses, const at::Tensor& tensor) const;
  void log_call(const CallRecord& record, const std::string& why) const;

  WorkPtr engine_all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                            std::vector<std::vector<Layer>> layers, const CallOptions& call,
                            std::string why);
  WorkPtr engine_reduce_scatter(at::Tensor output, at::Tensor input, const c10d::ReduceOp& op,
                                const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                                std::string why);
  WorkPtr engine_all_gather(at::Tensor output, at::Tensor input,
                            const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                            std::string why);
  /// memory: what the body uses, of one device.
  WorkPtr enqueue(CallShape shape, const char* title, const Tensors& inputs, const Tensors& outputs,
                  const Tensors& memory, const CallOptions& call, std::string why, Body body);
  /// A call of the engine has failed.
  void fail_call(const Failure& failure);
  /// On the worker's thread.
  void run_plan(Engine& engine, const std::shared_ptr<const Plan>& plan, Bits bits,
                const void* input, void* output, bool average, const Deadline& deadline,
                CallRecord& record);

  /// A compressible call on a device that the engine does not serve is an error where the group
  /// compresses it.
  void refuse_other_devices(const char* what, const at::Tensor& tensor, const c10d::ReduceOp& op,
                            bool compresses) const;
  /// Hands a call to the inner backend. `views`: the inner tensors are views of `outputs`.
  WorkPtr forward(const CallShape& shape, const Tensors& inputs, const Tensors& outputs,
                  std::chrono::milliseconds timeout, bool views,
                  const std::function<WorkPtr()>& run);
  WorkPtr forward_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr forward_reduce_scatter(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts);
  WorkPtr forward_all_gather(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& opts);
  /// A work that ends when `work` has ended and `finish`, on the worker's thread, has run.
  /// `copies`: what else it reads.
  WorkPtr after(const char* title, const WorkPtr& work, const Tensors& outputs,
                const Tensors& copies, std::chrono::milliseconds timeout,
                std::function<void()> finish);
  /// Runs a collective of the inner backend that writes `tensors`, on dense copies where they have
  /// gaps.
  WorkPtr through_copies(const CallShape& shape, const char* title, const Tensors& tensors,
                         std::chrono::milliseconds timeout,
                         const std::function<WorkPtr(Tensors&)>& run);
  WorkPtr forward_all_to_all(at::Tensor& output, at::Tensor& input,
                             std::vector<int64_t>& output_splits,
                             std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts);

  /// Where torch is coalescing, keeps the work for endCoalescing().
  WorkPtr track(WorkPtr work);
  void check_usable(const char* what) const;

  const uint64_t serial_;
  const pid_t process_;
  const StorePtr store_;  // keys of this making of the group
  const c10::intrusive_ptr<Options> options_;
  const GroupConfig config_;
  Notices notices_;
  const std::unique_ptr<CallCodec> call_codec_;
  const Factories factories_;
  BackendPtr inner_;
  std::vector<std::string> hosts_;
  std::string address_;  // at which Gloo listens; empty: where it does by itself
  bool on_one_host_ = true;
  std::shared_ptr<Watchdog> watchdog_;  // works hold it too
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Autotuner> autotuner_;
  std::mutex gpu_mutex_;          // guards the making of the next two; who holds it may wait for
                                  // peers, and for Python's lock
  std::unique_ptr<GpuLane> gpu_;  // null before the first call on a GPU's tensors
  BackendPtr inner_gpu_;          // the same for what the engine does not reduce
  int lanes_begun_ = 0;           // guarded by gpu_mutex_
  std::mutex agreed_mutex_;       // guards the next
  std::unordered_set<std::string> agreed_;  // what ranks have agreed on: see agree_on_plan()
  std::atomic<Engine*> gpu_engine_{nullptr};

  std::shared_ptr<TaskQueue> callbacks_;
  std::unique_ptr<TaskQueue> worker_;

  mutable std::mutex mutex_;  // guards what follows
  c10d::ErrorType error_ = c10d::ErrorType::SUCCESS;
  bool closed_ = false;
  bool coalescing_ = false;
  bool batch_begun_ = false;  // of inner_gpu_
  std::vector<WorkPtr> coalesced_;
};

/// The engine's type for a tensor it can reduce: fp32, fp16 or bf16, dense, on the CPU or a GPU.
std::optional<DType> engine_dtype(const at::Tensor& tensor);

}  // namespace cgx
