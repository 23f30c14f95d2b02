#include "backend/work/call_record.h"

#include <iterator>
#include <utility>

#include "base/error.h"
#include "tensors/dtypes.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

// In the first word of a fingerprint, from the lowest bit: operation, reduction, type, flags, root.
constexpr int kReduceShift = 8, kTypeShift = 16, kFlagsShift = 24, kRootShift = 32;
constexpr uint64_t kEngine = 1, kCuda = 2;
constexpr int kBitsShift = 2;  // in the flags
constexpr uint32_t kIsPlan = 0x80000000u, kPlan = 0x3fffffffu;
constexpr uint64_t kByte = 0xff;
constexpr uint64_t kNone = kByte;

// True for calls of which some have codecs, so that "exact" tells something.
bool has_codecs(c10d::OpType op, uint64_t reduce, at::ScalarType type) {
  const bool sum = reduce == kNone || reduce == c10d::ReduceOp::SUM ||
                   reduce == c10d::ReduceOp::AVG || reduce == c10d::ReduceOp::PREMUL_SUM;
  const bool takes = op == c10d::OpType::ALLREDUCE || op == c10d::OpType::ALLREDUCE_COALESCED ||
                     op == c10d::OpType::_REDUCE_SCATTER_BASE ||
                     op == c10d::OpType::_ALLGATHER_BASE;
  return takes && sum && codec_type(type).has_value();
}

// True for collectives whose values go to the root.
bool leads_to_root(c10d::OpType op) {
  return op == c10d::OpType::SEND || op == c10d::OpType::REDUCE || op == c10d::OpType::GATHER;
}

}  // namespace

const char* name_of(at::ScalarType type) {
  const std::optional<DType> known = dtype_of(type);
  return known ? name_of(*known) : c10::toString(type);
}

