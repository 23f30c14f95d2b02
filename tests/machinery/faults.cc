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

// Its memory and code are the test module's, the wrapped communicator's those of the module that made it: each
// destroys and throws by its own.
class Faulty final : public Communicator {
 public:
  explicit Faulty(std::unique_ptr<Communicator> wrapped) : wrapped_(std::move(wrapped)) {}

  int rank() const override { return wrapped_->rank(); }
  int size() const override { return wrapped_->size(); }
  const char* name() const override { return wrapped_->name(); }
  size_t capacity() const override { return wrapped_->capacity(); }
  size_t longest() const override { return wrapped_->longest(); }
  void make_room(size_t bytes) override { wrapped_->make_room(bytes); }
  int in_flight() const override { return wrapped_->in_flight(); }
  bool announces() const override { return wrapped_->announces(); }
  bool matches_lengths() const override { return wrapped_->matches_lengths(); }
  size_t frame_bytes() const override { return wrapped_->frame_bytes(); }
  size_t staging_bytes() const override { return wrapped_->staging_bytes(); }
  bool on_device() const override { return wrapped_->on_device(); }
  bool has_headers() const override { return wrapped_->has_headers(); }
  bool lockstep() const override { return wrapped_->lockstep(); }
  std::byte* header_of(std::byte* message) override { return wrapped_->header_of(message); }
  bool through_host() const override { return wrapped_->through_host(); }
  void fetch(const Deadline& deadline) override { wrapped_->fetch(deadline); }
  void begin_call() override { wrapped_->begin_call(); }
  void expect(int peer, size_t bytes) override { wrapped_->expect(peer, bytes); }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    step();
    wrapped_->open(bytes_to, buffers, deadline);
  }
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    step();
    return wrapped_->open_broadcast(bytes, deadline);
  }
  void post(const Deadline& deadline) override {
    step();
    wrapped_->post(deadline);
  }
  void flush(const Deadline& deadline) override {
    one_more(step(), deadline);
    wrapped_->flush(deadline);
  }
  Message receive(int peer, const Deadline& deadline) override {
    const Fault fault = step();
    Message message = wrapped_->receive(peer, deadline);
    if (fault == Fault::kTruncate) --message.bytes;
    if (fault != Fault::kAlter) return message;
    // A copy: the message may lie in the sender's own memory.
    altered_.assign(message.data, message.data + message.bytes);
    altered_[altered_.size() - (altered_.size() - kPayloadOffset) / 2 - 1] ^= std::byte{1};
    return {altered_.data(), altered_.size()};
  }
  Message peek(int peer, const Deadline& deadline) override {
    step();
    return wrapped_->peek(peer, deadline);
  }
  void release(int peer) override {
    step();
    wrapped_->release(peer);
  }
  bool direct() const override { return wrapped_->direct(); }
  size_t direct_room(size_t bytes) const override { return wrapped_->direct_room(bytes); }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override {
    step();
    return wrapped_->send_from(peer, lane, data, bytes);
  }
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override {
    step();
    return wrapped_->receive_into(peer, lane, data, bytes, room);
  }
  void finish(Pending& transfer, int peer, const Deadline& deadline) override {
    step();
    wrapped_->finish(transfer, peer, deadline);
  }
  void abort(const Failure& cause) override { wrapped_->abort(cause); }
  std::optional<Failure> failure() override { return wrapped_->failure(); }
  void check_wait(std::chrono::steady_clock::time_point now) override { wrapped_->check_wait(now); }
  std::optional<PeerFingerprint> compare_call(const Fingerprint& note) override {
    return wrapped_->compare_call(note);
  }
  void forget_call(uint64_t number) override { wrapped_->forget_call(number); }
  void finish_call(uint64_t number) override { wrapped_->finish_call(number); }
  bool sees_ended() const override { return wrapped_->sees_ended(); }
  std::vector<int> ended_peers(uint64_t number) override { return wrapped_->ended_peers(number); }
  std::unique_ptr<MailMemory> mail() override { return wrapped_->mail(); }

 private:
  // More than the buffers of a connection hold.
  static constexpr size_t kMore = 64 << 20;

  void one_more(Fault fault, const Deadline& deadline) {
    const bool sends = fault == Fault::kSendMore || fault == Fault::kKillSending;
    const bool dies = fault == Fault::kKillReceiving || fault == Fault::kKillSending;
    if (!sends && !dies && fault != Fault::kReceiveMore) return;
    const int peer = 1 - rank();
    wrapped_->make_room(kMore);
    if (dies) kill(getpid(), SIGSTOP);
    if (sends) {
      std::vector<size_t> bytes_to(2);
      bytes_to[static_cast<size_t>(peer)] = kMore;
      std::vector<std::byte*> buffers;
      wrapped_->open(bytes_to, buffers, deadline);
      wrapped_->post(deadline);
    } else {
      wrapped_->expect(peer, kMore);
    }
    if (dies) {
      // Gloo's thread reads what the peer has sent meanwhile. If bytes are unread when the process
      // ends, the kernel resets the connection instead of closing it.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      kill(getpid(), SIGKILL);
    }
    kill(getpid(), SIGSTOP);
    if (!sends) wrapped_->receive(peer, deadline);
  }

  Fault step() {
    const Fault fault = next_fault();
    if (fault == Fault::kKill) kill(getpid(), SIGKILL);
    if (fault == Fault::kStop) kill(getpid(), SIGSTOP);
    if (fault == Fault::kError) hook_now.load()->fail("a fault was ordered");
    return fault;
  }

  const std::unique_ptr<Communicator> wrapped_;
  std::vector<std::byte> altered_;
};

std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> wrapped) {
  return std::make_unique<Faulty>(std::move(wrapped));
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
