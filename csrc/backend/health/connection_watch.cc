#include "backend/health/connection_watch.h"

#include <algorithm>

namespace cgx {
namespace {

// A message from any rank may be meant to come from the one that is lost.
bool may_need(const CallRecord& call, int peer) {
  return !call.shape.point_to_point() || call.shape.op == c10d::OpType::RECVANYSOURCE ||
         call.shape.root == peer;
}

bool runs_on_gloo(const CallRecord& call) {
  return !call.shape.engine && !call.over() && call.state() != CallRecord::State::kScheduled;
}

}  // namespace

std::optional<ConnectionWatch::Lost> ConnectionWatch::look(
    const std::vector<CallRecordPtr>& calls, int rank, int size,
    const std::function<std::string(int)>& broken, Clock::time_point now) {
  std::optional<Lost> lost;
  bool any = false;
  for (int peer = 0; peer < size && !lost; ++peer) {
    if (peer == rank) continue;
    const auto call = std::find_if(calls.begin(), calls.end(), [peer](const CallRecordPtr& one) {
      return runs_on_gloo(*one) && may_need(*one, peer);
    });
    if (call == calls.end()) continue;
    any = true;
    const std::string why = broken(peer);
    if (why.empty()) continue;
    auto known = std::find_if(peers_.begin(), peers_.end(),
                              [peer](const Peer& one) { return one.rank == peer; });
    if (known == peers_.end()) known = peers_.insert(known, {peer, now, false});
    if (!known->left && now - known->since >= kPatience) lost = Lost{peer, why, *call};
  }
  if (!any) rest();
  return lost;
}

std::vector<int> ConnectionWatch::in_question() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (!peer.left) ranks.push_back(peer.rank);
  }
  return ranks;
}

void ConnectionWatch::left(int peer) {
  for (Peer& one : peers_) one.left = one.left || one.rank == peer;
}

}  // namespace cgx
