#include "reduce/tuning/autotuner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/failure.h"

namespace cgx {
namespace {

// A script whose messages are ever different must not grow the tables for ever.
constexpr size_t kMaxKnown = 512, kMaxClasses = 256;

// 4 log2(bytes), rounded down as the mantissa's two leading bits are.
int quarter_octaves(size_t bytes) {
  if (bytes < 4) return 0;
  int exponent = 2;
  while ((bytes >> exponent) > 1) ++exponent;
  return 4 * exponent + static_cast<int>(bytes >> (exponent - 2) & 3);
}

std::string text_of(const Seconds& seconds) {
  std::string text;
  for (Decision decision : kAllDecisions) {
    const double one = seconds[static_cast<size_t>(decision)];
    if (one < 0) continue;
    text += str_of(text.empty() ? "" : ", ", name_of(decision), " ", one * 1e3, " ms");
  }
  return text;
}

}  // namespace

Autotuner::Autotuner(Engine& engine, std::shared_ptr<const Codec> half, Log log)
    : engine_(engine),
      half_(std::move(half)),
      log_(std::move(log)),
      ranks_(engine, overhead_),
      clock_(engine.size(), engine.topology().host_count() == 1) {}

std::shared_ptr<const Codec> Autotuner::codec_of(const Plan& plan) const {
  const Layer* first = plan.first_compressed();
  return first != nullptr ? first->codec : raw_codec();
}

std::shared_ptr<const Plan> Autotuner::plan_as(const Plan& asked,
                                               const std::shared_ptr<const Codec>& codec) {
  if (asked.operation != Operation::kAllReduce) {
    return engine_.plan_shards(asked.operation, asked.layers.front().count, codec, asked.dtype);
  }
  std::vector<Layer> layers = asked.layers;
  for (Layer& layer : layers) {
    const bool raise =
        layer.codec != raw_codec() && (codec == raw_codec() || layer.codec->bits() < codec->bits());
    if (raise) layer.codec = codec;
  }
  return engine_.plan_all_reduce(layers, asked.dtype);
}

Autotuner::Plans Autotuner::plans_for(const std::shared_ptr<const Plan>& asked) {
  Plans plans;
  plans[static_cast<size_t>(Decision::kAsked)] = asked;
  plans[static_cast<size_t>(Decision::kExact)] = plan_as(*asked, raw_codec());
  // 16 bits of a type of 16 bits are no fewer than all of them.
  if (half_ && asked->dtype == DType::kFloat32 && codec_of(*asked)->bits() < half_->bits()) {
    plans[static_cast<size_t>(Decision::kHalf)] = plan_as(*asked, half_);
  }
  return plans;
}

Autotuner::Known& Autotuner::known(const std::shared_ptr<const Plan>& asked) {
  const auto found = known_.find(asked.get());
  if (found != known_.end()) return found->second;
  // Which classes there are must not depend on known_, which goes by address.
  const size_t bytes = asked->values * size_of(asked->dtype);
  const std::shared_ptr<const Codec> codec = codec_of(*asked);
  Plans plans = plans_for(asked);
  Available available;
  std::transform(plans.begin(), plans.end(), available.begin(),
                 [](const auto& plan) { return plan != nullptr; });
  const ClassKey key{asked->operation, asked->dtype, quarter_octaves(bytes),
                     quarter_octaves(one_shot_payload_bytes(asked->layers, asked->dtype)),
                     codec->describe()};
  if (!classes_.contains(key)) {
    if (classes_.size() >= kMaxClasses) {
      std::lock_guard<std::mutex> lock(mutex_);
      known_.clear();
      classes_.clear();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    classes_.emplace(key, Class{TunedClass(available), bytes, codec->describe()});
  }
  Known one{asked, std::move(plans), &classes_.at(key).tuned};
  if (known_.size() >= kMaxKnown) known_.clear();
  return known_.emplace(asked.get(), std::move(one)).first->second;
}

int64_t Autotuner::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

void Autotuner::meet(const Deadline& deadline, uint64_t number) {
  ranks_.barrier(deadline, number);  // all ranks begin together
  Span mine{now(), 0};
  ranks_.barrier(deadline, number);
  mine.end = now();
  std::vector<Span> by_rank;
  for (std::vector<Span>& theirs : ranks_.gather_spans({mine}, deadline, number)) {
    by_rank.push_back(theirs.front());
  }
  clock_.meet(by_rank);
}

void Autotuner::renew(TunedClass& tuned, const Deadline& deadline, uint64_t number) {
  if (!clock_.one_clock()) meet(deadline, number);
  const auto by_rank = ranks_.gather_spans(tuned.spans(), deadline, number);
  std::vector<double> seconds;
  for (size_t sample = 0; sample < tuned.spans().size(); ++sample) {
    std::vector<Span> call;
    for (const auto& theirs : by_rank) call.push_back(theirs[sample]);
    seconds.push_back(clock_.seconds(call));
  }
  const Decision before = tuned.decision();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tuned.renew(seconds);
  }
  if (log_ && tuned.decision() != before) {
    log_(str_of("autotune: from ", name_of(before), " to ", name_of(tuned.decision()),
                "; measured ", text_of(tuned.measured())));
  }
}

Autotuner::TunedPlan Autotuner::decide(const std::shared_ptr<const Plan>& asked,
                                       const Deadline& deadline, uint64_t number) {
  if (engine_.size() == 1 || !asked->compressed || asked->values == 0) return {asked};
  try {
    return choose(asked, deadline, number);
  } catch (const std::exception& e) {
    // Errors of the engine have broken the group already; any other has to reach the peers, too.
    if (!engine_.failure()) engine_.fail(failure_of(e));
    throw;
  }
}

Autotuner::TunedPlan Autotuner::choose(const std::shared_ptr<const Plan>& asked,
                                       const Deadline& deadline, uint64_t number) {
  if (!clock_.one_clock() && !clock_.has_met()) {
    const StageTimer timer(tuning_ns_, "cgx:autotune");
    meet(deadline, number);
  }
  Known& message = known(asked);
  TunedClass& tuned = *message.tuned;
  if (tuned.due()) {
    const StageTimer timer(tuning_ns_, "cgx:autotune");
    renew(tuned, deadline, number);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const TunedClass::Turn turn = tuned.next();
  return {message.plans[static_cast<size_t>(turn.decision)], turn, &tuned};
}

void Autotuner::ran(const TunedPlan& tuned, const Span& span) {
  if (tuned.tuned_class == nullptr) return;
  calls_[static_cast<size_t>(tuned.turn.decision)].fetch_add(1, std::memory_order_relaxed);
  if (!tuned.turn.timed()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  tuned.tuned_class->record(tuned.turn.sample, span);
}

std::string Autotuner::why(const TunedPlan& tuned) const {
  if (tuned.tuned_class == nullptr) return "";
  std::lock_guard<std::mutex> lock(mutex_);
  return str_of("autotune: ", name_of(tuned.turn.decision),
                tuned.turn.decision != tuned.tuned_class->decision() ? " on trial" : "",
                ", measured ", text_of(tuned.tuned_class->measured()));
}

std::vector<TuningRow> Autotuner::report() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TuningRow> rows;
  for (const auto& [key, one] : classes_) {
    rows.push_back({std::get<Operation>(key), std::get<DType>(key), one.bytes, one.codec,
                    one.tuned.measured(), one.tuned.decision(), one.tuned.calls(),
                    one.tuned.renewals()});
  }
  return rows;
}

std::array<uint64_t, kDecisions> Autotuner::calls() const {
  std::array<uint64_t, kDecisions> counts{};
  for (size_t i = 0; i < kDecisions; ++i) counts[i] = calls_[i];
  return counts;
}

double Autotuner::seconds() const { return static_cast<double>(tuning_ns_) * 1e-9; }

void Autotuner::reset_counters() {
  for (auto& count : calls_) count = 0;
  tuning_ns_ = 0;
  overhead_.reset();
}

}  // namespace cgx