const char* name_of(c10d::OpType op) {
  switch (op) {
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLREDUCE:
      return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "all_reduce_coalesced";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::ALLGATHER:
      return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case c10d::OpType::ALLGATHER_COALESCED:
      return "all_gather_coalesced";
    case c10d::OpType::GATHER:
      return "gather";
    case c10d::OpType::SCATTER:
      return "scatter";
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "reduce_scatter_tensor";
    case c10d::OpType::ALLTOALL_BASE:
      return "all_to_all_single";
    case c10d::OpType::ALLTOALL:
      return "all_to_all";
    case c10d::OpType::SEND:
      return "send";
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE:
      return "recv";
    case c10d::OpType::BARRIER:
      return "barrier";
    case kConnectGpus:
      return "connection of GPUs";
    default:
      return "collective";
  }
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

Fingerprint fingerprint_of(const CallShape& shape, uint64_t number) {
  const uint64_t reduce = shape.reduce ? static_cast<uint64_t>(*shape.reduce) & kByte : kNone;
  // A call with a plan has no root: the sign shows which of the two this number is.
  const uint32_t root = shape.plan == 0 ? static_cast<uint32_t>(shape.root)
                                        : kIsPlan | (static_cast<uint32_t>(shape.plan) & kPlan);
  const uint64_t flags = (shape.engine ? kEngine : 0) | (shape.cuda ? kCuda : 0) |
                         static_cast<uint64_t>(shape.bits) << kBitsShift;
  Fingerprint fingerprint;
  fingerprint.number = number;
  fingerprint.words[0] = (static_cast<uint64_t>(shape.op) & kByte) | reduce << kReduceShift |
                         (static_cast<uint64_t>(shape.dtype) & kByte) << kTypeShift |
                         flags << kFlagsShift | static_cast<uint64_t>(root) << kRootShift;
  fingerprint.words[1] = static_cast<uint64_t>(shape.values);
  if (shape.key) fingerprint.words[2] = shape.key->step + 1;
  return fingerprint;
}

std::string describe(const Fingerprint& fingerprint) {
  const auto field = [&fingerprint](int shift) { return fingerprint.words[0] >> shift & kByte; };
  const auto op = static_cast<c10d::OpType>(fingerprint.words[0] & kByte);
  const auto root = static_cast<int32_t>(fingerprint.words[0] >> kRootShift);
  std::string text = name_of(op);
  if (op == c10d::OpType::BARRIER) return text;
  if (op == kConnectGpus) return text + ", for the first collective on CUDA tensors";
  const uint64_t reduce = field(kReduceShift);
  if (reduce != kNone) {
    text += str_of(" ", name_of(static_cast<c10d::ReduceOp::RedOpType>(reduce)));
  }
  const auto values = static_cast<int64_t>(fingerprint.words[1]);
  const char* type = name_of(static_cast<at::ScalarType>(field(kTypeShift)));
  text += values == CallShape::kUneven ? str_of(" of ", type, " values")
                                       : values_text(fingerprint.words[1], type);
  const uint64_t flags = field(kFlagsShift);
  if ((flags & kCuda) != 0) text += " on CUDA";
  if (root >= 0) text += str_of(leads_to_root(op) ? " to rank " : " from rank ", root);
  if ((flags & kEngine) == 0) return text;
  const auto bits = static_cast<int>(flags >> kBitsShift);
  const auto scalar = static_cast<at::ScalarType>(field(kTypeShift));
  if (bits != 0 || has_codecs(op, reduce, scalar)) text += bits_text(bits);
  return fingerprint.words[2] == 0 ? text : text + step_text(fingerprint.words[2] - 1);
}

CallName name_of(const Fingerprint& fingerprint) {
  return {name_of(static_cast<c10d::OpType>(fingerprint.words[0] & kByte)), fingerprint.number};
}

CallSide side_of(const Fingerprint& fingerprint, int rank) {
  const auto root = static_cast<int32_t>(fingerprint.words[0] >> kRootShift);
  return {rank, describe(fingerprint), {}, root < -1 ? static_cast<uint32_t>(root) & kPlan : 0};
}

TensorShapes::TensorShapes(const Tensors& inputs, const Tensors& outputs) {
  const auto sizes_of = [](const at::Tensor& t) {
    return t.layout() == at::kStrided ? t.sizes() : at::IntArrayRef{};
  };
  size_t words = 0;
  for (const auto* list : {&inputs, &outputs}) {
    for (const at::Tensor& t : *list) words += 2 + sizes_of(t).size();
  }
  packed_.reserve(words);
  const auto pack = [&](const Tensors& list) {
    for (const at::Tensor& t : list) {
      const at::IntArrayRef sizes = sizes_of(t);
      packed_.push_back(static_cast<int64_t>(t.scalar_type()));
      packed_.push_back(static_cast<int64_t>(sizes.size()));
      packed_.insert(packed_.end(), sizes.begin(), sizes.end());
    }
  };
  pack(inputs);
  inputs_ = packed_.size();
  pack(outputs);
}

std::vector<std::vector<int64_t>> TensorShapes::sizes(size_t begin, size_t end) const {
  std::vector<std::vector<int64_t>> out;
  for (size_t at = begin; at < end;) {
    const auto first = packed_.begin() + static_cast<ptrdiff_t>(at) + 2;
    out.emplace_back(first, first + packed_[at + 1]);
    at += 2 + out.back().size();
  }
  return out;
}

std::vector<at::ScalarType> TensorShapes::types(size_t begin, size_t end) const {
  std::vector<at::ScalarType> out;
  for (size_t at = begin; at < end; at += 2 + static_cast<size_t>(packed_[at + 1])) {
    out.push_back(static_cast<at::ScalarType>(packed_[at]));
  }
  return out;
}

void CallRecord::start() {
  State scheduled = State::kScheduled;
  if (!state_.compare_exchange_strong(scheduled, State::kStarted)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  started_ = Clock::now();
}

void CallRecord::finish(const std::string& error) {
  // Even a weak pointer keeps a work from being destroyed, and with it Gloo's connections and their
  // thread, while records live on in the flight recorder. Let go of it after the lock.
  decltype(work_) work;
  std::lock_guard<std::mutex> lock(mutex_);
  if (over()) return;
  std::swap(work, work_);
  ended_ = Clock::now();
  if (started_ == Clock::time_point{}) started_ = created;
  error_ = error;
  state_ = error.empty() ? State::kCompleted : State::kFailed;
}

void CallRecord::served_by(const std::shared_ptr<const Plan>& plan,
                           const std::string& communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  plan_ = plan;
  communicator_ = communicator;
  bytes_before_ += plan->values * size_of(plan->dtype);
}

void CallRecord::carried_by(const std::string& communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  communicator_ = communicator;
}

void CallRecord::tuned(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  tuning_ = why;
}

void CallRecord::watch_work(const WorkPtr& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  work_.emplace(c10::weak_intrusive_ptr<c10d::Work>(work));
}

WorkPtr CallRecord::work() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return work_ ? work_->get().lock() : WorkPtr();
}

CallTitle CallRecord::title() const {
  return {{name_of(shape.op), number}, group->shown(), group->rank, group->size};
}

std::string CallRecord::error_text(const Failure& failure) const {
  std::string where = shape.engine ? "" : "gloo";
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!communicator_.empty()) where = communicator_;
  }
  const std::chrono::duration<double> passed = Clock::now() - created;
  return cgx::error_text(title(), failure, where, passed.count());
}

CallRecord::Progress CallRecord::progress() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto unix_ns = [this](Clock::time_point at) -> int64_t {
    if (at == Clock::time_point{}) return 0;
    return created_unix_ns +
           std::chrono::duration_cast<std::chrono::nanoseconds>(at - created).count();
  };
  std::string way = communicator_.empty() ? "gloo" : communicator_;
  if (plan_) {
    const Layer* first = plan_->first_compressed();
    way = str_of(name_of(plan_->algorithm), " over ", communicator_, ", ",
                 first != nullptr ? first->codec->describe() : "exact");
    if (plan_->layers.size() > 1) way += str_of(", ", plan_->layers.size(), " layers");
  }
  return {state_,          unix_ns(started_),
          unix_ns(ended_), std::chrono::duration<double, std::milli>(ended_ - started_).count(),
          bytes_before_,   bytes_after_,
          plan_,           way,
          error_,          tuning_};
}

}  // namespace cgx
