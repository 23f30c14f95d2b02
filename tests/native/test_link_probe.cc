// Measuring the link of a group: a made-up stopwatch gives the times of a known link.
#include "check.h"
#include "groups.h"
#include "maxmin_codec.h"
#include "reduce/tuning/link_probe.h"

namespace cgx::native {
namespace {

// 20 Mbit/s: probes stop growing at 16 KiB.
constexpr LinkModel kLink{1e-3, 4e-7, 1e-9};
constexpr CodecCost kRaw{1e-10, 1e-10}, kAsked{2e-9, 2e-9};

EngineGroup two_hosts() {
  return make_engines({"a", "b"}, options_of(Reduction::kAuto, 1 << 16, 1 << 14, 1 << 20),
                      CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
}

// On rank `rank` the sample of that number takes `extra` seconds more, or less; -1: none does.
struct Disturbance {
  int rank = -1;
  int sample = -1;
  double extra = 0;
};

struct Measured {
  LinkProbes probes;
  LinkModel link;
  int samples = 0;
  uint64_t bytes = 0;

  bool operator==(const Measured& other) const {
    return probes.small_seconds == other.probes.small_seconds &&
           probes.exact_seconds == other.probes.exact_seconds &&
           probes.asked_seconds == other.probes.asked_seconds &&
           probes.exact.bytes == other.probes.exact.bytes &&
           probes.asked.bytes == other.probes.asked.bytes;
  }
};

std::vector<Measured> measure(EngineGroup& group, const std::vector<Disturbance>& disturbed) {
  std::vector<Measured> all(group.size());
  run_ranks(static_cast<int>(group.size()), [&](int rank) {
    Engine& engine = *group.ranks[static_cast<size_t>(rank)];
    Measured& mine = all[static_cast<size_t>(rank)];
    const auto stopwatch = [&](const Plan& plan, const std::function<void()>& run) {
      run();
      double seconds =
          predict(kLink, cost_of(plan, engine.topology()), plan.compressed ? kAsked : kRaw, kRaw);
      for (const Disturbance& one : disturbed) {
        if (one.rank == rank && one.sample == mine.samples) seconds += one.extra;
      }
      ++mine.samples;
      return seconds;
    };
    Stats overhead;
    LinkProbe probe(engine, overhead, stopwatch);
    mine.probes = probe.measure(make_maxmin(), patience(), 0);
    mine.link = fit_link(mine.probes, kAsked, kRaw);
    mine.bytes = overhead.bytes_sent;
  });
  return all;
}

}  // namespace

TEST(autotuner_measures_the_link_it_has) {
  EngineGroup group = two_hosts();
  const std::vector<Measured> found = measure(group, {});
  CHECK(found[0] == found[1], "ranks measured different links");
  const LinkModel& link = found[0].link;
  // The bytes of the small message, 0.4 ms, count as latency.
  CHECK(link.latency > 1e-3 && link.latency < 1.5e-3, link.latency);
  CHECK(link.seconds_per_byte > 0.9 * kLink.seconds_per_byte &&
            link.seconds_per_byte < 1.1 * kLink.seconds_per_byte,
        link.seconds_per_byte);
  CHECK(found[0].probes.exact.bytes == 16384, found[0].probes.exact.bytes, " bytes");
}

TEST(autotuner_one_disturbed_sample_changes_nothing) {
  EngineGroup group = two_hosts();
  const std::vector<Measured> quiet = measure(group, {});
  for (int sample = 0; sample < quiet[0].samples; ++sample) {
    for (const double extra : {0.1, -1e-3}) {  // late in the middle of it; late to begin it
      const std::vector<Measured> found = measure(group, {{sample % 2, sample, extra}});
      CHECK(found[0] == found[1], "ranks measured different links, sample ", sample);
      CHECK(found[0] == quiet[0], "sample ", sample, " by ", extra,
            " s: ", found[0].link.seconds_per_byte, " instead of ", quiet[0].link.seconds_per_byte,
            " seconds a byte, after ", found[0].probes.exact.bytes, " bytes");
    }
  }
}

TEST(autotuner_two_of_three_disturbed_samples_change_nothing) {
  EngineGroup group = two_hosts();
  const std::vector<Measured> quiet = measure(group, {});
  for (int sample = 0; sample + 1 < quiet[0].samples; ++sample) {
    const std::vector<Measured> found = measure(group, {{0, sample, 0.1}, {1, sample + 1, 0.2}});
    CHECK(found[0] == found[1], "ranks measured different links, sample ", sample);
    CHECK(found[0] == quiet[0], "samples from ", sample, ": ", found[0].link.seconds_per_byte,
          " instead of ", quiet[0].link.seconds_per_byte, " seconds a byte");
  }
}

// Bytes are what a slow link pays with.
TEST(autotuner_measures_a_link_with_few_bytes) {
  EngineGroup group = two_hosts();
  const std::vector<Measured> quiet = measure(group, {});
  // Four times the exact message, two of the smaller one, four compressed and eight small ones,
  // and what ranks agree by; less than one exact message more.
  const double most = 4.5 * 16384 + 2 * 4096 + 4 * 2304 + 8 * 1152 + 2048;
  CHECK(static_cast<double>(quiet[0].bytes) < most, quiet[0].bytes, " bytes");
}

}  // namespace cgx::native
