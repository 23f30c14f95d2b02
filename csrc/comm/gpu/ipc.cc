#include "comm/gpu/ipc.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cgx {
namespace {

using device::Driver;
using device::OwnEvent;
using device::Queue;

constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS; HIP has the same
constexpr std::chrono::milliseconds kLeaveWait{500};
// Payloads are aligned as the kernels want them: 64 bytes.
constexpr size_t kShift = 64 - Communicator::kPayloadOffset;

// Follows the header in a control message: the place of the message in the receiver's memory.
struct MessagePlace {
  uint64_t bytes;
  uint64_t slot;
};
static_assert(kIpcControlBytes == Communicator::kPayloadOffset + sizeof(MessagePlace));

// Layout of a rank's memory: its inbox, then its broadcasts.
struct IpcLayout {
  size_t size, slots, stride;

  IpcLayout(int ranks, int in_flight, size_t capacity)
      : size(static_cast<size_t>(ranks)),
        slots(static_cast<size_t>(in_flight)),
        stride((capacity + kShift + 63) / 64 * 64) {}

  size_t inbox(size_t sender, size_t slot) const { return (sender * slots + slot) * stride; }
  size_t outbox(size_t slot) const { return (size * slots + slot) * stride; }
  // Whole pages of the driver: others would be shown what else lies in the last one.
  size_t bytes() const {
    constexpr size_t kPage = size_t{2} << 20;
    return ((size + 1) * slots * stride + kPage - 1) / kPage * kPage;
  }
};

// The text that a rank sends to the others: handles of its memory and events.
class HandleWriter {
 public:
  void add(const void* bytes, size_t n) { text_.append(static_cast<const char*>(bytes), n); }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

class HandleReader {
 public:
  explicit HandleReader(std::string text) : text_(std::move(text)) {}
  template <typename T>
  T take() {
    T value;
    if (at_ + sizeof value > text_.size()) {
      throw MismatchError("handles of a peer's GPU memory are too short");
    }
    std::memcpy(&value, text_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

 private:
  std::string text_;
  size_t at_ = 0;
};

// A peer's memory, opened here.
class PeerMemory {
 public:
  PeerMemory(const Queue& queue, const device::IpcMemory& handle) : queue_(&queue) {
    GPU(queue.driver(), open_ipc_memory, &memory_, handle, kLazyPeerAccess);
  }
  ~PeerMemory() {
    if (memory_ == 0) return;
    const Driver& driver = queue_->driver();
    device::release_in(driver, queue_->context(), [&] { driver.close_ipc_memory(memory_); });
  }
  PeerMemory(PeerMemory&& other) noexcept
      : queue_(other.queue_), memory_(std::exchange(other.memory_, 0)) {}
  PeerMemory& operator=(PeerMemory&&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(memory_); }

 private:
  const Queue* queue_;
  device::Pointer memory_ = 0;
};

// The memory and events of all ranks, as this one sees them.
struct GroupMemory {
  struct PeerSide {
    PeerMemory memory;
    std::vector<OwnEvent> ready;     // by slot: the peer's message is written
    std::vector<OwnEvent> consumed;  // by slot: the peer has read this rank's message
  };

  GroupMemory(const Queue& queue, const IpcLayout& layout)
      : memory(device::allocate_device(queue.driver(), layout.bytes())) {
    for (size_t slot = 0; slot < layout.slots; ++slot) ready.emplace_back(queue.driver(), true);
    for (size_t i = 0; i < layout.size * layout.slots; ++i) {
      consumed.emplace_back(queue.driver(), true);
    }
  }

  std::string handles(const Queue& queue) const {
    HandleWriter shown;
    device::IpcMemory handle{};
    GPU(queue.driver(), get_ipc_memory, &handle, reinterpret_cast<device::Pointer>(memory.get()));
    shown.add(&handle, sizeof handle);
    for (const std::vector<OwnEvent>* events : {&ready, &consumed}) {
      for (const OwnEvent& event : *events) {
        device::IpcEvent one{};
        GPU(queue.driver(), get_ipc_event, &one, event.get());
        shown.add(&one, sizeof one);
      }
    }
    return shown.text();
  }

  void open(const Queue& queue, const IpcLayout& layout, size_t rank, const std::string& handles) {
    HandleReader reader(handles);
    PeerSide peer{PeerMemory(queue, reader.take<device::IpcMemory>()), {}, {}};
    for (size_t slot = 0; slot < layout.slots; ++slot) {
      peer.ready.emplace_back(queue.driver(), reader.take<device::IpcEvent>());
    }
    for (size_t of = 0; of < layout.size; ++of) {
      for (size_t slot = 0; slot < layout.slots; ++slot) {
        const auto handle = reader.take<device::IpcEvent>();
        if (of == rank) peer.consumed.emplace_back(queue.driver(), handle);
      }
    }
    peers.push_back(std::make_unique<PeerSide>(std::move(peer)));
  }

  std::shared_ptr<std::byte> memory;
  std::vector<OwnEvent> ready;     // by slot: this rank's messages are written
  std::vector<OwnEvent> consumed;  // by sender and slot: this rank has read the message
  std::vector<std::unique_ptr<PeerSide>> peers;
};

class GpuIpc final : public Communicator {
 public:
  GpuIpc(const Queue& queue, std::unique_ptr<Communicator> control, const IpcLayout& layout,
         size_t capacity, std::unique_ptr<GroupMemory> shared)
      : queue_(queue),
        control_(std::move(control)),
        layout_(layout),
        capacity_(capacity),
        shared_(std::move(shared)),
        receivers_(layout.slots),
        shown_(layout.size) {}

  ~GpuIpc() override {
    // Work of this rank that is still on its stream uses the memory.
    if (!queue_.finish("the last messages of a group")) return;
    try {
      shared_->peers.clear();
      leave();
    } catch (const std::exception&) {
      // A peer is late, gone, or somewhere else.
    }
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  const char* name() const override { return "cuda-ipc"; }
  size_t capacity() const override { return capacity_; }
  int in_flight() const override { return control_->in_flight(); }
  bool on_device() const override { return true; }
  bool through_host() const override { return false; }
  void begin_call() override { control_->begin_call(); }
  void expect(int peer, size_t bytes) override {
    if (bytes > 0) control_->expect(peer, kIpcControlBytes);
  }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    size_t all = 0;
    control_bytes_.assign(bytes_to.size(), 0);
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      all += bytes_to[p];
      control_bytes_[p] = bytes_to[p] > 0 ? kIpcControlBytes : 0;
    }
    check_room(all);
    control_->open(control_bytes_, headers_, deadline);
    begin_exchange();
    buffers.assign(bytes_to.size(), nullptr);
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      if (bytes_to[p] == 0) continue;
      buffers[p] = inbox_at(p) + kShift;
      opened_.push_back({static_cast<int>(p), buffers[p], headers_[p], bytes_to[p]});
    }
    wait_for_readers();
  }

  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    check_room(bytes);
    std::byte* header = control_->open_broadcast(bytes > 0 ? kIpcControlBytes : 0, deadline);
    begin_exchange();
    if (bytes == 0) return nullptr;
    broadcast_ = shared_->memory.get() + layout_.outbox(slot()) + kShift;
    for (int p = 0; p < size(); ++p) {
      if (p != rank()) opened_.push_back({p, broadcast_, header, bytes});
    }
    wait_for_readers();
    return broadcast_;
  }

