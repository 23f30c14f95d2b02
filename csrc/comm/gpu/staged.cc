#include "comm/gpu/staged.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gpu/placed.h"
#include "device/growing_memory.h"

namespace cgx {
namespace {

using device::GrowingMemory;
using device::OwnEvent;
using device::Queue;

class Staged final : public Communicator {
 public:
  Staged(const Queue& queue, std::unique_ptr<Communicator> host)
      : queue_(queue),
        host_(std::move(host)),
        name_(std::string(host_->name()) + "(pinned)"),
        sent_(static_cast<size_t>(host_->in_flight()), GrowingMemory(&device::allocate_device)),
        peers_(static_cast<size_t>(host_->size())) {
    const device::InContext here(queue_.driver(), queue_.context());
    for (PeerBuffers& peer : peers_) peer.copied = std::make_unique<OwnEvent>(queue_.driver());
  }

  ~Staged() override { queue_.finish("the last copies of a group"); }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const char* name() const override { return name_.c_str(); }
  size_t capacity() const override { return host_->capacity(); }
  size_t longest() const override { return host_->longest(); }
  void make_room(size_t bytes) override { host_->make_room(bytes); }
  int in_flight() const override { return host_->in_flight(); }
  bool announces() const override { return host_->announces(); }
  bool matches_lengths() const override { return host_->matches_lengths(); }
  size_t frame_bytes() const override { return host_->frame_bytes(); }
  size_t staging_bytes() const override { return host_->staging_bytes() + pinned_bytes_; }
  bool on_device() const override { return true; }

  void begin_call() override { host_->begin_call(); }
  void expect(int peer, size_t bytes) override { host_->expect(peer, bytes); }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    host_->open(bytes_to, lent_, deadline);
    size_t all = 0;
    for (size_t bytes : bytes_to) all += stride_of(bytes);
    std::byte* at = begin_exchange(all);
    buffers.assign(bytes_to.size(), nullptr);
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      if (bytes_to[p] == 0) continue;
      buffers[p] = at + kShift;
      opened_.push_back({buffers[p], lent_[p], bytes_to[p]});
      at += stride_of(bytes_to[p]);
    }
  }

  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    std::byte* lent = host_->open_broadcast(bytes, deadline);
    std::byte* message = begin_exchange(stride_of(bytes)) + kShift;
    if (bytes == 0) return nullptr;
    opened_.push_back({message, lent, bytes});
    return message;
  }

  std::byte* header_of(std::byte* message) override {
    for (const StagedMessage& opened : opened_) {
      if (opened.message == message) return opened.lent;
    }
    throw Error("header_of() of a message that is not open");
  }

  void fetch(const Deadline& deadline) override {
    if (fetched_) return;
    const device::InContext here(queue_.driver(), queue_.context());
    size_t all = 0;
    for (const StagedMessage& opened : opened_) all += opened.bytes - kPayloadOffset;
    std::byte* pinned = pin(outgoing_, all);
    size_t at = 0;
    for (const StagedMessage& opened : opened_) {
      const size_t bytes = opened.bytes - kPayloadOffset;
      queue_.to_host(pinned + at, opened.message + kPayloadOffset, bytes);
      at += bytes;
    }
    if (all > 0) queue_.synchronize("the GPU to encode a message", deadline);
    at = 0;
    for (const StagedMessage& opened : opened_) {
      const size_t bytes = opened.bytes - kPayloadOffset;
      std::memcpy(opened.lent + kPayloadOffset, pinned + at, bytes);
      at += bytes;
    }
    fetched_ = true;
  }

  void post(const Deadline& deadline) override {
    fetch(deadline);
    host_->post(deadline);
  }
  void flush(const Deadline& deadline) override { host_->flush(deadline); }

  Message receive(int peer, const Deadline& deadline) override {
    const Message message = host_->receive(peer, deadline);
    const device::InContext here(queue_.driver(), queue_.context());
    PeerBuffers& from = peers_[static_cast<size_t>(peer)];
    if (message.bytes <= kPayloadOffset) return {message.data, message.bytes, message.data};
    const size_t bytes = message.bytes - kPayloadOffset;
    // The copy of the message before may still read the pinned memory.
    if (from.copying) queue_.synchronize(*from.copied, "the GPU to take a message", deadline);
    std::byte* pinned = pin(from.pinned, bytes);
    std::byte* memory = from.device.room(queue_, stride_of(message.bytes)) + kShift;
    std::memcpy(pinned, message.data + kPayloadOffset, bytes);
    queue_.to_device(memory + kPayloadOffset, pinned, bytes);
    queue_.record(*from.copied);
    from.copying = true;
    return {memory, message.bytes, message.data};
  }

  Message peek(int peer, const Deadline& deadline) override { return host_->peek(peer, deadline); }
  void release(int peer) override { host_->release(peer); }
  void abort(const Failure& cause) override { host_->abort(cause); }
  std::optional<Failure> failure() override { return host_->failure(); }
  void check_wait(std::chrono::steady_clock::time_point now) override { host_->check_wait(now); }
  std::optional<PeerFingerprint> compare_call(const Fingerprint& fingerprint) override {
    return host_->compare_call(fingerprint);
  }
  void forget_call(uint64_t number) override { host_->forget_call(number); }
  void finish_call(uint64_t number) override { host_->finish_call(number); }
  bool sees_ended() const override { return host_->sees_ended(); }
  std::vector<int> ended_peers(uint64_t number) override { return host_->ended_peers(number); }

 private:
  struct StagedMessage {
    std::byte* message;  // on the device
    std::byte* lent;     // by the host's communicator
    size_t bytes;
  };
  struct PeerBuffers {
    GrowingMemory device{&device::allocate_device}, pinned{&device::allocate_pinned};
    std::unique_ptr<OwnEvent> copied;
    bool copying = false;
  };

  std::byte* begin_exchange(size_t bytes) {
    const device::InContext here(queue_.driver(), queue_.context());
    opened_.clear();
    fetched_ = false;
    return sent_[exchange_++ % sent_.size()].room(queue_, bytes);
  }

  std::byte* pin(GrowingMemory& pinned, size_t bytes) {
    const size_t before = pinned.bytes();
    std::byte* memory = pinned.room(queue_, bytes);
    pinned_bytes_ += pinned.bytes() - before;
    return memory;
  }

  const Queue& queue_;
  const std::unique_ptr<Communicator> host_;
  const std::string name_;
  std::vector<GrowingMemory> sent_;  // by exchange: a sender goes on reading what it has posted
  std::vector<PeerBuffers> peers_;
  GrowingMemory outgoing_{&device::allocate_pinned};
  std::vector<std::byte*> lent_;
  std::vector<StagedMessage> opened_;
  bool fetched_ = false;
  size_t exchange_ = 0;
  std::atomic<size_t> pinned_bytes_{0};
};

}  // namespace

std::unique_ptr<Communicator> make_staged(const Queue& queue, std::unique_ptr<Communicator> host) {
  return std::make_unique<Staged>(queue, std::move(host));
}

}  // namespace cgx
