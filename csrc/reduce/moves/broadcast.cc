// Broadcast: along a tree of ranks, segment by segment. A rank passes a segment on as soon as it has
// it: encoded bytes as they came.
//
//   one host       every rank reads the root's messages in shared memory
//   several hosts  one rank of each host (the root of its own, else the first) is in a tree: binomial
//                  for short values, which takes log2(hosts) steps; a chain for long ones, in which a
//                  rank sends each byte once. Inside hosts as above.
//
// Long exact values travel between hosts from tensor to tensor, where the communicator can do that.
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "reduce/moves/moves.h"
#include "reduce/moves/room.h"
#include "reduce/moves/side.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/stages.h"

namespace cgx {
namespace {

// Bytes of a segment inside a host: what one rank has written is in the cache when others read it. On
// a GPU longer ones cost fewer launches.
constexpr size_t kBroadcastSegment = size_t{256} << 10;
constexpr int kBroadcastLane = 0;
// Bytes of a segment that travels from tensor to tensor, at least and at most: each has a cost of its
// own, and each step of a chain delays the whole by one.
constexpr size_t kLeastDirect = size_t{1} << 20, kMostDirect = size_t{4} << 20;
// Each step of a chain behind the first may delay the whole by one part in so many.
constexpr size_t kSegmentsPerStep = 8;
// From here on a chain of several steps takes less time than a tree.
constexpr size_t kChainFrom = size_t{2} << 20;
// Direct receives that are posted before the one that is waited for, and sends behind it.
constexpr size_t kBroadcastAhead = 4;
// The place of one rank in a tree of `size` ranks whose root is number 0.
struct TreePlace {
  int parent = -1;
  std::vector<int> children;
};

TreePlace binomial(int number, int size) {
  TreePlace place;
  const int low =
      number == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : number & -number;
  if (number > 0) place.parent = number - low;
  for (int step = low / 2; step > 0; step /= 2) {
    if (number + step < size) place.children.push_back(number + step);
  }
  return place;
}

TreePlace chain(int number, int size) {
  TreePlace place;
  place.parent = number - 1;
  if (number + 1 < size) place.children.push_back(number + 1);
  return place;
}

class Broadcast {
 public:
  Broadcast(Call& call, const Move& move, const EngineOptions& options)
      : call_(call),
        codec_(*move.codec),
        dtype_(move.plan->dtype),
        exact_(move.codec == raw_codec()),
        is_root_(call.identity.rank == move.plan->root) {
    piece_ = *(is_root_ ? move.gives : move.gets)[static_cast<size_t>(move.plan->root)];
    find_place(options);
    const size_t longest = codec_.encoded_bytes(segment_, dtype_);
    if (near_) make_room(call, *near_comm_, 1, longest);
    if (far_)
      make_room(call, *far_comm_, static_cast<size_t>(far_->size()),
                direct_ ? kNoticeBytes : longest);
    // Without values a message goes, too: a rank that expects some learns that none will come.
    rounds_ = std::max((piece_.values + segment_ - 1) / segment_, size_t{1});
    if (far_) join_tree();
  }

  void run() {
    if (call_.plan.size == 1) call_.stages.add_residual(call_, piece_.data, piece_.values);
    if (call_.plan.size == 1) return;
    announce();
    if (direct_ && far_) begin_direct();
    for (size_t round = 0; round < rounds_; ++round) {
      if (direct_ && far_) {
        pass_on_directly(round);
      } else {
        pass_on(round);
      }
    }
    while (!sent_.empty()) settle_oldest();
  }

 private:
  struct Sent {
    int peer;
    std::unique_ptr<Pending> pending;
  };

