// How soon a collective is given up after a peer's process has ended, and that it is for that only.
#include <chrono>

#include "backend/health/call_patience.h"
#include "check.h"

namespace cgx::native {
namespace {

using std::chrono::milliseconds;
using Clock = CallPatience::Clock;

constexpr milliseconds kPeriod{100};  // of the looks
const Clock::time_point kStart{std::chrono::hours(1)};

struct Call {
  bool engine;
  milliseconds ends;         // of a peer's process, after kStart
  milliseconds moves_until;  // bytes move until then

  // After kStart; 0: not within 20 s.
  milliseconds given_up(milliseconds first_look) const {
    CallPatience patience;
    for (milliseconds at = first_look; at < milliseconds(20000); at += kPeriod) {
      patience.look(kStart + at, at < moves_until ? static_cast<uint64_t>(at.count()) + 1 : 1);
      if (patience.exhausted(kStart + at, at >= ends, engine)) return at;
    }
    return milliseconds(0);
  }
};

TEST(a_dead_peer_ends_a_call_in_half_a_second) {
  for (int phase = 0; phase < 100; phase += 7) {
    const milliseconds look(phase);
    for (bool engine : {true, false}) {
      const Call call{engine, milliseconds(5050), milliseconds(0)};
      const milliseconds time = call.given_up(look) - call.ends;
      CHECK(time >= CallPatience::kAfterPeerEnded && time <= milliseconds(500), time.count());
    }
  }
}

TEST(a_call_whose_bytes_move_outlives_a_dead_peer) {
  const Call moving{true, milliseconds(1000), milliseconds(9000)};
  const milliseconds time = moving.given_up(milliseconds(0));
  CHECK(time >= milliseconds(9000) && time <= milliseconds(9500), time.count());
  // What the inner backend carries is not counted: it has only the time after the end.
  const Call forwarded{false, milliseconds(1000), milliseconds(9000)};
  CHECK(forwarded.given_up(milliseconds(0)) <= milliseconds(1500));
}

TEST(a_silent_peer_that_lives_ends_no_call) {
  for (bool engine : {true, false}) {
    const Call call{engine, milliseconds(30000), milliseconds(0)};
    CHECK(call.given_up(milliseconds(0)) == milliseconds(0));
  }
}

TEST(a_peer_of_an_earlier_call_counts_anew_for_the_next_one) {
  CallPatience patience;
  CHECK(!patience.exhausted(kStart, true, false));
  patience.rest();
  CHECK(!patience.exhausted(kStart + milliseconds(1000), true, false));
  CHECK(!patience.exhausted(kStart + milliseconds(1100), false, false));
  CHECK(!patience.exhausted(kStart + milliseconds(1300), true, false));
  CHECK(patience.exhausted(kStart + milliseconds(1600), true, false));
}

}  // namespace
}  // namespace cgx::native
