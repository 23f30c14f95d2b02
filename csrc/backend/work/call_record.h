// Record of one collective on one rank: used by the watchdog, by errors and by the flight record.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/work/of_process.h"
#include "comm/fingerprint.h"
#include "reduce/plan/call_text.h"
#include "reduce/plan/plan.h"
#include "reduce/plan/step_key.h"

namespace cgx {

/// The properties of a call on which the ranks of a group must agree.
struct CallShape {
  static constexpr int64_t kUneven = -1;

  c10d::OpType op = c10d::OpType::UNKNOWN;
  std::optional<c10d::ReduceOp::RedOpType> reduce;
  at::ScalarType dtype = at::kFloat;
  int64_t values = 0;   // of the tensor that all ranks share; kUneven where they may differ
  int root = -1;        // of collectives that have one; the peer of a send or a receive
  bool engine = false;  // runs on the engine, not on the inner backend
  bool cuda = false;    // of tensors on a GPU
  /// Hash of the plans if messages have no headers to compare; else 0.
  uint64_t plan = 0;
  /// Bits of the first compressed layer, as requested; 0: exact.
  int bits = 0;
  /// Keys random numbers; none: the number of the call does.
  std::optional<StepKey> key{};

  bool point_to_point() const {
    return op == c10d::OpType::SEND || op == c10d::OpType::RECV ||
           op == c10d::OpType::RECVANYSOURCE;
  }
};

/// The op of the record that covers the connecting of the GPUs, before a group's first collective
/// on CUDA tensors.
constexpr c10d::OpType kConnectGpus = c10d::OpType::UNKNOWN;

/// "all_reduce", "broadcast", ...
const char* name_of(c10d::OpType op);
/// "SUM", "AVG", ...
const char* name_of(c10d::ReduceOp::RedOpType op);
/// "float32", ... as Python calls it.
const char* name_of(at::ScalarType type);
Fingerprint fingerprint_of(const CallShape& shape, uint64_t number);
/// "all_reduce SUM of 1000 float32 values, exact", "broadcast of 10 int64 values on CUDA from rank
/// 2".
std::string describe(const Fingerprint& fingerprint);
CallName name_of(const Fingerprint& fingerprint);
/// The call of `rank`, for disagreement().
CallSide side_of(const Fingerprint& fingerprint, int rank);

/// The group that a call belongs to, as errors and the flight record name it.
struct GroupLabel {
  uint64_t serial = 0;
  std::string name;
  std::string description;
  std::vector<uint64_t> global_ranks;
  int rank = 0;
  int size = 1;
  bool tell_hashes = false;  // of plans, in errors

  /// The group's name in errors.
  const std::string& shown() const { return description.empty() ? name : description; }
};

/// Sizes and types of a call's tensors, in one allocation: the flight record keeps them
/// for thousands of calls, and each new call frees the shapes of an old one.
class TensorShapes {
 public:
  TensorShapes() = default;
  TensorShapes(const Tensors& inputs, const Tensors& outputs);

  std::vector<std::vector<int64_t>> input_sizes() const { return sizes(0, inputs_); }
  std::vector<std::vector<int64_t>> output_sizes() const { return sizes(inputs_, packed_.size()); }
  std::vector<at::ScalarType> input_types() const { return types(0, inputs_); }
  std::vector<at::ScalarType> output_types() const { return types(inputs_, packed_.size()); }

 private:
  std::vector<std::vector<int64_t>> sizes(size_t begin, size_t end) const;
  std::vector<at::ScalarType> types(size_t begin, size_t end) const;

  std::vector<int64_t> packed_;  // of each tensor: type, number of dimensions, sizes
  size_t inputs_ = 0;            // where the outputs begin
};

/// Thread-safe, except for the constant fields: they are set before the record is shared.
class CallRecord {
 public:
  enum class State : uint8_t { kScheduled = 0, kStarted = 1, kCompleted = 2, kFailed = 3 };
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<const GroupLabel> group;
  CallShape shape;
  uint64_t number = 0;  // among the collectives of the group, or among its sends and receives
  std::chrono::milliseconds timeout{0};
  Clock::time_point created{};
  int64_t created_unix_ns = 0;
  TensorShapes shapes;

  void start();
  /// `error` empty: success. Only the first call counts.
  void finish(const std::string& error);
  State state() const { return state_; }
  bool over() const { return state_ >= State::kCompleted; }

  /// Notes one plan of a call on the engine, and the communicators.
  void served_by(const std::shared_ptr<const Plan>& plan, const std::string& communicator);
  /// Notes the communicator of a call that has no plan.
  void carried_by(const std::string& communicator);
  /// The reason for the autotuner's decision.
  void tuned(const std::string& why);
  void count_sent(uint64_t bytes) { bytes_after_ += bytes; }

  void watch_work(const WorkPtr& work);
  /// The work, if it still exists.
  WorkPtr work() const;

  CallTitle title() const;
  /// The text of an error that this call ends with.
  std::string error_text(const Failure& failure) const;
  Fingerprint fingerprint() const { return fingerprint_of(shape, number); }

  struct Progress {
    State state;
    int64_t started_unix_ns, ended_unix_ns;  // 0: not yet
    double milliseconds;                     // from start to end
    uint64_t bytes_before, bytes_after;      // of the values, and sent by this rank; engine only
    std::shared_ptr<const Plan> plan;
    std::string way, error;  // "one-shot over shm, maxmin bits=4 ..."
    std::string tuning;      // empty: no tuner, or not logged
  };
  Progress progress() const;

 private:
  std::atomic<State> state_{State::kScheduled};
  std::atomic<uint64_t> bytes_after_{0};
  mutable std::mutex mutex_;  // guards what follows
  Clock::time_point started_{}, ended_{};
  std::shared_ptr<const Plan> plan_;  // the last of several
  std::string communicator_, error_, tuning_;
  uint64_t bytes_before_ = 0;
  std::optional<OfProcess<c10::weak_intrusive_ptr<c10d::Work>>> work_;
};

using CallRecordPtr = std::shared_ptr<CallRecord>;

}  // namespace cgx
