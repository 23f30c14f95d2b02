// The ranks that a move reaches over one communicator, and the messages to and from them.
//
// Short pieces, and all that are encoded, travel as messages: piece number k of a pair's values goes
// in exchange k. Long exact pieces travel from memory to memory where the communicator can do that
// (DirectTransfers): in exchange 0 goes a message that names the call, and the receiver posts its
// receives when it has seen it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "reduce/moves/move.h"
#include "reduce/schedule/channel.h"
#include "reduce/schedule/reducer.h"

namespace cgx {

/// Payload of a message whose values travel beside it.
inline constexpr size_t kNoticeBytes = 8;

class Side {
 public:
  /// members[r]: the rank in the group of the communicator's rank r. `only_across`: ranks of this
  /// rank's host take no part. `bytes`: of an exchange, aimed at.
  Side(Call& call, const Move& move, Communicator& comm, const std::vector<int>& members,
       bool across, bool only_across, size_t bytes);

  /// Exchanges of the longest pair of this rank.
  size_t rounds() const { return rounds_; }
  int in_flight() const { return channel_.in_flight(); }
  void begin();
  void send(size_t round);
  void receive(size_t round);
  /// Looks at the first messages, where later ones may come only then.
  void look_at_first() { channel_.look_at_first(); }
  /// Waits for what travels from memory to memory.
  void finish();

 private:
  struct Flow {
    Piece piece;
    size_t segment = 1;  // values of a message
    size_t rounds = 0;   // 0: nothing goes that way
    bool direct = false;
    /// A message goes without values: they travel beside it, or there are none.
    bool notice = false;
  };
  struct Outgoing {
    int peer;
    const std::byte* data;
    size_t bytes;
  };
  struct Transfer {
    int peer;
    std::unique_ptr<Pending> pending;
  };

  Flow flow_of(const std::optional<Piece>& piece) const;
  size_t count(const Flow& flow, size_t round) const;
  size_t payload(const Flow& flow, size_t round) const;
  std::byte* at(const Flow& flow, size_t round) const;
  void write(const Flow& flow, size_t round, std::byte* message);
  void queue_send(int peer, const Flow& flow);
  void start_next_send();
  void wait_for(Transfer& transfer);
  void receive_directly(int peer, const Flow& flow);

  Call& call_;
  const Move& move_;
  DirectTransfers& transfers_;
  const std::vector<int> members_;
  const size_t value_bytes_;
  const bool exact_;
  const size_t direct_from_;  // bytes of a pair
  bool directs_ = false;
  bool alike_ = false;  // one message serves all peers
  size_t segment_ = 1;
  size_t rounds_ = 0;
  std::vector<int> targets_, sources_;  // numbers in the communicator
  std::vector<Flow> out_, in_;          // by number in the communicator
  Channel channel_;
  std::vector<size_t> bytes_;
  // Sends from memory to memory that are to follow. Only few are on their way, and each rank begins
  // with the rank behind it: if all others send to a rank at once, a switch answers with loss.
  std::deque<Outgoing> queued_;
  // Destroyed first: transfers that were under way at an error then no longer touch the tensors.
  std::deque<Transfer> sending_;
  std::vector<Transfer> receiving_;
};

}  // namespace cgx
