// The `cgx` backend of torch.distributed.
//
// Collectives of tensors of the host run on the engine, compressed where the configuration or the
// call says so. What the engine does not run (docs/how_it_works.md lists it) goes to an inner
// backend, Gloo or NCCL, unchanged and exact.
//
// Thread-safety: as c10d::Backend: collectives of one group are called from one thread at a time,
// in the same order on all ranks; different groups are independent; abort(), shutdown() and stats
// may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/config/codec_policy.h"
#include "backend/engine_calls.h"
#include "backend/executor.h"
#include "backend/factories.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "backend/inner/coalescing.h"
#include "backend/inner/forwarder.h"
#include "backend/inner/gloo_messages.h"
#include "backend/inner/inner_backends.h"
#include "backend/left_over.h"
#include "backend/move_calls.h"
#include "backend/p2p/mail_room.h"
#include "reduce/engine.h"
#include "reduce/tuning/autotuner.h"

namespace cgx {

class ProcessGroupCGX : public c10d::Backend, public LeftOver {
 public:
  /// Collective: all ranks of the group make it. Compares configurations, finds the hosts, sets up
  /// the communicator. A group that is not destroyed before Python exits is shut down then, if it
  /// has nothing under way.
  static c10::intrusive_ptr<ProcessGroupCGX> make(StorePtr store, int rank, int size,
                                                  c10::intrusive_ptr<GroupOptions> options,
                                                  Factories factories);
  /// For make().
  ProcessGroupCGX(StorePtr store, int rank, int size, c10::intrusive_ptr<GroupOptions> options,
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
  void close_if_idle() override;
  /// Before the destructor, where weak references are left.
  void release_resources() override { LeftOver::forget(this); }
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

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;

  // --- explicit calls of torch_cgx.*
  /// Layers must add up to the tensor. A compressed layer of a tensor that the engine does not take
  /// is an error.
  WorkPtr all_reduce_layers(at::Tensor tensor, const c10d::ReduceOp& op, std::vector<Layer> layers,
                            const CallOptions& call);
  /// The same with the layers that the group's configuration gives the tensor, for calls with a
  /// residual. ValueError for a tensor or an op that the engine does not take.
  WorkPtr all_reduce_as_group(at::Tensor tensor, const c10d::ReduceOp& op, CallOptions call);
  WorkPtr reduce_scatter_as_group(at::Tensor output, at::Tensor input, const c10d::ReduceOp& op,
                                  CallOptions call);
  WorkPtr all_gather_as_group(at::Tensor output, at::Tensor input, CallOptions call);
  /// `codec` empty: exact, whatever the group's configuration says.
  WorkPtr reduce_scatter_codec(at::Tensor output, at::Tensor input, const c10d::ReduceOp& op,
                               const std::shared_ptr<const Codec>& codec, const CallOptions& call);
  WorkPtr all_gather_codec(at::Tensor output, at::Tensor input,
                           const std::shared_ptr<const Codec>& codec, const CallOptions& call);
  /// True if the two calls below take a tensor of this type and device; equal on all ranks.
  bool moves_encoded(const at::Tensor& tensor) const;
  /// `codec` null: exact (encoded_moves.cc).
  WorkPtr broadcast_codec(at::Tensor tensor, int64_t root,
                          const std::shared_ptr<const Codec>& codec, const CallOptions& call);
  /// Splits: rows of the first dimension, by rank; empty: equal ones.
  WorkPtr all_to_all_codec(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                           std::vector<int64_t> input_splits,
                           const std::shared_ptr<const Codec>& codec, const CallOptions& call);

  // --- for the bindings
  Engine& engine() { return *engine_; }
  /// Null before the first call on a GPU's tensors. Callers may hold Python's lock.
  Engine* gpu_engine() { return gpu_->engine(); }
  /// Null without CGX_AUTOTUNE.
  Autotuner* autotuner() { return autotuner_.get(); }
  const GroupContext& context() const { return group_; }

  // --- everything else: the inner backend (forward.cc)
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  // --- messages (p2p/point_to_point.cc)
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  /// Part of the constructor: compares configurations, finds the hosts, sets up the communicators.
  void set_up(Rendezvous& rendezvous);

  /// Part of the destructor in a forked child, also where the parent has shut the group down: leaks
  /// what has threads, connections or memory of the parent.
  void abandon();

  /// A compressible call on a device that the engine does not serve is an error where the group
  /// compresses it.
  void refuse_other_devices(const char* what, const at::Tensor& tensor, const c10d::ReduceOp& op,
                            bool compresses) const;
  /// An all-reduce of exact values, on the engine where the tensors are the host's.
  WorkPtr all_reduce_exactly(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr reduce_scatter_exactly(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts);
  /// The codec that the group's configuration gives a reduce-scatter: the raw one if none.
  std::shared_ptr<const Codec> reduce_scatter_codec_for(const at::Tensor& output,
                                                        const at::Tensor& input,
                                                        const c10d::ReduceOp& op) const;
  WorkPtr forward_reduce(Tensors& tensors, const c10d::ReduceOptions& opts);
  WorkPtr forward_reduce_scatter_list(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& opts);
  WorkPtr forward_all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr forward_reduce_scatter(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts);
  WorkPtr forward_all_gather(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& opts);
  /// What the inner backend reduces by, and what is left to do with its results then: nothing, or
  /// the division of an average.
  struct InnerReduction {
    c10d::ReduceOp op;
    std::function<void(Tensors&)> last;
  };
  InnerReduction inner_reduction(const char* what, const c10d::ReduceOp& op,
                                 const at::Tensor& tensor) const;
  /// A message of this tensor goes over memory that all ranks share.
  bool over_mail(const at::Tensor& tensor) const;
  /// `peer` empty: from any rank.
  WorkPtr receive(Tensors& tensors, std::optional<int> peer, int tag);
  WorkPtr forward_all_to_all(const at::Tensor& output, const at::Tensor& input,
                             std::vector<int64_t>& output_splits,
                             std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts);

  // Each member uses only members above it, so the implicit destruction goes from the last to the
  // first.
  GroupContext group_;
  bool failed_ = false, stuck_ = false;  // when it was shut down: the group; Gloo's collectives
  std::unique_ptr<InnerBackends> inner_;
  std::unique_ptr<GlooMessages> messages_;
  std::unique_ptr<CodecPolicy> policy_;
  std::unique_ptr<Engine> engine_;  // for tensors of the host
  std::unique_ptr<Autotuner> autotuner_;
  std::unique_ptr<GpuGroup> gpu_;
  std::unique_ptr<EngineCalls> engine_calls_;
  std::unique_ptr<MoveCalls> move_calls_;
  Coalescing coalescing_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Forwarder> forwarder_;
  std::unique_ptr<MailRoom> mail_;  // null: the ranks do not share memory
};

}  // namespace cgx
