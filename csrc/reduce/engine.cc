#include "reduce/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/float_mode.h"
#include "reduce/plan/call_text.h"
#include "reduce/schedule/device_stages.h"
#include "reduce/schedule/stages.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

// With more than two ranks one-shot sends (N - 1) instead of 2 (N - 1) / N messages' worth of
// bytes, but saves an exchange; below this many bytes leaving a rank the exchange is the larger
// cost (benchmarks/allreduce.py).
constexpr size_t kOneShotBytes = 256 * 1024;

// How long an error may take to find its cause (Explain), at most: the peers are asked for it.
constexpr std::chrono::seconds kExplains{1};

// True while it lives; then all that wait are woken.
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
// Room for the contributions of one round of direct transfers, from all peers.
constexpr size_t kDirectRoom = size_t{8} << 20;
constexpr size_t kLeastDirectChunk = size_t{64} << 10;

// A script that reduces ever new shapes must not grow the cache for ever.
constexpr size_t kMaxCachedPlans = 512;

bool all_exact(const std::vector<Layer>& layers) {
  return std::all_of(layers.begin(), layers.end(),
                     [](const Layer& layer) { return layer.codec == raw_codec(); });
}

// May exact values go directly? There is no message around them whose bytes could be looked at.
bool takes_direct(const EngineOptions& options, const Topology& topology) {
  return options.direct_from > 0 && !topology.two_levels() && !options.checksum &&
         options.nonfinite == NonFinite::kPropagate;
}

// Has one rank all of it, if it is cut into chunks? Then all others send it one message each and
// get one, which is the fewest that can be: N (N - 1) of one-shot cost more CPU time than they save
// where a message costs a system call and a wake-up.
bool has_one_owner(const std::vector<Layer>& layers) {
  return layers.size() == 1 && layers.front().count <= layers.front().codec->granule();
}

}  // namespace

Algorithm choose_algorithm(const EngineOptions& options, const Topology& topology,
                           const std::vector<Layer>& layers, DType dtype) {
  const bool across = topology.host_count() > 1;
  switch (across ? options.cross_reduction : options.inner_reduction) {
    case Reduction::kOneShot:
      return Algorithm::kOneShot;
    case Reduction::kScatterReduceAllGather:
      return Algorithm::kScatterReduceAllGather;
    case Reduction::kRing:
      return Algorithm::kRing;
    case Reduction::kAuto:
      break;
  }
  const bool two_levels = topology.two_levels();
  const auto team = static_cast<size_t>(two_levels ? topology.host_count() : topology.size());
  const auto teams = static_cast<size_t>(two_levels ? topology.teams() : 1);
  const size_t bytes = one_shot_payload_bytes(layers, dtype);
  if (takes_direct(options, topology) && all_exact(layers)) {
    if (bytes >= options.direct_from) return Algorithm::kDirect;
    if (team > 2 && has_one_owner(layers)) return Algorithm::kScatterReduceAllGather;
  }
  const size_t leaving = bytes / teams * (team - 1);
  if (leaving <= kOneShotBytes) return Algorithm::kOneShot;
  // One-shot leaves the contributions of all hosts to be handed on inside them, which costs more
  // than it saves where they are not compressed.
  return team <= 2 && (!all_exact(layers) || !two_levels) ? Algorithm::kOneShot
                                                          : Algorithm::kScatterReduceAllGather;
}

