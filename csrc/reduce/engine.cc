#include "reduce/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/float_mode.h"
#include "reduce/moves/moves.h"
#include "reduce/plan/call_text.h"
#include "reduce/schedule/host_stages.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

// Longest time for finding the cause of an error (Explain): it may come from the peers.
constexpr std::chrono::seconds kExplains{1};

// Sets a flag for as long as it lives, and wakes all waiters at the end.
class Running {
 public:
  Running(std::atomic<bool>& flag, std::mutex& mutex, std::condition_variable& over)
      : flag_(flag), mutex_(mutex), over_(over) {
    flag_ = true;
  }
  ~Running() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      flag_ = false;
    }
    over_.notify_all();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  std::atomic<bool>& flag_;
  std::mutex& mutex_;
  std::condition_variable& over_;
};

// Encoded values are looked at before anything is sent, as in other compressed calls; exact ones
// only move.
void check_given(Call& call, const Move& move) {
  if (!move.plan->compressed && call.residual.base == nullptr) return;
  const View residual = call.residual;
  for (const std::optional<Piece>& piece : move.gives) {
    if (!piece) continue;
    if (residual.base != nullptr) {
      call.residual.base = residual.base + piece->first * size_of(residual.dtype);
    }
    call.stages.check_input(call, piece->data, piece->values);
  }
  call.residual = residual;
}

}  // namespace

Engine::Engine(Communicators communicators, EngineOptions options, Explain explain)
    : communicators_(std::move(communicators)),
      explain_(std::move(explain)),
      options_(options),
      rank_(communicators_.rank),
      size_(communicators_.topology.size()),
      plans_(options_, communicators_.topology) {
  if (options_.direct_from > 0 && size_ > 1 && !topology().two_levels()) {
    const Communicator& only = communicators_.intra ? *communicators_.intra : *communicators_.cross;
    if (!only.direct()) {
      throw ConfigError(str_of("the communicator ", only.name(), " has no direct transfers"));
    }
  }
  if (communicators_.cross && communicators_.cross->in_flight() < kCrossInFlight) {
    throw ConfigError(str_of("the communicator ", communicators_.cross->name(), " takes ",
                             communicators_.cross->in_flight(),
                             " exchanges at once; between hosts ", kCrossInFlight, " are needed"));
  }
  use(std::make_unique<HostStages>());
}

Engine::~Engine() = default;

void Engine::use(std::unique_ptr<Stages> stages) {
  for (const Communicator* comm : {communicators_.intra.get(), communicators_.cross.get()}) {
    if (comm != nullptr && comm->size() > 1 && stages->on_device() && !comm->on_device()) {
      throw ConfigError(
          str_of("the communicator ", comm->name(), " does not carry memory of a GPU"));
    }
  }
  stages_ = std::move(stages);
  work_ = WorkMemory([stages = stages_.get()](size_t bytes) { return stages->allocate(bytes); });
}

void Engine::make_room(const Plan& plan) {
  const size_t sums = options_.checksum ? kChecksumBytes * static_cast<size_t>(size_) : 0;
  const size_t inside = plan.two_levels ? plan.intra_bytes : plan.cross_bytes;
  for (auto [communicator, bytes] : {std::pair{communicators_.intra.get(), inside},
                                     std::pair{communicators_.cross.get(), plan.cross_bytes}}) {
    if (communicator != nullptr && bytes + sums > communicator->capacity())
      communicator->make_room(bytes + sums);
  }
}

void Engine::dispatch(Call& call, const void* input, void* output) {
  // Without values the ranks exchange headers all the same: one that has some learns of the others.
  if (call.plan.values == 0 && !stages_->on_device()) return barrier(call);
  const bool two_levels = call.plan.two_levels;
  switch (call.plan.operation) {
    case Operation::kAllReduce:
      if (call.plan.algorithm == Algorithm::kDirect) return all_reduce_direct(call, output);
      return two_levels ? all_reduce_two_levels(call, output) : all_reduce(call, output);
    case Operation::kReduceScatter:
      return two_levels ? reduce_scatter_two_levels(call, input, output)
                        : reduce_scatter(call, input, output);
    case Operation::kAllGather:
      return two_levels ? all_gather_two_levels(call, input, output)
                        : all_gather(call, input, output);
    case Operation::kReduce:
      return two_levels ? reduce_two_levels(call, input, output) : reduce(call, input, output);
    default:
      throw Error(str_of("no schedule for ", name_of(call.plan.operation)));
  }
}

