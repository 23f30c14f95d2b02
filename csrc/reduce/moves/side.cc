#include "reduce/moves/side.h"

#include <algorithm>
#include <cstring>

#include "reduce/schedule/stages.h"

namespace cgx {
namespace {

// Lane of direct transfers of moves.
constexpr int kMoveLane = 0;

// Where all ranks send at once, messages are faster for long: 512 KiB each way over 10 Gbit/s took
// 1.4 ms in messages and 3.1 ms from memory to memory, 8 MiB as long in both (measured by hand). They
// take memory, so this limits what a rank sends and receives in all.
constexpr size_t kExchangeMessages = size_t{4} << 20;

size_t direct_from(const Move& move, size_t peers) {
  if (move.plan->root >= 0 || peers == 0) return kDirectFrom;
  return std::max(kDirectFrom, kExchangeMessages / peers);
}

// A direct transfer is split into parts, of which kPartsAhead are on their way. As one part, 4 MiB each
// way over 1 Gbit/s took as long as one direction after the other.
constexpr size_t kLeastPart = size_t{512} << 10, kMostPart = size_t{1} << 20;
constexpr size_t kPartsAhead = 2;

size_t part_bytes(size_t all) {
  constexpr size_t kStep = size_t{64} << 10;
  return std::clamp((all / 8 + kStep - 1) / kStep * kStep, kLeastPart, kMostPart);
}

}  // namespace

Side::Side(Call& call, const Move& move, Communicator& comm, const std::vector<int>& members,
           bool across, bool only_across, size_t bytes)
    : call_(call),
      move_(move),
      transfers_(comm),
      members_(members),
      value_bytes_(size_of(move.plan->dtype)),
      exact_(move.codec == raw_codec()),
      direct_from_(direct_from(move, static_cast<size_t>(comm.size()) - 1)),
      channel_(call, comm, members, across) {
  directs_ = exact_ && comm.direct() && !comm.on_device() && !call.identity.checksum;
  const auto size = static_cast<size_t>(comm.size());
  out_.resize(size);
  in_.resize(size);
  bytes_.resize(size);
  // A message to all peers, unless some of them take no part.
  alike_ = move.alike && !only_across;
  const size_t copies = alike_ ? 1 : std::max<size_t>(size - 1, 1);
  segment_ = segment_values(*move.codec, move.plan->dtype, bytes / copies);
  make_room(call, comm, copies,
            std::max(move.codec->encoded_bytes(segment_, move.plan->dtype), kNoticeBytes));
  for (int peer : channel_.peers()) {
    const int rank = members_[static_cast<size_t>(peer)];
    const bool here = call.topology.host_of(rank) == call.topology.host_of(call.identity.rank);
    if (only_across && here) continue;
    const auto at = static_cast<size_t>(peer);
    out_[at] = flow_of(move.gives[static_cast<size_t>(rank)]);
    in_[at] = flow_of(move.gets[static_cast<size_t>(rank)]);
    if (out_[at].rounds > 0) targets_.push_back(peer);
    rounds_ = std::max({rounds_, out_[at].rounds, in_[at].rounds});
  }
  for (int peer : channel_.sources()) {
    if (in_[static_cast<size_t>(peer)].rounds > 0) sources_.push_back(peer);
  }
  if (alike_ && targets_.size() != channel_.peers().size()) alike_ = false;  // nothing to give
}

Side::Flow Side::flow_of(const std::optional<Piece>& piece) const {
  Flow flow;
  if (!piece) return flow;
  flow.piece = *piece;
  flow.direct = directs_ && flow.piece.values * value_bytes_ >= direct_from_;
  flow.notice = flow.direct || flow.piece.values == 0;
  flow.rounds = flow.notice ? 1 : (flow.piece.values + segment_ - 1) / segment_;
  // Messages are about as long as each other, and no longer than segment_: none is empty.
  const size_t granule = move_.codec->granule();
  const size_t even = (flow.piece.values + flow.rounds - 1) / flow.rounds;
  flow.segment = std::max((even + granule - 1) / granule, size_t{1}) * granule;
  return flow;
}

size_t Side::count(const Flow& flow, size_t round) const {
  if (round >= flow.rounds) return 0;
  return std::min(flow.segment, flow.piece.values - round * flow.segment);
}

size_t Side::payload(const Flow& flow, size_t round) const {
  if (flow.notice) return round == 0 ? kNoticeBytes : 0;
  const size_t values = count(flow, round);
  if (values == 0) return 0;
  return exact_ ? values * value_bytes_ : move_.codec->encoded_bytes(values, move_.plan->dtype);
}

std::byte* Side::at(const Flow& flow, size_t round) const {
  return flow.piece.data + round * flow.segment * value_bytes_;
}

void Side::begin() {
  std::vector<uint64_t> sent(out_.size()), received(in_.size());
  for (int p : channel_.peers()) {
    sent[static_cast<size_t>(p)] = out_[static_cast<size_t>(p)].piece.values;
    received[static_cast<size_t>(p)] = in_[static_cast<size_t>(p)].piece.values;
  }
  channel_.compare_values(std::move(sent), std::move(received));
  for (size_t round = 0; round < rounds_; ++round) {
    for (int p : sources_) {
      const size_t bytes = payload(in_[static_cast<size_t>(p)], round);
      if (bytes > 0) channel_.will_receive(p, bytes, round == 0);
    }
  }
  channel_.begin();
}

void Side::write(const Flow& flow, size_t round, std::byte* message) {
  if (flow.notice) {
    if (!call_.stages.on_device()) std::memset(message, 0, kNoticeBytes);
    return;
  }
  const size_t values = count(flow, round);
  if (exact_) {
    StageTimer timer(call_.stats.encode_ns, "cgx:encode");
    call_.stages.copy(message, at(flow, round), values * value_bytes_);
    return;
  }
  const size_t first = flow.piece.first + round * flow.segment;
  const View view{at(flow, round), first, move_.plan->dtype, false, true};
  call_.stages.encode_chunk(call_, chunk_of(*move_.codec, move_.plan->dtype, first, values), view,
                            Stage::kContribution, message, /*final=*/true);
}

void Side::send(size_t round) {
  if (alike_) {
    const Flow& flow = out_[static_cast<size_t>(targets_.front())];
    const size_t bytes = payload(flow, round);
    if (bytes == 0) return;
    write(flow, round, channel_.open_broadcast(bytes));
    channel_.post(round);
  } else {
    bool any = false;
    for (int p : targets_) {
      const auto to = static_cast<size_t>(p);
      bytes_[to] = payload(out_[to], round);
      any = any || bytes_[to] > 0;
    }
    if (!any) return;
    const std::vector<std::byte*>& messages = channel_.open(bytes_);
    for (int p : targets_) {
      const auto to = static_cast<size_t>(p);
      if (bytes_[to] > 0) write(out_[to], round, messages[to]);
    }
    channel_.post(round);
  }
  if (round > 0) return;
  for (int p : targets_) {
    const Flow& flow = out_[static_cast<size_t>(p)];
    if (flow.direct) queue_send(p, flow);
  }
  if (queued_.empty()) return;
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  while (sending_.size() < kPartsAhead && !queued_.empty()) start_next_send();
}

void Side::receive(size_t round) {
  for (int p : sources_) {
    const Flow& flow = in_[static_cast<size_t>(p)];
    if (payload(flow, round) == 0) continue;
    const std::byte* message = channel_.receive(p, round);
    if (flow.notice) {
      if (flow.direct) receive_directly(p, flow);
    } else if (exact_) {
      StageTimer timer(call_.stats.decode_ns, "cgx:decode");
      call_.stages.copy(at(flow, round), message, count(flow, round) * value_bytes_);
    } else {
      const size_t first = flow.piece.first + round * flow.segment;
      const Chunk chunk = chunk_of(*move_.codec, move_.plan->dtype, first, count(flow, round));
      call_.stages.decode_chunk(call_, chunk, message, {at(flow, round), first, move_.plan->dtype});
    }
    channel_.release(p);
  }
}

void Side::queue_send(int peer, const Flow& flow) {
  const size_t all = flow.piece.values * value_bytes_;
  const size_t part = part_bytes(all);
  for (size_t done = 0; done < all; done += part) {
    queued_.push_back({peer, flow.piece.data + done, std::min(part, all - done)});
  }
}

void Side::start_next_send() {
  const Outgoing next = queued_.front();
  queued_.pop_front();
  sending_.push_back(
      {next.peer, transfers_.send_from(next.peer, kMoveLane, next.data, next.bytes)});
  channel_.count_direct(next.bytes, 0);
}

void Side::receive_directly(int peer, const Flow& flow) {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  const size_t all = flow.piece.values * value_bytes_;
  const size_t part = part_bytes(all);
  for (size_t done = 0; done < all; done += part) {
    const size_t bytes = std::min(part, all - done);
    receiving_.push_back(
        {peer, transfers_.receive_into(peer, kMoveLane, flow.piece.data + done, bytes, bytes)});
    channel_.count_direct(0, bytes);
  }
}

void Side::wait_for(Transfer& transfer) {
  transfers_.finish(*transfer.pending, transfer.peer, call_.deadline);
}

void Side::finish() {
  StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
  while (!sending_.empty()) {
    wait_for(sending_.front());
    sending_.pop_front();
    if (!queued_.empty()) start_next_send();
  }
  for (Transfer& transfer : receiving_) wait_for(transfer);
  receiving_.clear();
}

}  // namespace cgx