std::string why_algorithm(const EngineOptions& options, const Plan& plan,
                          const Topology& topology) {
  if (plan.operation != Operation::kAllReduce) return "the only way";
  const bool across = topology.host_count() > 1;
  const Reduction asked = across ? options.cross_reduction : options.inner_reduction;
  const char* option = across ? "cross_reduction" : "inner_reduction";
  if (asked != Reduction::kAuto) return str_of("asked for by ", option);
  if (plan.algorithm == Algorithm::kDirect) {
    return str_of(option, "=AUTO: exact values, ", options.direct_from,
                  " bytes or more, over a communicator that takes them from the tensor");
  }
  const size_t team =
      static_cast<size_t>(topology.two_levels() ? topology.host_count() : topology.size());
  if (plan.algorithm == Algorithm::kOneShot) {
    return str_of(option, "=AUTO: ", team <= 2 ? "two sides, one rounding" : "a small message");
  }
  if (!plan.two_levels && has_one_owner(plan.layers)) {
    return str_of(option, "=AUTO: one rank sums so few values");
  }
  return str_of(option, "=AUTO: more than ", kOneShotBytes, " bytes would leave a rank at once");
}

namespace {

// The space that plans of the algorithm are made in.
PlanSpace plan_space(const EngineOptions& options, const Topology& topology, Algorithm algorithm) {
  PlanSpace space{topology, options.inner, options.inner, options.inner_exact};
  const auto make_room = [&](Budget& budget) {
    if (!options.checksum) return;
    const size_t sums = kChecksumBytes * static_cast<size_t>(topology.size());
    for (size_t* bytes : {&budget.wanted, &budget.most, &budget.limit}) {
      *bytes -= std::min(*bytes, sums);
    }
  };
  if (algorithm == Algorithm::kDirect) {
    // No communicator holds what goes directly; but contributions of all peers need room.
    const auto ranks = static_cast<size_t>(topology.size());
    const size_t most = kDirectRoom / std::max<size_t>(ranks - 1, 1);
    const size_t round = ranks * std::min(options.direct_chunk, std::max(most, kLeastDirectChunk));
    space.cross = {round, round};
    return space;
  }
  make_room(space.inner);
  make_room(space.cross);
  if (topology.host_count() == 1) return space;
  const auto team =
      static_cast<size_t>(topology.two_levels() ? topology.host_count() : topology.size());
  const size_t messages = algorithm == Algorithm::kOneShot ? 1 : team;
  space.ramp = true;
  space.cross = {std::min(options.cross_bytes, options.segment_bytes * messages),
                 options.cross_bytes};
  make_room(space.cross);
  return space;
}

}  // namespace

std::shared_ptr<const Plan> make_all_reduce_plan(const EngineOptions& options,
                                                 const Topology& topology,
                                                 const std::vector<Layer>& layers, DType dtype) {
  const Algorithm algorithm = choose_algorithm(options, topology, layers, dtype);
  const bool automatic = (topology.host_count() > 1 ? options.cross_reduction
                                                    : options.inner_reduction) == Reduction::kAuto;
  try {
    return plan_all_reduce(layers, dtype, algorithm, plan_space(options, topology, algorithm));
  } catch (const ConfigError&) {
    if (!automatic || algorithm != Algorithm::kOneShot) throw;
  }
  const Algorithm other = Algorithm::kScatterReduceAllGather;
  return plan_all_reduce(layers, dtype, other, plan_space(options, topology, other));
}

std::shared_ptr<const Plan> make_shards_plan(const EngineOptions& options, const Topology& topology,
                                             Operation operation, size_t shard,
                                             const std::shared_ptr<const Codec>& codec,
                                             DType dtype) {
  // An all-gather sends one message to all.
  const Algorithm shape = operation == Operation::kAllGather && !topology.two_levels()
                              ? Algorithm::kOneShot
                              : Algorithm::kScatterReduceAllGather;
  return plan_shards(operation, shard, codec, dtype, plan_space(options, topology, shape));
}

