#include "comm/gpu/ipc.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gpu/placed.h"

namespace cgx {
namespace {

using device::Queue;

constexpr std::chrono::milliseconds kLeaveWait{500};

// Follows the header in a control message: the place of the message in the receiver's memory.
struct MessagePlace {
  uint64_t bytes;
  uint64_t slot;
};
static_assert(kIpcControlBytes == Messages::kPayloadOffset + sizeof(MessagePlace));

class GpuIpc final : public Communicator {
 public:
  GpuIpc(const Queue& queue, std::unique_ptr<Communicator> control, const IpcLayout& layout,
         size_t capacity, std::unique_ptr<IpcGroupMemory> shared)
      : queue_(queue),
        control_(std::move(control)),
        layout_(layout),
        capacity_(capacity),
        shared_(std::move(shared)),
        receivers_(layout.slots),
        shown_(layout.size) {}

  ~GpuIpc() override {
    // Work of this rank that is still on its stream uses the memory, also that of peers.
    if (!queue_.finish("the last messages of a group")) {
      shared_->not_closed(str_of("rank ", called(rank()), ": its stream does not come to its end"));
      shared_->keep_everything();
      return;
    }
    shared_->close_peers();
    try {
      leave();
      shared_->closed_by_peers();
    } catch (const std::exception& e) {  // a peer is late, gone, or somewhere else
      shared_->not_closed(e.what());
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
    broadcast_ = shared_->memory() + layout_.outbox(slot()) + kShift;
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
    if (!opened_.empty()) queue_.record(shared_->ready(slot()));
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
    return {shared_->memory() + offset + kShift, place.bytes, control.data};
  }

  Message peek(int peer, const Deadline& deadline) override {
    const Message control = control_->peek(peer, deadline);
    check_here(control, peer);
    return {nullptr, control.bytes, control.data};
  }

  void release(int peer) override {
    const auto from = static_cast<size_t>(peer);
    queue_.record(shared_->consumed(from, shown_[from]));
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

  const IpcGroupMemory::Peer& peer(size_t rank) const {
    return shared_->peer(rank < static_cast<size_t>(this->rank()) ? rank : rank - 1);
  }

  // Address of this exchange's message in a peer's memory.
  std::byte* inbox_at(size_t to) const {
    return peer(to).memory.data() + layout_.inbox(static_cast<size_t>(rank()), slot());
  }

  // Tells the peers, by a message of a header alone, that this rank has closed their memory, and
  // waits until all of them have said the same, at most kLeaveWait.
  void leave() {
    const Deadline soon = Deadline::after(kLeaveWait);
    std::byte* header = control_->open_broadcast(kPayloadOffset, soon);
    std::memset(header, 0, kPayloadOffset);
    control_->post(soon);
    for (int p = 0; p < size(); ++p) {
      if (p == rank()) continue;
      // A message that this rank has not read says nothing of what the peer has open.
      for (bool left = false; !left; control_->release(p)) {
        left = is_goodbye(control_->receive(p, soon));
      }
    }
  }

  static bool is_goodbye(const Message& control) { return control.bytes == kPayloadOffset; }

  // PeerLostError for the message of a peer that has left.
  void check_here(const Message& control, int peer) const {
    if (!is_goodbye(control)) return;
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
  const std::unique_ptr<IpcGroupMemory> shared_;
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
                                           const Deadline& deadline, std::string& why_not,
                                           IpcLog log) {
  const int rank = control->rank(), size = control->size();
  const IpcLayout layout(size, control->in_flight(), stride_of(capacity));
  const device::InContext here(queue.driver(), queue.context());
  std::unique_ptr<IpcGroupMemory> shared;
  std::string error;
  try {
    shared = std::make_unique<IpcGroupMemory>(queue, layout, std::move(log));
  } catch (const ResourceError& e) {
    error = e.what();
  }
  why_not = first_error(rendezvous, "gpu-memory", rank, size, error, deadline);
  if (!why_not.empty()) return nullptr;
  shared->shown();
  rendezvous.set(str_of("gpu-handles/", rank), shared->handles());
  for (int p = 0; p < size; ++p) {
    if (p == rank) continue;
    const std::string theirs = rendezvous.get(str_of("gpu-handles/", p), deadline);
    if (!error.empty()) continue;
    try {
      shared->open(static_cast<size_t>(rank), theirs);
    } catch (const ResourceError& e) {
      error = str_of("memory of rank ", p, ": ", e.what());
    }
  }
  why_not = first_error(rendezvous, "gpu-opened", rank, size, error, deadline);
  if (!why_not.empty()) {
    // Some have opened what others have shown: none frees its memory before all have closed it.
    shared->close_peers();
    first_error(rendezvous, "gpu-closed", rank, size, "", deadline);
    shared->closed_by_peers();
    return nullptr;
  }
  return std::make_unique<GpuIpc>(queue, std::move(control), layout, capacity, std::move(shared));
}

}  // namespace cgx
