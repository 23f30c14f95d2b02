// Check that the ranks of a group are about to run the same plan, for messages without headers.
// Ranks of one host compare plans and steps at each call; ranks of several hosts compare each new
// plan once, and steps where they begin or do not follow each other.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "backend/group_context.h"
#include "backend/work/call_record.h"
#include "base/deadline.h"

namespace cgx {

class PlanAgreement {
 public:
  /// Both outlive this object. `host`: the engine whose failure ends the waits for peers.
  PlanAgreement(const GroupContext& group, Engine& host) : group_(group), host_(host) {}

  /// Before a call over such messages: MismatchError unless all ranks have the same plan.
  void agree(const CallRecord& record, const Deadline& deadline) {
    if (record.shape.plan != 0 && !group_.on_one_host) agree_across_hosts(record, deadline);
  }

 private:
  void agree_across_hosts(const CallRecord& record, const Deadline& deadline);
  /// Empty, or how ranks differ.
  std::string compare(const Fingerprint& mine, const std::string& text, const Deadline& deadline);

  /// The step is the first of its counter, or does not follow the last one. With the lock held.
  bool jumps(const std::optional<StepKey>& key);

  const GroupContext& group_;
  Engine& host_;
  std::mutex mutex_;  // guards the next
  std::unordered_set<std::string> agreed_;
  std::unordered_map<uint64_t, uint64_t> steps_;  // the last, by counter
};

}  // namespace cgx