  std::byte* header_of(std::byte* message) override {
    for (const IpcMessage& sent : opened_) {
      if (sent.message == message) return sent.header;
    }
    throw Error("header_of() of a message that is not open");
  }

  void post(const Deadline& deadline) override {
    for (const IpcMessage& sent : opened_) {
      if (broadcast_ != nullptr) {
        queue_.copy(inbox_at(static_cast<size_t>(sent.peer)) + kShift + kPayloadOffset,
                    broadcast_ + kPayloadOffset, sent.bytes - kPayloadOffset);
      }
      const MessagePlace place{sent.bytes, slot()};
      std::memcpy(sent.header + kPayloadOffset, &place, sizeof place);
    }
    if (!opened_.empty()) queue_.record(shared_->ready[slot()]);
    control_->post(deadline);
    if (opened_.empty()) return;
    receivers_[slot()].clear();
    for (const IpcMessage& sent : opened_) receivers_[slot()].push_back(sent.peer);
    opened_.clear();
    ++exchange_;
  }

  Message receive(int peer, const Deadline& deadline) override {
    const Message control = control_->receive(peer, deadline);
    check_here(control, peer);
    MessagePlace place{};
    const std::string who = str_of("rank ", called(rank()), ": message of rank ", called(peer));
    if (control.bytes != kIpcControlBytes) {
      throw MismatchError(
          str_of(who, " has a header of ", control.bytes, " bytes, expected ", kIpcControlBytes));
    }
    std::memcpy(&place, control.data + kPayloadOffset, sizeof place);
    if (place.slot >= layout_.slots || place.bytes < kPayloadOffset || place.bytes > capacity_) {
      throw MismatchError(str_of(who, " says that it is of ", place.bytes, " bytes in slot ",
                                 place.slot, "; allowed: up to ", capacity_, " in slot 0 to ",
                                 layout_.slots - 1));
    }
    queue_.wait_for(this->peer(static_cast<size_t>(peer)).ready[place.slot]);
    shown_[static_cast<size_t>(peer)] = place.slot;
    const size_t offset = layout_.inbox(static_cast<size_t>(peer), place.slot);
    return {shared_->memory.get() + offset + kShift, place.bytes, control.data};
  }