Engine::Engine(Communicators communicators, EngineOptions options, Explain explain)
    : communicators_(std::move(communicators)),
      explain_(std::move(explain)),
      options_(options),
      rank_(communicators_.rank),
      size_(communicators_.topology.size()) {
  if (options_.direct_from > 0 && size_ > 1 && !topology().two_levels()) {
    const Communicator& only = communicators_.inner ? *communicators_.inner : *communicators_.cross;
    if (!only.direct()) {
      throw ConfigError(str_of("the communicator ", only.name(), " has no direct transfers"));
    }
  }
  if (communicators_.cross && communicators_.cross->in_flight() < kCrossInFlight) {
    throw ConfigError(str_of("the communicator ", communicators_.cross->name(), " takes ",
                             communicators_.cross->in_flight(),
                             " exchanges at once; between hosts ", kCrossInFlight, " are needed"));
  }
}

Engine::~Engine() = default;

void Engine::use(std::unique_ptr<DeviceStages> device) {
  for (const Communicator* comm : {communicators_.inner.get(), communicators_.cross.get()}) {
    if (comm != nullptr && comm->size() > 1 && !comm->on_device()) {
      throw ConfigError(
          str_of("the communicator ", comm->name(), " does not carry memory of a GPU"));
    }
  }
  device_ = std::move(device);
  work_ = WorkMemory([stages = device_.get()](size_t bytes) { return stages->allocate(bytes); });
}

