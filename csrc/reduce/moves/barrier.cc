#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "reduce/moves/moves.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/stages.h"

namespace cgx {
namespace {

// Payload of a message of a barrier: it says nothing but that the sender is there.
constexpr size_t kSign = 8;

std::vector<int> numbers(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void tell(Call& call, Channel& channel, size_t round) {
  std::byte* sign = channel.open_broadcast(kSign);
  if (!call.stages.on_device()) std::memset(sign, 0, kSign);
  channel.post(round);
}

void hear(Channel& channel, int peer, size_t round) {
  channel.receive(peer, round);
  channel.release(peer);
}

// All ranks of a communicator, at once.
void meet(Call& call, Communicator& comm, std::vector<int> members, bool across) {
  Channel channel(call, comm, std::move(members), across);
  for (int p : channel.peers()) channel.will_receive(p, kSign, true);
  channel.begin();
  tell(call, channel, 0);
  for (int p : channel.sources()) hear(channel, p, 0);
}

// The first rank of a communicator waits for the others, and tells them when all are there.
class Star {
 public:
  Star(Call& call, Communicator& comm, std::vector<int> members, bool across)
      : call_(call), channel_(call, comm, std::move(members), across) {
    if (first()) {
      for (int p : channel_.peers()) channel_.will_receive(p, kSign, true);
    } else {
      channel_.will_receive(0, kSign, false);
    }
    channel_.begin();
  }

  bool first() const { return channel_.rank() == 0; }

  void gather() {
    if (first()) {
      for (int p : channel_.sources()) hear(channel_, p, 0);
      return;
    }
    std::vector<size_t> bytes(static_cast<size_t>(channel_.size()), 0);
    bytes[0] = kSign;
    std::byte* sign = channel_.open(bytes)[0];
    if (!call_.stages.on_device()) std::memset(sign, 0, kSign);
    channel_.post(0);
  }

  void release() {
    if (first()) {
      tell(call_, channel_, 1);
    } else {
      hear(channel_, 0, 1);
    }
  }

 private:
  Call& call_;
  Channel channel_;
};

// Between hosts each message costs more than a step: 2 (n - 1) messages in two steps instead of
// n (n - 1) in one.
void meet_across(Call& call, Communicator& comm, std::vector<int> members) {
  if (comm.size() == 2) return meet(call, comm, std::move(members), true);
  Star star(call, comm, std::move(members), true);
  star.gather();
  star.release();
}

// The first ranks of the hosts meet once all ranks of their hosts are there.
void meet_on_two_levels(Call& call) {
  const Topology& topology = call.topology;
  const std::vector<int>& members = topology.host(topology.host_of(call.identity.rank));
  std::optional<Star> inside;
  if (call.links.intra != nullptr) {
    inside.emplace(call, *call.links.intra, members, false);
    inside->gather();
  }
  if (members.front() == call.identity.rank) {
    meet_across(call, *call.links.cross, topology.team(0));
  }
  if (inside) inside->release();
}

}  // namespace

void barrier(Call& call) {
  if (call.plan.size == 1) return;
  if (call.plan.two_levels) return meet_on_two_levels(call);
  if (call.topology.host_count() > 1) {
    return meet_across(call, call.links.only(), numbers(call.plan.size));
  }
  meet(call, call.links.only(), numbers(call.plan.size), false);
}

}  // namespace cgx