  Message peek(int peer, const Deadline& deadline) override {
    const Message control = control_->peek(peer, deadline);
    check_here(control, peer);
    return {nullptr, control.bytes, control.data};
  }

  void release(int peer) override {
    const auto from = static_cast<size_t>(peer);
    queue_.record(shared_->consumed[from * layout_.slots + shown_[from]]);
    control_->release(peer);
  }

  void flush(const Deadline& deadline) override { control_->flush(deadline); }
  void abort(const Failure& cause) override { control_->abort(cause); }
  std::optional<Failure> failure() override { return control_->failure(); }
  std::optional<PeerFingerprint> compare_call(const Fingerprint& fingerprint) override {
    return control_->compare_call(fingerprint);
  }
  void forget_call(uint64_t number) override { control_->forget_call(number); }
  void finish_call(uint64_t number) override { control_->finish_call(number); }
  bool sees_ended() const override { return control_->sees_ended(); }
  std::vector<int> ended_peers(uint64_t number) override { return control_->ended_peers(number); }

 private:
  struct IpcMessage {
    int peer;
    std::byte* message;
    std::byte* header;
    size_t bytes;
  };

  size_t slot() const { return exchange_ % layout_.slots; }

  const GroupMemory::PeerSide& peer(size_t rank) const {
    return *shared_->peers[rank < static_cast<size_t>(this->rank()) ? rank : rank - 1];
  }

  // Address of this exchange's message in a peer's memory.
  std::byte* inbox_at(size_t to) const {
    return peer(to).memory.data() + layout_.inbox(static_cast<size_t>(rank()), slot());
  }

  // Memory must be freed after the peers have closed it: each sends a message of a header alone
  // when it has. Peers that leave later are waited for, at most kLeaveWait.
  void leave() {
    const Deadline soon = Deadline::after(kLeaveWait);
    std::byte* header = control_->open_broadcast(kPayloadOffset, soon);
    std::memset(header, 0, kPayloadOffset);
    control_->post(soon);
    for (int p = 0; p < size(); ++p) {
      if (p == rank()) continue;
      control_->receive(p, soon);
      control_->release(p);
    }
  }

