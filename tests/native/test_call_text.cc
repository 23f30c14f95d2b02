// The first line of an error is the reader's own call; what follows is the cause.
#include "check.h"
#include "reduce/plan/call_text.h"

namespace cgx::native {
namespace {

const CallTitle kTitle{{"all_reduce", 7}, "tp", 1, 3};

std::string of(const Failure& failure) { return error_text(kTitle, failure, "shm", 0.257); }

}  // namespace

TEST(call_text_of_waits_has_communicator_and_seconds) {
  const Failure own{FailureKind::kPeerLost, "the process of rank 2 has ended", 1, kTitle.call};
  CHECK(
      of(own) ==
          "cgx: all_reduce number 7 of group 'tp', rank 1 of 3 (shm, 0.26 s): the process of rank "
          "2 has ended",
      of(own));
}

TEST(call_text_names_the_rank_that_failed_once) {
  const Failure mute{FailureKind::kResource, "no memory", 2, kTitle.call};
  CHECK(contains(of(mute), "s): rank 2 failed: no memory"), of(mute));
  const Failure own{FailureKind::kResource, "no memory", 1, kTitle.call};
  CHECK(contains(of(own), "s): no memory"), of(own));
  const Failure named{FailureKind::kTimeout, "rank 2 waited 1 s for rank 0", 2, kTitle.call};
  CHECK(contains(of(named), "s): rank 2 waited"), of(named));
}

TEST(call_text_of_a_timeout_names_its_limit_once) {
  const Failure late{FailureKind::kTimeout, "rank 1 waited 2 s for rank 0", 1, kTitle.call};
  const std::string text = of(late);
  CHECK(
      text.ends_with("timeout= of init_process_group(), new_group() or the call raises the limit"),
      text);
  CHECK(with_limit(text) == text, with_limit(text));
  const Failure own{FailureKind::kTimeout, "wait(timeout=...) of 5 ms; it goes on", 1, kTitle.call};
  CHECK(of(own).ends_with("it goes on"), of(own));
  const Failure lost{FailureKind::kPeerLost, "gone", 1, kTitle.call};
  CHECK(!contains(of(lost), "timeout="), of(lost));
}

TEST(call_text_tells_of_an_earlier_call) {
  const std::string after = "after a failure in broadcast number 6: ";
  const Failure before{FailureKind::kMismatch, "ranks disagree", 0, {"broadcast", 6}};
  CHECK(of(before) ==
            "cgx: all_reduce number 7 of group 'tp', rank 1 of 3: " + after + "ranks disagree",
        of(before));
  // Ranks that disagree on number 7 call it by different names.
  const Failure same{FailureKind::kMismatch, "ranks disagree", 0, {"broadcast", 7}};
  CHECK(!contains(of(same), "after"), of(same));
  // Sends and receives have numbers of their own.
  const Failure other{FailureKind::kPeerLost, "rank 0: gone", 0, {"recv", 7}};
  CHECK(contains(of(other), "after a failure in recv number 7: rank 0: gone"), of(other));
}

TEST(call_text_of_a_disagreement) {
  const std::string sum = "all_reduce SUM of 1 float32 value, exact";
  const CallSide one{2, sum, {", buckets of 64", ", ring"}, 0xabc};
  CallSide other{0, sum, {", buckets of 64", ", one-shot"}, 0xdef};
  const std::string both = disagreement(one, other, false);
  CHECK(both == "ranks disagree on the collective:\n  rank 0 runs " + sum +
                    ", one-shot\n  rank 2 runs " + sum + ", ring",
        both);
  CHECK(disagreement(other, one, false) == both);
  other.details = one.details;
  const std::string hidden = disagreement(one, other, false);
  CHECK(contains(hidden, "ranks disagree on the layers") && !contains(hidden, "abc"), hidden);
  const std::string hashes = disagreement(one, other, true);
  CHECK(contains(hashes, ", plan def\n") && contains(hashes, ", plan abc"), hashes);
}

}  // namespace cgx::native