  // Which communicators this rank uses, and for what.
  void find_place(const EngineOptions& options) {
    const size_t inside = bytes_inside(options, 1, options.intra.wanted);
    const Topology& topology = call_.topology;
    std::vector<int> everyone(static_cast<size_t>(call_.plan.size));
    std::iota(everyone.begin(), everyone.end(), 0);
    if (!call_.plan.two_levels) {
      Communicator& only = call_.links.only();
      const bool relayed = only.announces();
      const size_t cached = call_.stages.on_device() ? inside : std::min(inside, kBroadcastSegment);
      if (relayed) nodes_ = everyone;
      segment_ = segment_values(codec_, dtype_, relayed ? bytes_across(only, options) : cached);
      if (relayed) {
        far_comm_ = &only;
        far_.emplace(call_, only, everyone, topology.host_count() > 1);
      } else {
        use_host(only, everyone, call_.plan.root);
      }
      return;
    }
    const int root_host = topology.host_of(call_.plan.root);
    for (int host = 0; host < topology.host_count(); ++host) {
      nodes_.push_back(host == root_host ? call_.plan.root : topology.host(host).front());
    }
    segment_ =
        segment_values(codec_, dtype_, std::min(inside, bytes_across(*call_.links.mesh, options)));
    const int host = topology.host_of(call_.identity.rank);
    const int leader = nodes_[static_cast<size_t>(host)];
    if (call_.links.intra != nullptr) use_host(*call_.links.intra, topology.host(host), leader);
    if (leader != call_.identity.rank) return;
    far_comm_ = call_.links.mesh;
    far_.emplace(call_, *far_comm_, everyone, true);
  }

  // Bytes of a segment between hosts. All ranks compute the same, those outside the tree too: they get
  // the same segments inside their host.
  size_t bytes_across(const Communicator& comm, const EngineOptions& options) {
    direct_ = exact_ && bytes() >= kDirectFrom && comm.direct() && !comm.on_device() &&
              !call_.identity.checksum;
    if (!direct_) return options.segment_bytes;
    if (nodes_.size() <= 2) return kMostDirect;
    const size_t others = kSegmentsPerStep * (nodes_.size() - 2);
    return std::clamp(bytes() / others, kLeastDirect, kMostDirect);
  }

  void use_host(Communicator& comm, const std::vector<int>& members, int leader) {
    near_comm_ = &comm;
    near_.emplace(call_, comm, members, false);
    leads_ = leader == call_.identity.rank;
    const auto at = std::find(members.begin(), members.end(), leader);
    leader_ = static_cast<int>(at - members.begin());
  }

  // The ranks of the tree before and behind this one; the root is its number 0.
  void join_tree() {
    const int size = static_cast<int>(nodes_.size());
    const auto number_of = [&](int rank) {
      return static_cast<int>(std::find(nodes_.begin(), nodes_.end(), rank) - nodes_.begin());
    };
    const int first = number_of(call_.plan.root);
    const int number = (number_of(call_.identity.rank) - first + size) % size;
    const auto rank_of = [&](int place) {
      return nodes_[static_cast<size_t>((place + first) % size)];
    };
    const TreePlace place = bytes() >= kChainFrom ? chain(number, size) : binomial(number, size);
    if (place.parent >= 0) parent_ = rank_of(place.parent);
    for (int child : place.children) children_.push_back(rank_of(child));
  }

  size_t bytes() const { return piece_.values * size_of(dtype_); }
  size_t count(size_t round) const { return std::min(segment_, piece_.values - round * segment_); }
  size_t value_bytes(size_t round) const { return count(round) * size_of(dtype_); }
  size_t payload(size_t round) const {
    if (piece_.values == 0) return kNoticeBytes;
    return exact_ ? value_bytes(round) : codec_.encoded_bytes(count(round), dtype_);
  }
  std::byte* at(size_t round) const { return piece_.data + round * segment_ * size_of(dtype_); }
  Chunk chunk(size_t round) const {
    return chunk_of(codec_, dtype_, piece_.first + round * segment_, count(round));
  }
  View view(size_t round) const {
    return {at(round), piece_.first + round * segment_, dtype_, false, is_root_};
  }

  void announce() {
    if (near_) {
      for (size_t round = 0; !leads_ && round < rounds_; ++round) {
        near_->will_receive(leader_, payload(round), round == 0 && far_comm_ == nullptr);
      }
      near_->begin();
    }
    if (!far_) return;
    const bool at_once = parent_ == call_.plan.root;
    if (parent_ >= 0 && direct_) far_->will_receive(parent_, kNoticeBytes, at_once);
    for (size_t round = 0; parent_ >= 0 && !direct_ && round < rounds_; ++round) {
      far_->will_receive(parent_, payload(round), at_once && round == 0);
    }
    far_->begin();
  }

  // A message of `bytes` bytes to the children, whose memory is filled by write(message, number).
  template <typename Write>
  void tell_children(size_t round, size_t bytes, const Write& write) {
    if (children_.empty()) return;
    bytes_.assign(static_cast<size_t>(far_->size()), 0);
    for (int child : children_) bytes_[static_cast<size_t>(child)] = bytes;
    const std::vector<std::byte*>& messages = far_->open(bytes_);
    for (int child : children_) write(messages[static_cast<size_t>(child)]);
    far_->post(round);
  }