  // PeerLostError for the message of a peer that has left.
  void check_here(const Message& control, int peer) const {
    if (control.bytes != kPayloadOffset) return;
    throw PeerLostError(str_of("rank ", called(rank()), " waited for rank ", called(peer),
                               " to send a message: it has closed its communicator"));
  }

  void check_room(size_t bytes) const {
    if (bytes > capacity_) {
      throw ConfigError(
          str_of("an exchange of ", bytes, " bytes over ", name(), ", which takes ", capacity_));
    }
  }

  void begin_exchange() {
    opened_.clear();
    broadcast_ = nullptr;
  }

  // The readers of what lay in the slot before have recorded their events: `control` has seen them
  // release the slot.
  void wait_for_readers() {
    if (opened_.empty()) return;
    for (int reader : receivers_[slot()]) {
      queue_.wait_for(peer(static_cast<size_t>(reader)).consumed[slot()]);
    }
    receivers_[slot()].clear();
  }

  const Queue& queue_;
  const std::unique_ptr<Communicator> control_;
  const IpcLayout layout_;
  const size_t capacity_;
  const std::unique_ptr<GroupMemory> shared_;
  std::vector<std::vector<int>> receivers_;  // by slot, of the exchange that used it last
  std::vector<uint64_t> shown_;              // by peer: the slot of the message that is shown
  std::vector<size_t> control_bytes_;
  std::vector<std::byte*> headers_;
  std::vector<IpcMessage> opened_;
  std::byte* broadcast_ = nullptr;
  uint64_t exchange_ = 0;
};

// Every rank publishes whether a step went well; returns the error of the first rank that failed.
std::string first_error(Rendezvous& rendezvous, const std::string& step, int rank, int size,
                        const std::string& error, const Deadline& deadline) {
  rendezvous.set(str_of(step, "/", rank), error.empty() ? "+" : "-" + error);
  std::string first;
  for (int r = 0; r < size; ++r) {
    const std::string said = rendezvous.get(str_of(step, "/", r), deadline);
    if (first.empty() && said.front() == '-') first = str_of("rank ", r, ": ", said.substr(1));
  }
  return first;
}

}  // namespace

std::unique_ptr<Communicator> make_gpu_ipc(const Queue& queue,
                                           std::unique_ptr<Communicator>& control,
                                           Rendezvous& rendezvous, size_t capacity,
                                           const Deadline& deadline, std::string& why_not) {
  const int rank = control->rank(), size = control->size();
  const IpcLayout layout(size, control->in_flight(), capacity);
  const device::InContext here(queue.driver(), queue.context());
  std::unique_ptr<GroupMemory> shared;
  std::string handles, error;
  try {
    shared = std::make_unique<GroupMemory>(queue, layout);
    handles = shared->handles(queue);
  } catch (const ResourceError& e) {
    error = e.what();
  }
  why_not = first_error(rendezvous, "gpu-memory", rank, size, error, deadline);
  if (!why_not.empty()) return nullptr;
  rendezvous.set(str_of("gpu-handles/", rank), handles);
  for (int p = 0; p < size; ++p) {
    if (p == rank) continue;
    const std::string theirs = rendezvous.get(str_of("gpu-handles/", p), deadline);
    if (!error.empty()) continue;
    try {
      shared->open(queue, layout, static_cast<size_t>(rank), theirs);
    } catch (const ResourceError& e) {
      error = str_of("memory of rank ", p, ": ", e.what());
    }
  }
  why_not = first_error(rendezvous, "gpu-opened", rank, size, error, deadline);
  if (!why_not.empty()) return nullptr;
  return std::make_unique<GpuIpc>(queue, std::move(control), layout, capacity, std::move(shared));
}

}  // namespace cgx
