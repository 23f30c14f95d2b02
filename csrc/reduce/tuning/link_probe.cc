#include "reduce/tuning/link_probe.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

constexpr size_t kSmallValues = 256;
// Sizes of the exact probe: each is kGrowth times the one before.
constexpr size_t kGrowth = 4, kFirstValues = 1024, kLastValues = size_t{1} << 20;
constexpr double kLongestProbe = 0.03;
// A small exchange that takes no longer than this is measured twice as often.
constexpr double kSlowExchange = 0.005;

}  // namespace

double wall_seconds(const Plan& plan, const std::function<void()>& run) {
  (void)plan;
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

LinkProbe::LinkProbe(Engine& engine, Stats& overhead, Stopwatch stopwatch)
    : engine_(engine),
      overhead_(overhead),
      ranks_(engine, overhead),
      stopwatch_(std::move(stopwatch)) {}

std::shared_ptr<const Plan> LinkProbe::plan_of(size_t values,
                                               const std::shared_ptr<const Codec>& codec) {
  return engine_.plan_all_reduce({{values, codec}}, DType::kFloat32);
}

bool LinkProbe::fits(size_t values, const std::shared_ptr<const Codec>& codec) {
  try {
    plan_of(values, codec);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

double LinkProbe::run(const Plan& plan, const Deadline& deadline, uint64_t number) {
  ranks_.barrier(deadline, number);
  return stopwatch_(plan, [&] {
    engine_.run(plan, buffer_.data(), buffer_.data(), /*average=*/true, deadline, number,
                &overhead_);
  });
}

double LinkProbe::least_of(const Plan& plan, int samples, const Deadline& deadline,
                           uint64_t number) {
  std::vector<float> mine;
  for (int i = 0; i < samples; ++i) {
    mine.push_back(static_cast<float>(run(plan, deadline, number)));
  }
  const std::vector<float> slowest = ranks_.largest(mine, deadline, number);
  return *std::min_element(slowest.begin(), slowest.end());
}

LinkProbes LinkProbe::measure(const std::shared_ptr<const Codec>& asked, const Deadline& deadline,
                              uint64_t number) {
  buffer_.assign(kLastValues, 1.0F);
  // The first run of a plan is not counted: it makes connections, buffers and pages.
  const auto probe = [&](const Plan& plan, int samples) {
    run(plan, deadline, number);
    return least_of(plan, samples, deadline, number);
  };
  const auto again = [&](const Plan& plan, int samples, double before) {
    return std::min(before, least_of(plan, samples, deadline, number));
  };
  LinkProbes probes;
  const auto small = plan_of(kSmallValues, raw_codec());
  probes.small = cost_of(*small, engine_.topology());
  probes.small_seconds = probe(*small, kSamples);
  if (probes.small_seconds <= kSlowExchange) {
    probes.small_seconds = again(*small, kSamples, probes.small_seconds);
  }
  // A single sample is enough to go on to the next size, but not to stop at this one.
  size_t values = kFirstValues;
  for (;; values *= kGrowth) {
    const auto exact = plan_of(values, raw_codec());
    const bool last = values >= kLastValues || !fits(values * kGrowth, asked);
    const auto stops = [&] {
      return last || static_cast<double>(kGrowth) * probes.exact_seconds > kLongestProbe;
    };
    probes.exact_seconds = probe(*exact, 1);
    if (!stops()) continue;
    probes.exact_seconds = again(*exact, kSamples - 1, probes.exact_seconds);
    if (!stops()) continue;
    probes.exact = cost_of(*exact, engine_.topology());
    break;
  }
  const auto compressed = plan_of(values, asked);
  probes.asked_seconds = probe(*compressed, kSamples);
  probes.asked = cost_of(*compressed, engine_.topology());
  buffer_ = {};
  return probes;
}

}  // namespace cgx
