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

// The first rank of the host waits for the others, meets those of the other hosts, and tells.
void meet_on_two_levels(Call& call) {
  const Topology& topology = call.topology;
  const std::vector<int>& members = topology.host(topology.host_of(call.identity.rank));
  const bool first = members.front() == call.identity.rank;
  std::optional<Channel> inside;
  if (call.links.intra != nullptr) {
    inside.emplace(call, *call.links.intra, members, false);
    if (first) {
      for (int p : inside->peers()) inside->will_receive(p, kSign, true);
    } else {
      inside->will_receive(0, kSign, false);
    }
    inside->begin();
  }
  if (!first) {
    std::vector<size_t> bytes(members.size(), 0);
    bytes[0] = kSign;
    std::byte* sign = inside->open(bytes)[0];
    if (!call.stages.on_device()) std::memset(sign, 0, kSign);
    inside->post(0);
    hear(*inside, 0, 1);
    return;
  }
  if (inside) {
    for (int p : inside->sources()) hear(*inside, p, 0);
  }
  meet(call, *call.links.cross, topology.team(0), true);
  if (inside) tell(call, *inside, 1);
}

}  // namespace

void barrier(Call& call) {
  if (call.plan.size == 1) return;
  if (call.plan.two_levels) return meet_on_two_levels(call);
  meet(call, call.links.only(), numbers(call.plan.size), call.topology.host_count() > 1);
}

}  // namespace cgx