  // One segment, by messages.
  void pass_on(size_t round) {
    Channel* const from = is_root_ ? nullptr : far_ ? &*far_ : &*near_;
    const int source = far_ ? parent_ : leader_;
    const size_t bytes = payload(round);
    const std::byte* payload = from != nullptr ? from->receive(source, round) : nullptr;
    const auto write = [&](std::byte* message) {
      if (piece_.values == 0) {
        if (!call_.stages.on_device()) std::memset(message, 0, bytes);
      } else if (payload != nullptr) {
        call_.stages.copy(message, payload, bytes);
      } else if (exact_) {
        StageTimer timer(call_.stats.encode_ns, "cgx:encode");
        call_.stages.copy(message, at(round), bytes);
      } else {
        call_.stages.encode_chunk(call_, chunk(round), view(round), Stage::kContribution, message,
                                  /*final=*/true);
        call_.stages.decode_chunk(call_, chunk(round), message, view(round));
        payload = message;  // is encoded once, for all
      }
    };
    // The messages of this rank stay readable until it has opened others.
    tell_children(round, bytes, write);
    if (near_ && leads_) {
      write(near_->open_broadcast(bytes));
      near_->post(round);
    }
    if (from == nullptr) return;
    if (exact_) {
      StageTimer timer(call_.stats.decode_ns, "cgx:decode");
      call_.stages.copy(at(round), payload, value_bytes(round));
    } else if (piece_.values > 0) {
      call_.stages.decode_chunk(call_, chunk(round), payload, view(round));
    }
    from->release(source);
  }

  // Headers first: a rank receives into its tensor when it knows that the sender is in this call.
  void begin_direct() {
    tell_children(0, kNoticeBytes,
                  [](std::byte* message) { std::memset(message, 0, kNoticeBytes); });
    if (parent_ < 0) return;
    far_->receive(parent_, 0);
    far_->release(parent_);
    for (size_t round = 0; round < std::min(kBroadcastAhead, rounds_); ++round) await(round);
  }

  void await(size_t round) {
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    const size_t bytes = value_bytes(round);
    awaited_.push_back(far_comm_->receive_into(parent_, kBroadcastLane, at(round), bytes, bytes));
  }

  void pass_on_directly(size_t round) {
    if (parent_ >= 0) {
      StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
      far_comm_->finish(*awaited_.front(), parent_, call_.deadline);
      awaited_.pop_front();
      far_->count_direct(0, value_bytes(round));
    }
    if (parent_ >= 0 && round + kBroadcastAhead < rounds_) await(round + kBroadcastAhead);
    for (int child : children_) {
      sent_.push_back(
          {child, far_comm_->send_from(child, kBroadcastLane, at(round), value_bytes(round))});
      far_->count_direct(value_bytes(round), 0);
    }
    while (sent_.size() > kBroadcastAhead * children_.size()) settle_oldest();
    if (!near_) return;
    call_.stages.copy(near_->open_broadcast(value_bytes(round)), at(round), value_bytes(round));
    near_->post(round);
  }

  void settle_oldest() {
    StageTimer timer(call_.stats.transfer_ns, "cgx:transfer");
    far_comm_->finish(*sent_.front().pending, sent_.front().peer, call_.deadline);
    sent_.pop_front();
  }

  Call& call_;
  const Codec& codec_;
  const DType dtype_;
  const bool exact_, is_root_;
  Piece piece_;
  size_t segment_ = 1, rounds_ = 0;
  bool direct_ = false;  // between hosts, from tensor to tensor
  // Inside the host: one rank, the leader, tells the others.
  Communicator* near_comm_ = nullptr;
  std::optional<Channel> near_;
  bool leads_ = false;
  int leader_ = 0;  // number in that communicator
  // Between hosts, or over a library: null on ranks that get the values inside their host.
  Communicator* far_comm_ = nullptr;
  std::optional<Channel> far_;
  std::vector<int> nodes_;  // of the tree: ranks of the group
  int parent_ = -1;
  std::vector<int> children_;
  std::vector<size_t> bytes_;
  // The last members: at an error their transfers must let go of the tensor first.
  std::deque<std::unique_ptr<Pending>> awaited_;
  std::deque<Sent> sent_;
};

}  // namespace

void broadcast(Call& call, const Move& move, const EngineOptions& options) {
  Broadcast(call, move, options).run();
}

}  // namespace cgx
