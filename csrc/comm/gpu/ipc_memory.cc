#include "comm/gpu/ipc_memory.h"

#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

using device::OwnEvent;
using device::Queue;

constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS; HIP has the same

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
  explicit HandleReader(const std::string& text) : text_(text) {}
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
  const std::string& text_;
  size_t at_ = 0;
};

// A context that is gone has taken its memory along.
bool context_is_gone(const Queue& queue) {
  try {
    const device::InContext here(queue.driver(), queue.context());
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace

PeerMemory::PeerMemory(const Queue& queue, const device::IpcMemory& handle)
    : driver_(&queue.driver()), context_(queue.context()) {
  GPU(*driver_, open_ipc_memory, &memory_, handle, kLazyPeerAccess);
}

PeerMemory::~PeerMemory() {
  if (memory_ == 0) return;
  device::release_in(*driver_, context_, [&] { driver_->close_ipc_memory(memory_); });
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : driver_(other.driver_), context_(other.context_), memory_(std::exchange(other.memory_, 0)) {}

IpcGroupMemory::IpcGroupMemory(const Queue& queue, const IpcLayout& layout, IpcLog log)
    : queue_(queue), layout_(layout), log_(std::move(log)) {
  const device::Driver& driver = queue.driver();
  opened_.memory = device::allocate_device(driver, layout.bytes());
  for (size_t slot = 0; slot < layout.slots; ++slot) opened_.ready.emplace_back(driver, true);
  for (size_t i = 0; i < layout.size * layout.slots; ++i) {
    opened_.consumed.emplace_back(driver, true);
  }
  handles_ = write_handles();
}

IpcGroupMemory::~IpcGroupMemory() {
  if (stream_ends_) close_peers();
  if (shown_ || !stream_ends_) keep();
}

// What is kept lies in a list that lives as long as the process: nothing of it is destroyed, and
// leak checkers of the host see that it is meant.
void IpcGroupMemory::keep() noexcept {
  static std::mutex mutex;
  static auto* kept = new std::vector<Opened>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    kept->push_back(std::move(opened_));
  }
  if (!log_ || context_is_gone(queue_)) return;
  try {
    log_(str_of(layout_.bytes() >> 20,
                " MiB of GPU memory stay allocated until this process ends, ",
                "because peers may still have them open, and the driver calls it undefined to free "
                "them then: ",
                why_));
  } catch (const std::exception&) {  // no memory for the text
  }
}

std::string IpcGroupMemory::write_handles() const {
  const device::Driver& driver = queue_.driver();
  HandleWriter shown;
  device::IpcMemory handle{};
  GPU(driver, get_ipc_memory, &handle, reinterpret_cast<device::Pointer>(memory()));
  shown.add(&handle, sizeof handle);
  for (const std::vector<OwnEvent>* events : {&opened_.ready, &opened_.consumed}) {
    for (const OwnEvent& event : *events) {
      device::IpcEvent one{};
      GPU(driver, get_ipc_event, &one, event.get());
      shown.add(&one, sizeof one);
    }
  }
  return shown.text();
}

void IpcGroupMemory::open(size_t rank, const std::string& handles) {
  const device::Driver& driver = queue_.driver();
  HandleReader reader(handles);
  Peer peer{PeerMemory(queue_, reader.take<device::IpcMemory>()), {}, {}};
  for (size_t slot = 0; slot < layout_.slots; ++slot) {
    peer.ready.emplace_back(driver, reader.take<device::IpcEvent>());
  }
  for (size_t of = 0; of < layout_.size; ++of) {
    for (size_t slot = 0; slot < layout_.slots; ++slot) {
      const auto handle = reader.take<device::IpcEvent>();
      if (of == rank) peer.consumed.emplace_back(driver, handle);
    }
  }
  opened_.peers.push_back(std::make_unique<Peer>(std::move(peer)));
}

}  // namespace cgx
