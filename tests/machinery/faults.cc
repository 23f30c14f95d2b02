#include "machinery/faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace cgx {
namespace {

std::atomic<CommunicatorHook*> hook_now{nullptr};
std::atomic<int64_t> taken{0};
std::atomic<int64_t> at{-1};
std::atomic<Fault> ordered{Fault::kNone};

Fault next_fault() {
  const int64_t step = taken++;
  return step == at ? ordered.exchange(Fault::kNone) : Fault::kNone;
}

// Its memory and code are the test module's, its inner one those of the module that made it: each
// destroys and throws by its own.
class Faulty final : public Communicator {
 public:
  explicit Faulty(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const char* name() const override { return inner_->name(); }
  size_t capacity() const override { return inner_->capacity(); }
  size_t longest() const override { return inner_->longest(); }
  void make_room(size_t bytes) override { inner_->make_room(bytes); }
  int in_flight() const override { return inner_->in_flight(); }
  bool announces() const override { return inner_->announces(); }
  bool matches_lengths() const override { return inner_->matches_lengths(); }
  size_t frame_bytes() const override { return inner_->frame_bytes(); }
  size_t staging_bytes() const override { return inner_->staging_bytes(); }
  bool on_device() const override { return inner_->on_device(); }
  bool has_headers() const override { return inner_->has_headers(); }
  bool lockstep() const override { return inner_->lockstep(); }
  std::byte* header_of(std::byte* message) override { return inner_->header_of(message); }
  bool through_host() const override { return inner_->through_host(); }
  void fetch(const Deadline& deadline) override { inner_->fetch(deadline); }
  void begin_call() override { inner_->begin_call(); }
  void expect(int peer, size_t bytes) override { inner_->expect(peer, bytes); }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    step();
    inner_->open(bytes_to, buffers, deadline);
  }
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    step();
    return inner_->open_broadcast(bytes, deadline);
  }
  void post(const Deadline& deadline) override {
    step();
    inner_->post(deadline);
  }
  void flush(const Deadline& deadline) override {
    one_more(step(), deadline);
    inner_->flush(deadline);
  }
  Message receive(int peer, const Deadline& deadline) override {
    const Fault fault = step();
    Message message = inner_->receive(peer, deadline);
    if (fault == Fault::kTruncate) --message.bytes;
    if (fault != Fault::kAlter) return message;
    // A copy: the message may lie in the sender's own memory.
    altered_.assign(message.data, message.data + message.bytes);
    altered_[altered_.size() - (altered_.size() - kPayloadOffset) / 2 - 1] ^= std::byte{1};
    return {altered_.data(), altered_.size()};
  }
  Message peek(int peer, const Deadline& deadline) override {
    step();
    return inner_->peek(peer, deadline);
  }
  void release(int peer) override {
    step();
    inner_->release(peer);
  }
  bool direct() const override { return inner_->direct(); }
  size_t direct_room(size_t bytes) const override { return inner_->direct_room(bytes); }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override {
    step();
    return inner_->send_from(peer, lane, data, bytes);
  }
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override {
    step();
    return inner_->receive_into(peer, lane, data, bytes, room);
  }
  void finish(Pending& transfer, int peer, const Deadline& deadline) override {
    step();
    inner_->finish(transfer, peer, deadline);
  }
  void abort(const Failure& cause) override { inner_->abort(cause); }
  std::optional<Failure> failure() override { return inner_->failure(); }
  void check_wait(std::chrono::steady_clock::time_point now) override { inner_->check_wait(now); }
  std::optional<PeerFingerprint> compare_call(const Fingerprint& note) override {
    return inner_->compare_call(note);
  }
  void forget_call(uint64_t number) override { inner_->forget_call(number); }
  void finish_call(uint64_t number) override { inner_->finish_call(number); }
  bool sees_ended() const override { return inner_->sees_ended(); }
  std::vector<int> ended_peers(uint64_t number) override { return inner_->ended_peers(number); }

 private:
  // More than the buffers of a connection hold.
  static constexpr size_t kMore = 64 << 20;

  void one_more(Fault fault, const Deadline& deadline) {
    const bool sends = fault == Fault::kSendMore || fault == Fault::kKillSending;
    const bool dies = fault == Fault::kKillReceiving || fault == Fault::kKillSending;
    if (!sends && !dies && fault != Fault::kReceiveMore) return;
    const int peer = 1 - rank();
    inner_->make_room(kMore);
    if (dies) kill(getpid(), SIGSTOP);
    if (sends) {
      std::vector<size_t> bytes_to(2);
      bytes_to[static_cast<size_t>(peer)] = kMore;
      std::vector<std::byte*> buffers;
      inner_->open(bytes_to, buffers, deadline);
      inner_->post(deadline);
    } else {
      inner_->expect(peer, kMore);
    }
    if (dies) {
      // Gloo's thread reads what the peer has sent meanwhile. If bytes are unread when the process
      // ends, the kernel resets the connection instead of closing it.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      kill(getpid(), SIGKILL);
    }
    kill(getpid(), SIGSTOP);
    if (!sends) inner_->receive(peer, deadline);
  }

  Fault step() {
    const Fault fault = next_fault();
    if (fault == Fault::kKill) kill(getpid(), SIGKILL);
    if (fault == Fault::kStop) kill(getpid(), SIGSTOP);
    if (fault == Fault::kError) hook_now.load()->fail("a fault was ordered");
    return fault;
  }

  const std::unique_ptr<Communicator> inner_;
  std::vector<std::byte> altered_;
};

std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> inner) {
  return std::make_unique<Faulty>(std::move(inner));
}

}  // namespace

void FaultPlan::allow(CommunicatorHook& hook, bool allow) {
  hook_now = &hook;
  hook.wrap = allow ? with_faults : nullptr;
}

void FaultPlan::order(Fault fault, int64_t step) {
  ordered = Fault::kNone;
  taken = 0;
  at = step;
  ordered = fault;
}

int64_t FaultPlan::steps() { return taken; }

}  // namespace cgx
