#include "reduce/engine.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/float_mode.h"

namespace cgx {
namespace {

// With more than two ranks one-shot sends (N - 1) instead of 2 (N - 1) / N messages' worth of
// bytes, but saves an exchange; below this many bytes leaving a rank the exchange is the larger
// cost (benchmarks/allreduce.py).
constexpr size_t kOneShotBytes = 256 * 1024;

// A script that reduces ever new shapes must not grow the cache for ever.
constexpr size_t kMaxCachedPlans = 512;

}  // namespace

Algorithm choose_algorithm(Reduction reduction, size_t bytes, int size) {
  switch (reduction) {
    case Reduction::kOneShot:
      return Algorithm::kOneShot;
    case Reduction::kScatterReduceAllGather:
      return Algorithm::kScatterReduceAllGather;
    case Reduction::kAuto:
      break;
  }
  if (size <= 2) return Algorithm::kOneShot;
  return bytes * static_cast<size_t>(size - 1) <= kOneShotBytes
             ? Algorithm::kOneShot
             : Algorithm::kScatterReduceAllGather;
}

Engine::Engine(std::unique_ptr<Communicator> comm, EngineOptions options)
    : comm_(std::move(comm)),
      carrier_(comm_->name()),
      options_(options),
      rank_(comm_->rank()),
      size_(comm_->size()) {}

size_t Engine::PlanKeyHash::operator()(const PlanKey& key) const {
  size_t hash = static_cast<size_t>(key.operation) * 31 + static_cast<size_t>(key.dtype);
  for (const auto& [count, codec] : key.segments) {
    hash = hash * 1000003 + count;
    hash = hash * 1000003 + std::hash<const void*>()(codec.get());
  }
  return hash;
}

template <typename Build>
std::shared_ptr<const Plan> Engine::cached(PlanKey key, const Build& build) {
  {
    std::lock_guard<std::mutex> lock(plans_mutex_);
    auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = build();
  std::lock_guard<std::mutex> lock(plans_mutex_);
  if (plans_.size() >= kMaxCachedPlans) plans_.clear();
  plans_.emplace(std::move(key), plan);
  return plan;
}

std::shared_ptr<const Plan> Engine::plan_all_reduce(const std::vector<Segment>& segments,
                                                    DType dtype) {
  PlanKey key{Operation::kAllReduce, dtype, {}};
  key.segments.reserve(segments.size());
  for (const Segment& segment : segments) key.segments.emplace_back(segment.count, segment.codec);
  return cached(std::move(key), [&] {
    const Algorithm algorithm =
        choose_algorithm(options_.reduction, one_shot_payload_bytes(segments, dtype), size_);
    return cgx::plan_all_reduce(segments, dtype, size_, algorithm, comm_->capacity());
  });
}

std::shared_ptr<const Plan> Engine::plan_shards(Operation operation, size_t shard,
                                                const std::shared_ptr<const Codec>& codec,
                                                DType dtype) {
  return cached(PlanKey{operation, dtype, {{shard, codec}}}, [&] {
    return cgx::plan_shards(operation, shard, codec, dtype, size_, comm_->capacity());
  });
}

void Engine::run(const Plan& plan, const void* input, void* output, bool average,
                 const Deadline& deadline) {
  if (auto broken = failure()) throw_failure(*broken);
  const uint64_t sequence = sequence_++;
  auto context = [&](const std::string& what) {
    return str_of("cgx ", name_of(plan.operation), " number ", sequence, " on rank ", rank_, " of ",
                  size_, " (", comm_->name(), "): ", what);
  };
  try {
    FloatMode ieee;  // a caller that flushes subnormals must not get other bits than its peers
    CallIdentity identity{&plan, sequence, average, rank_};
    Call call{*comm_, plan, identity, deadline, stats_, options_.nonfinite, scratch_};
    stats_.calls += 1;
    stats_.compressed_calls += plan.compressed ? 1 : 0;
    stats_.values += plan.values;
    stats_.bytes_raw += plan.values * size_of(plan.dtype);
    if (size_ == 1 && output != input) {  // no peers: nothing is sent, and nothing rounded
      std::memmove(output, input, plan.values * size_of(plan.dtype));
    }
    switch (plan.operation) {
      case Operation::kAllReduce:
        if (plan.algorithm == Algorithm::kOneShot) {
          one_shot(call, output);
        } else {
          scatter_reduce_all_gather(call, output);
        }
        break;
      case Operation::kReduceScatter:
        reduce_scatter(call, input, output);
        break;
      case Operation::kAllGather:
        all_gather(call, input, output);
        break;
    }
    comm_->flush(deadline);
    if (call.met_nonfinite) {
      throw NonFiniteError(
          context("a NaN or Inf was met on this or another rank (nonfinite='raise')"));
    }
  } catch (const NonFiniteError&) {
    throw;
  } catch (const std::exception& e) {
    // The kind of error is kept, the operation is added; the carrier tells the peers the same.
    Failure failure = failure_of(e);
    failure.text = context(failure.text);
    comm_->abort(failure);
    {
      std::lock_guard<std::mutex> lock(state_mutex_);
      broken_ = failure;
    }
    throw_failure(failure);
  }
}

void Engine::abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (comm_) {
    comm_->abort({FailureKind::kAborted, str_of("rank ", rank_, " was aborted: ", reason)});
  }
}

void Engine::close() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  comm_.reset();
}

std::optional<Failure> Engine::failure() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return broken_;
}

}  // namespace cgx