void Engine::dispatch(Call& call, const Move& move) {
  check_given(call, move);
  switch (move.plan->operation) {
    case Operation::kBroadcast:
      return broadcast(call, move, options_);
    case Operation::kBarrier:
      return barrier(call);
    default:
      return move_pairwise(call, move, options_);
  }
}

View Engine::residual_view(const Plan& plan, const Residual& residual) const {
  const bool one_shard = plan.operation == Operation::kAllGather;
  const size_t shard = plan.values / static_cast<size_t>(size_);
  return {static_cast<std::byte*>(residual.data),
          one_shard ? shard * static_cast<size_t>(rank_) : size_t{0}, residual.dtype};
}

struct Engine::RunOptions {
  bool average;
  const Deadline& deadline;
  std::optional<uint64_t> number;
  Stats& stats;
  Stats* overhead;
  View residual;
  const std::optional<StepKey>& key;
};

void Engine::run(const Plan& plan, const void* input, void* output, bool average,
                 const Deadline& deadline, std::optional<uint64_t> number, Stats* overhead,
                 const Residual& residual, const std::optional<StepKey>& key,
                 const void* const* input_parts) {
  Stats& stats = overhead != nullptr ? *overhead : stats_;
  carry_out(
      plan, {average, deadline, number, stats, overhead, residual_view(plan, residual), key},
      [&](Call& call) {
        call.input_parts = input_parts;
        if (size_ == 1 && output != input) {  // no peers: nothing is sent, and nothing rounded
          stages_->copy(output, input, plan.values * size_of(plan.dtype));
        }
        if (size_ == 1) stages_->add_residual(call, output, plan.values);
        make_room(plan);
        dispatch(call, input, output);
      });
}

void Engine::run_move(const Move& move, const Deadline& deadline, std::optional<uint64_t> number,
                      const Residual& residual, const std::optional<StepKey>& key) {
  const View errors{static_cast<std::byte*>(residual.data), 0, residual.dtype};
  carry_out(*move.plan, {false, deadline, number, stats_of(move), nullptr, errors, key},
            [&](Call& call) { dispatch(call, move); });
}

template <typename Work>
void Engine::carry_out(const Plan& plan, const RunOptions& options, const Work& work) {
  const Deadline& deadline = options.deadline;
  Stats* const overhead = options.overhead;
  const uint64_t shown = options.number.value_or(sequence_ + 1);
  const auto title = [&] { return CallTitle{{name_of(plan.operation), shown}, "", rank_, size_}; };
  const auto text_of = [&](const Failure& failure) {
    return error_text(title(), failure, communicator(), deadline.elapsed_seconds());
  };
  if (auto broken = failure()) throw_failure(*broken, text_of(*broken));
  const uint64_t sequence = sequence_++;
  Stats& stats = options.stats;
  const Running running(running_, state_mutex_, explained_);
  try {
    FloatMode ieee;  // a caller that flushes subnormals must not get other bits than its peers
    CallIdentity identity{&plan,      sequence,          options.average,
                          rank_,      options_.checksum, options_.tell_hashes,
                          options.key};
    Call call{{communicators_.intra.get(), communicators_.cross.get(), communicators_.mesh.get()},
              topology(),
              plan,
              identity,
              deadline,
              stats,
              options_.nonfinite,
              work_,
              *stages_};
    call.residual = options.residual;
    stats.calls += 1;
    stats.compressed_calls += plan.compressed ? 1 : 0;
    stats.values += plan.values;
    stats.bytes_raw += plan.values * size_of(plan.dtype);
    work(call);
    size_t staging = options_.direct_from > 0 ? work_.bytes() : 0;
    for (Communicator* comm : {call.links.intra, call.links.cross, call.links.mesh}) {
      if (comm == nullptr) continue;
      comm->flush(deadline);
      staging += comm->staging_bytes();
    }
    stats_.staging_bytes = staging;
    if (call.met_nonfinite) {
      const Failure met{FailureKind::kNonFinite,
                        "a NaN or Inf was met on this or another rank (nonfinite='raise')", rank_,
                        title().call};
      throw_failure(met, text_of(met));
    }
  } catch (const NonFiniteError&) {
    throw;
  } catch (const std::exception& e) {
    // Keeps the cause and the operation; the communicators send both to the peers.
    Failure failure = failure_of(e);
    if (failure.rank < 0) {
      if (overhead != nullptr) failure.text = "while the autotuner measured: " + failure.text;
      failure.rank = rank_;
      failure.call = title().call;
    }
    explaining_ = true;  // until broken_ is set
    if (explain_) failure = explain_(std::move(failure));
    std::lock_guard<std::mutex> lock(state_mutex_);
    failure = broken_by(failure);
    explained_.notify_all();
    abort_communicators(failure);
    throw_failure(failure, text_of(failure));
  }
}

