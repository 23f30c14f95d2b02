#include "reduce/schedule/two_levels.h"

namespace cgx {

TwoLevels::TwoLevels(Call& call)
    : host(call.topology.host_of(call.identity.rank)),
      local(call.topology.local_of(call.identity.rank)),
      member(call.topology.in_team(call.identity.rank)),
      hosts(static_cast<size_t>(call.topology.host_count())),
      call_(call) {
  const std::vector<int>& ranks = call.topology.host(host);
  for (int p = 0; p < static_cast<int>(ranks.size()); ++p) {
    if (p == local) continue;
    locals.push_back(p);
    if (p < call.topology.teams()) other_members.push_back(p);
  }
  if (ranks.size() > 1) intra.emplace(call, *call.links.intra, ranks, false);
  if (member) cross.emplace(call, *call.links.cross, call.topology.team(local), true);
}

void TwoLevels::begin() {
  if (intra) intra->begin();
  if (cross) cross->begin();
}

void TwoLevels::announce_scatter(size_t number) {
  if (!intra || !member) return;
  for (int p : locals)
    intra->will_receive(p, shard(number, local).intra.payload_bytes, number == 0);
}

void TwoLevels::scatter_inside(size_t number, const View& input, const View& partial) {
  if (!intra) return;
  bytes_.assign(static_cast<size_t>(intra->size()), 0);
  for (int team : other_members) {
    bytes_[static_cast<size_t>(team)] = shard(number, team).intra.payload_bytes;
  }
  const std::vector<std::byte*>& messages = intra->open(bytes_);
  outgoing_.clear();
  for (int team : other_members) {
    std::byte* message = messages[static_cast<size_t>(team)];
    if (message != nullptr) outgoing_.push_back({&shard(number, team).intra, message});
  }
  call_.stages.encode(call_, outgoing_, input, Stage::kIntra);
  intra->post(number);
  if (!member || shard(number, local).intra.empty()) return;
  payloads_.assign(static_cast<size_t>(intra->size()), nullptr);  // nullptr: own values
  for (int p : locals) payloads_[static_cast<size_t>(p)] = intra->receive(p, number);
  call_.stages.sum(call_, shard(number, local).intra,
                   {payloads_, input, partial, nullptr, 1.0F, /*final=*/false});
  for (int p : locals) intra->release(p);
}

}  // namespace cgx
