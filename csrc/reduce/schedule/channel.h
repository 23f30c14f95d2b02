// The messages of one call over one communicator: headers and their checks, flags, statistics, and
// the order of expected messages.
//
//     channel.will_receive(peer, bytes, at_once);  // for all messages of the call, in their order
//     channel.begin();
//     std::byte* payload = channel.open_broadcast(payload_bytes);
//     ... write it ...
//     channel.post(round);
//     const std::byte* theirs = channel.receive(peer, round);
//     ... read it ...
//     channel.release(peer);
//
// Ranks are numbers in the communicator; errors name numbers in the group. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/schedule/reducer.h"

namespace cgx {

class Channel {
 public:
  /// members[r]: the rank in the group of the communicator's rank r. `across`: whether its messages
  /// leave the host.
  Channel(Call& call, Messages& comm, std::vector<int> members, bool across);

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  /// All other ranks, beginning with the next one: if all ranks send in this order, no two send to
  /// the same rank at once.
  const std::vector<int>& peers() const { return peers_; }
  /// The same backwards from the previous rank: the order in which their messages then arrive.
  const std::vector<int>& sources() const { return sources_; }
  int in_flight() const { return comm_.in_flight(); }

  /// Registers the next message of `peer`; 0 bytes: none. at_once: the peer sends it in round 0
  /// after its own work only, without waiting for a message (needed for the first message of each
  /// peer).
  void will_receive(int peer, size_t payload_bytes, bool at_once);
  /// To be called after the last will_receive().
  void begin();

  /// Memory for the payload of a message to all peers; nullptr for 0 bytes.
  std::byte* open_broadcast(size_t payload_bytes);
  /// The same for messages of their own: payload_bytes[p] for peer p.
  const std::vector<std::byte*>& open(const std::vector<size_t>& payload_bytes);
  /// Writes the headers of the opened messages and sends these.
  void post(size_t round);

  /// Replaces open() or open_broadcast() and post() in an exchange in which other ranks have
  /// messages and this rank has none.
  void post_nothing(size_t round, bool broadcast);

  /// For communicators over which later messages of a call may be expected only when the first one
  /// was looked at: looks at the first message of every peer that sends it at once, in round 0, so
  /// that the later ones can come while this rank is busy. To be called when this rank has posted
  /// its own.
  void look_at_first();

  /// The headers of messages to p say sent[p] values in place of the plan's, and must say
  /// received[p] from p.
  void compare_values(std::vector<uint64_t> sent, std::vector<uint64_t> received);

  // For values that travel outside messages: all ranks send each other headers without a payload.
  /// In place of begin().
  void begin_headers();
  void post_headers();
  /// Waits for the header of `peer` and checks it: the peer is in the same call.
  void take_header(int peer);
  /// Counts the bytes of a direct transfer.
  void count_direct(size_t sent, size_t received);

  /// Waits for the next message of `peer`, checks it and records its flags; returns its payload,
  /// valid until release().
  const std::byte* receive(int peer, size_t round);
  void release(int peer);

 private:
  struct PeerMessages {
    std::vector<size_t> payloads;  // of all messages of the call
    size_t received = 0;
    bool at_once = false;   // the first one
    bool expected = false;  // the first one, by the communicator
    bool verified = false;  // the first one was looked at
  };
  /// A message lent by the communicator. peer: -1: all peers.
  struct OpenedMessage {
    std::byte* data;
    size_t payload_bytes;
    int peer;
  };
  CallIdentity identity_of(const std::vector<uint64_t>& values, int peer) const;
  /// Size of a message on the wire; 0 for a message that is not sent.
  size_t message_bytes(size_t payload_bytes) const;
  /// MismatchError if the checksum is wrong.
  Message without_checksum(const Message& message, int peer) const;
  void verify_first(int peer, size_t round);
  void count_sent(int peer, size_t payload_bytes);

  Call& call_;
  Messages& comm_;
  const std::vector<int> members_;
  const bool across_;
  std::vector<int> peers_, sources_;
  std::vector<PeerMessages> incoming_;
  std::vector<bool> announced_;  // by peer: something was sent to it in this call
  std::vector<OpenedMessage> opened_;
  std::vector<uint64_t> sent_values_, received_values_;  // by peer; empty: the plan's
  std::vector<std::byte*> buffers_;
  std::vector<size_t> bytes_to_;
};

}  // namespace cgx