size_t Engine::PlanKeyHash::operator()(const PlanKey& key) const {
  size_t hash = static_cast<size_t>(key.operation) * 31 + static_cast<size_t>(key.dtype);
  for (const auto& [count, codec] : key.layers) {
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

std::shared_ptr<const Plan> Engine::plan_all_reduce(const std::vector<Layer>& layers, DType dtype) {
  PlanKey key{Operation::kAllReduce, dtype, {}};
  key.layers.reserve(layers.size());
  for (const Layer& layer : layers) key.layers.emplace_back(layer.count, layer.codec);
  return cached(std::move(key),
                [&] { return make_all_reduce_plan(options_, topology(), layers, dtype); });
}

std::shared_ptr<const Plan> Engine::plan_shards(Operation operation, size_t shard,
                                                const std::shared_ptr<const Codec>& codec,
                                                DType dtype) {
  return cached(PlanKey{operation, dtype, {{shard, codec}}}, [&] {
    return make_shards_plan(options_, topology(), operation, shard, codec, dtype);
  });
}

void Engine::make_room(const Plan& plan) {
  const size_t sums = options_.checksum ? kChecksumBytes * static_cast<size_t>(size_) : 0;
  const size_t inside = plan.two_levels ? plan.inner_bytes : plan.cross_bytes;
  for (auto [communicator, bytes] : {std::pair{communicators_.inner.get(), inside},
                                     std::pair{communicators_.cross.get(), plan.cross_bytes}}) {
    if (communicator != nullptr && bytes + sums > communicator->capacity())
      communicator->make_room(bytes + sums);
  }
}

void Engine::dispatch(Call& call, const void* input, void* output) {
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
  }
}

void Engine::run(const Plan& plan, const void* input, void* output, bool average,
                 const Deadline& deadline, std::optional<uint64_t> number, Stats* errand) {
  const uint64_t shown = number.value_or(sequence_ + 1);
  const auto title = [&] { return CallTitle{{name_of(plan.operation), shown}, "", rank_, size_}; };
  const auto text_of = [&](const Failure& failure) {
    return error_text(title(), failure, communicator(), deadline.elapsed_seconds());
  };
  if (auto broken = failure()) throw_failure(*broken, text_of(*broken));
  const uint64_t sequence = sequence_++;
  Stats& stats = errand != nullptr ? *errand : stats_;
  const Running running(running_, state_mutex_, explained_);
  try {
    FloatMode ieee;  // a caller that flushes subnormals must not get other bits than its peers
    CallIdentity identity{&plan, sequence, average, rank_, options_.checksum, options_.tell_hashes};
    Call call{{communicators_.inner.get(), communicators_.cross.get()},
              topology(),
              plan,
              identity,
              deadline,
              stats,
              options_.nonfinite,
              scratch_,
              work_,
              parallel_.get(),
              device_.get()};
    stats.calls += 1;
    stats.compressed_calls += plan.compressed ? 1 : 0;
    stats.values += plan.values;
    stats.bytes_raw += plan.values * size_of(plan.dtype);
    if (size_ == 1 && output != input) {  // no peers: nothing is sent, and nothing rounded
      copy_bytes(call, output, input, plan.values * size_of(plan.dtype));
    }
    make_room(plan);
    dispatch(call, input, output);
    if (communicators_.inner) communicators_.inner->flush(deadline);
    if (communicators_.cross) communicators_.cross->flush(deadline);
    stats_.staging_bytes = (communicators_.inner ? communicators_.inner->staging_bytes() : 0) +
                           (communicators_.cross ? communicators_.cross->staging_bytes() : 0) +
                           (options_.direct_from > 0 ? work_.bytes() : 0);
    if (call.met_nonfinite) {
      const Failure met{FailureKind::kNonFinite,
                        "a NaN or Inf was met on this or another rank (nonfinite='raise')", rank_,
                        title().call};
      throw_failure(met, text_of(met));
    }
  } catch (const NonFiniteError&) {
    throw;
  } catch (const std::exception& e) {
    // The cause is kept, and the operation is noted; the communicators tell the peers the same.
    Failure failure = failure_of(e);
    if (failure.rank < 0) {
      if (errand != nullptr) failure.text = "while the autotuner measured: " + failure.text;
      failure.rank = rank_;
      failure.call = title().call;
    }
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
  if (communicators_.inner) communicators_.inner->abort(cause);
  if (communicators_.cross) communicators_.cross->abort(cause);
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
  communicators_.inner.reset();
  communicators_.cross.reset();
}

std::optional<Failure> Engine::failure() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return known_failure();
}

std::optional<Failure> Engine::known_failure() {
  if (broken_) return broken_;
  for (Communicator* comm : {communicators_.inner.get(), communicators_.cross.get()}) {
    if (comm == nullptr) continue;
    // Not kept: a run() that is under way will tell more.
    if (auto known = comm->failure()) return known;
  }
  return std::nullopt;
}

std::optional<Failure> Engine::first_cause() {
  std::unique_lock<std::mutex> lock(state_mutex_);
  if (!broken_ && running_ && known_failure()) {
    explained_.wait_for(lock, kExplains, [this] { return broken_ || !running_; });
  }
  return known_failure();
}

std::optional<PeerFingerprint> Engine::compare_call(const Fingerprint& note) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  for (Communicator* comm : {communicators_.inner.get(), communicators_.cross.get()}) {
    if (comm == nullptr) continue;
    if (auto other = comm->compare_call(note)) return other;
  }
  return std::nullopt;
}

void Engine::forget_call(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (communicators_.inner) communicators_.inner->forget_call(number);
  if (communicators_.cross) communicators_.cross->forget_call(number);
}

void Engine::finish_call(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (communicators_.inner) communicators_.inner->finish_call(number);
  if (communicators_.cross) communicators_.cross->finish_call(number);
}

Engine::Sight Engine::sight_of_ends() {
  std::lock_guard<std::mutex> lock(state_mutex_);
  int communicators = 0, seeing = 0;
  for (Communicator* comm : {communicators_.inner.get(), communicators_.cross.get()}) {
    if (comm == nullptr) continue;
    ++communicators;
    seeing += comm->sees_ended() ? 1 : 0;
  }
  // A rank may have no communicator to those that are not on its host.
  const bool all = communicators == seeing && topology().host_count() == 1;
  return seeing == 0 ? Sight::kNone : all ? Sight::kAll : Sight::kSome;
}

std::vector<int> Engine::ended_peers(uint64_t number) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  std::vector<int> ended;
  for (Communicator* comm : {communicators_.inner.get(), communicators_.cross.get()}) {
    if (comm == nullptr) continue;
    for (int peer : comm->ended_peers(number)) ended.push_back(peer);
  }
  return ended;
}

}  // namespace cgx
