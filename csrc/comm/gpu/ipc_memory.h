// The device memory that ranks of one host open in each other, and when it may be freed.
//
// The driver calls it undefined to free memory, or to destroy an event, that another process has
// open. So a rank frees its own only after every peer has said that it has closed it. Where that is
// not known, the memory is kept until the process ends: the driver frees it then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/queue.h"

namespace cgx {

/// Takes a line of the log, at the level of warnings; none: nothing is logged.
using IpcLog = std::function<void(const std::string&)>;

/// Layout of a rank's memory: its inbox, then its broadcasts.
struct IpcLayout {
  size_t size, slots, stride;

  /// `stride`: bytes between two messages.
  IpcLayout(int ranks, int in_flight, size_t stride)
      : size(static_cast<size_t>(ranks)), slots(static_cast<size_t>(in_flight)), stride(stride) {}

  size_t inbox(size_t sender, size_t slot) const { return (sender * slots + slot) * stride; }
  size_t outbox(size_t slot) const { return (size * slots + slot) * stride; }
  /// Whole pages of the driver: others would be shown what else lies in the last one.
  size_t bytes() const {
    constexpr size_t kPage = size_t{2} << 20;
    return ((size + 1) * slots * stride + kPage - 1) / kPage * kPage;
  }
};

/// A peer's memory, opened here.
class PeerMemory {
 public:
  PeerMemory(const device::Queue& queue, const device::IpcMemory& handle);
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(memory_); }

 private:
  const device::Driver* driver_;
  device::Context context_;
  device::Pointer memory_ = 0;
};

/// Memory and events of all ranks, as this one sees them. Made and used in the queue's context.
class IpcGroupMemory {
 public:
  struct Peer {
    PeerMemory memory;
    std::vector<device::OwnEvent> ready;     // by slot: the peer's message is written
    std::vector<device::OwnEvent> consumed;  // by slot: the peer has read this rank's message
  };

  /// ResourceError: no memory, or it cannot be shown to other processes. `queue` outlives this.
  IpcGroupMemory(const device::Queue& queue, const IpcLayout& layout, IpcLog log);
  /// Frees what is here, except for what a peer may have open.
  ~IpcGroupMemory();
  IpcGroupMemory(const IpcGroupMemory&) = delete;
  IpcGroupMemory& operator=(const IpcGroupMemory&) = delete;

  /// What open() of the peers takes.
  const std::string& handles() const { return handles_; }

  /// From here on peers may have the memory open.
  void shown() { shown_ = true; }
  /// All peers have closed it.
  void closed_by_peers() { shown_ = false; }
  /// Why closed_by_peers() was not called, for the log.
  void not_closed(std::string why) { why_ = std::move(why); }

  /// Opens what the next peer has shown, in the order of ranks; `rank`: this one. ResourceError,
  /// MismatchError.
  void open(size_t rank, const std::string& handles);
  /// Nothing on the stream uses the memory of peers any more.
  void close_peers() { opened_.peers.clear(); }
  /// The stream does not end: it may use all of this for as long as the process lives.
  void keep_everything() { stream_ends_ = false; }

  std::byte* memory() const { return opened_.memory.get(); }
  const device::OwnEvent& ready(size_t slot) const { return opened_.ready[slot]; }
  const device::OwnEvent& consumed(size_t sender, size_t slot) const {
    return opened_.consumed[sender * layout_.slots + slot];
  }
  const Peer& peer(size_t number) const { return *opened_.peers[number]; }

 private:
  struct Opened {
    std::shared_ptr<std::byte> memory;
    std::vector<device::OwnEvent> ready;     // by slot: this rank's messages are written
    std::vector<device::OwnEvent> consumed;  // by sender and slot: this rank has read the message
    std::vector<std::unique_ptr<Peer>> peers;
  };

  std::string write_handles() const;
  void keep() noexcept;

  const device::Queue& queue_;
  const IpcLayout layout_;
  const IpcLog log_;
  Opened opened_;
  std::string handles_;
  std::string why_ = "the group was not made";
  bool shown_ = false, stream_ends_ = true;
};

}  // namespace cgx
