#include "comm/relay/relay.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/relay/frame.h"
#include "comm/relay/guarded_library.h"
#include "comm/relay/lengths.h"
#include "comm/relay/memory.h"
#include "comm/relay/receiver.h"
#include "comm/relay/sender.h"

namespace cgx {
namespace {

constexpr size_t kMaxCapacity = size_t{1} << 47;  // sizes are added up without looking for overflow

class Relay final : public Communicator {
 public:
  Relay(std::shared_ptr<PointToPoint> library, size_t capacity)
      : library_(std::move(library), capacity, [this](int rank) { return called(rank); }),
        receiver_(library_, pool_),
        sender_(library_, pool_, receiver_) {}
  ~Relay() override;

  int rank() const override { return library_.rank(); }
  int size() const override { return library_.size(); }
  const char* name() const override { return library_.name(); }
  size_t capacity() const override { return library_.capacity(); }
  size_t longest() const override { return kMaxCapacity; }
  void make_room(size_t bytes) override {
    if (bytes > kMaxCapacity) Communicator::make_room(bytes);
    library_.make_room(bytes);
  }
  int in_flight() const override { return relay::kExchanges; }
  bool announces() const override { return true; }
  bool matches_lengths() const override { return library_.classes(); }
  size_t frame_bytes() const override { return relay::kFrame; }
  size_t staging_bytes() const override { return pool_.bytes(); }

  void begin_call() override;
  void expect(int peer, size_t bytes) override;
  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override;
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override;
  void post(const Deadline& deadline) override;
  void flush(const Deadline& deadline) override;
  Message receive(int peer, const Deadline& deadline) override;
  Message peek(int peer, const Deadline& deadline) override;
  void release(int peer) override;

  bool direct() const override { return library_.direct(); }
  size_t direct_room(size_t bytes) const override { return relay::length_class(bytes).room; }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override;
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override;
  void finish(Pending& transfer, int peer, const Deadline& deadline) override;

  void abort(const Failure& cause) override { library_.abort(cause); }
  std::optional<Failure> failure() override { return library_.failure(); }
  void check_wait(std::chrono::steady_clock::time_point now) override { library_.check_wait(now); }

 private:
  void check_direct(const char* what, int peer, int lane, size_t bytes);

  RelayPool pool_;
  relay::GuardedLibrary library_;
  relay::Receiver receiver_;
  relay::Sender sender_;
};

Relay::~Relay() {
  const bool sending = sender_.cancel();
  const bool receiving = receiver_.cancel();
  const bool ended = library_.close();
  if (ended || (!sending && !receiving)) return;
  sender_.abandon();
  receiver_.abandon();
}

void Relay::begin_call() {
  library_.begin_call();
  receiver_.begin_call();
  sender_.begin_call();
}

void Relay::expect(int peer, size_t bytes) {
  library_.check_usable();
  check_peer(peer, rank(), size());
  receiver_.expect(peer, bytes);
}

void Relay::open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
                 const Deadline& deadline) {
  library_.check_usable();
  check_exchange(bytes_to, rank(), size(), capacity());
  sender_.open(bytes_to, buffers, deadline);
}

std::byte* Relay::open_broadcast(size_t bytes, const Deadline& deadline) {
  library_.check_usable();
  check_broadcast(bytes, capacity());
  return sender_.open_broadcast(bytes, deadline);
}

void Relay::post(const Deadline& deadline) {
  (void)deadline;
  library_.check_usable();
  sender_.post();
}

void Relay::flush(const Deadline& deadline) {
  library_.check_usable();
  sender_.flush(deadline);
}

Message Relay::receive(int peer, const Deadline& deadline) {
  library_.check_usable();
  check_peer(peer, rank(), size());
  return receiver_.receive(peer, deadline);
}

Message Relay::peek(int peer, const Deadline& deadline) {
  library_.check_usable();
  check_peer(peer, rank(), size());
  return receiver_.peek(peer, deadline);
}

void Relay::release(int peer) {
  library_.check_usable();
  check_peer(peer, rank(), size());
  receiver_.release(peer);
}

void Relay::check_direct(const char* what, int peer, int lane, size_t bytes) {
  library_.check_usable();
  check_peer(peer, rank(), size());
  if (direct() && lane >= 0 && lane < kDirectLanes && bytes > 0) return;
  throw ConfigError(str_of("rank ", rank(), ": ", what, "(", peer, ", lane ", lane, ", ", bytes,
                           " bytes) over ", name(), direct() ? "; allowed: lanes 0 to " : ", which",
                           direct() ? str_of(kDirectLanes - 1, ", from 1 byte on")
                                    : std::string(" has no direct transfers")));
}

std::unique_ptr<Pending> Relay::send_from(int peer, int lane, const std::byte* data, size_t bytes) {
  check_direct("send_from", peer, lane, bytes);
  return library_.guarded(peer, "sending to", [&] {
    return library_.point_to_point().send(peer, relay::direct_class(bytes, lane).tag, data, bytes);
  });
}

std::unique_ptr<Pending> Relay::receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                             size_t room) {
  check_direct("receive_into", peer, lane, bytes);
  return library_.guarded(peer, "posting a receive from", [&] {
    return library_.point_to_point().receive(peer, relay::direct_class(bytes, lane).tag, data,
                                             room);
  });
}

void Relay::finish(Pending& transfer, int peer, const Deadline& deadline) {
  const char* what = "exchanging with";
  receiver_.wait_for(peer, what, deadline, [&] { return transfer.done() ? nullptr : &transfer; });
  library_.guarded(peer, what, [&] { transfer.wait(deadline); });
}

}  // namespace

std::unique_ptr<Communicator> make_relay_communicator(std::shared_ptr<PointToPoint> library,
                                                      size_t capacity) {
  if (capacity < 1 || capacity > kMaxCapacity) {
    throw ConfigError(
        str_of("capacity of a relay is ", capacity, " bytes, allowed: 1 to ", kMaxCapacity));
  }
  return std::make_unique<Relay>(std::move(library), capacity);
}

}  // namespace cgx