Failure Engine::broken_by(const Failure& cause) {
  if (!broken_) broken_ = cause;
  return *broken_;
}

void Engine::abort_communicators(const Failure& cause) {
  for (Liveness* comm : communicators_.liveness()) {
    if (comm != nullptr) comm->abort(cause);
  }
}

void Engine::fail(const Failure& cause) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  abort_communicators(broken_by(cause));
}

void Engine::abort(const std::string& reason) {
  fail({FailureKind::kAborted, str_of("rank ", rank_, " was aborted: ", reason), rank_});
}

void Engine::close() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  communicators_.intra.reset();
  communicators_.cross.reset();
  communicators_.mesh.reset();
}

std::optional<Failure> Engine::failure() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return known_failure();
}

std::optional<Failure> Engine::known_failure() {
  if (broken_) return broken_;
  for (Liveness* comm : communicators_.liveness()) {
    if (comm == nullptr) continue;
    // Not stored: a run() that is under way will find a more exact cause.
    if (auto known = comm->failure()) return known;
  }
  return std::nullopt;
}

bool Engine::looks_for_cause() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return !broken_ && explaining_;
}

std::optional<Failure> Engine::first_cause() {
  std::unique_lock<std::mutex> lock(state_mutex_);
  if (!broken_ && running_ && known_failure()) {
    explained_.wait_for(lock, kExplains, [this] { return broken_ || !running_; });
  }
  return known_failure();
}

std::optional<PeerFingerprint> Engine::compare_call(const Fingerprint& fingerprint) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  for (Liveness* comm : communicators_.liveness()) {
    if (comm == nullptr) continue;
    if (auto other = comm->compare_call(fingerprint)) return other;
  }
  return std::nullopt;
}

void Engine::forget_call(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  for (Liveness* comm : communicators_.liveness()) {
    if (comm != nullptr) comm->forget_call(number);
  }
}

void Engine::finish_call(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  for (Liveness* comm : communicators_.liveness()) {
    if (comm != nullptr) comm->finish_call(number);
  }
}

void Engine::check_wait(std::chrono::steady_clock::time_point now) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  for (Liveness* comm : communicators_.liveness()) {
    if (comm != nullptr) comm->check_wait(now);
  }
}

Engine::Sight Engine::sight_of_ends() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  int communicators = 0, seeing = 0;
  for (Liveness* comm : communicators_.liveness()) {
    if (comm == nullptr) continue;
    ++communicators;
    seeing += comm->sees_ended() ? 1 : 0;
  }
  // A rank may have no communicator to the ranks of other hosts.
  const bool all = communicators == seeing && topology().host_count() == 1;
  return seeing == 0 ? Sight::kNone : all ? Sight::kAll : Sight::kSome;
}

std::vector<int> Engine::ended_peers(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  std::vector<int> ended;
  for (Liveness* comm : communicators_.liveness()) {
    if (comm == nullptr) continue;
    for (int peer : comm->ended_peers(number)) ended.push_back(peer);
  }
  return ended;
}

}  // namespace cgx
