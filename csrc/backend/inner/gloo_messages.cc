#include "backend/inner/gloo_messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/gloo/connections.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

// Gloo's tags have 31 bits. Headers have the lower half, and the caller's tag there; the few
// programs with larger tags share some, and a header that names another tag is an error. Values
// have the upper half: with a tag below kOwnTags the tag itself and 21 bits of a hash of type and
// length, so that two of these tags never meet; with others a hash of all three. The last are
// reserved (comm/gloo/connections.h).
constexpr int64_t kHeaders = int64_t{1} << 30;
constexpr int64_t kOwnTags = 256, kShapes = int64_t{1} << 21;
constexpr int64_t kHashed = kOwnTags * kShapes, kReserved = kGlooReservedTags;
static_assert(2 * kHashed == kHeaders);

// `x` spread over 0 to `range` - 1 (the finalizer of splitmix64).
int64_t spread(uint64_t x, int64_t range) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int64_t>((x ^ (x >> 31)) % static_cast<uint64_t>(range));
}

int header_tag(int tag) {
  return static_cast<int>(tag < kHeaders ? tag : spread(static_cast<uint64_t>(tag), kHeaders));
}

int values_tag(int tag, const MessageShape& shape) {
  const uint64_t what =
      static_cast<uint64_t>(shape.values) << 8 | static_cast<uint64_t>(shape.dtype);
  const int64_t place = tag < kOwnTags ? tag * kShapes + spread(what, kShapes)
                                       : kHashed + spread(what ^ static_cast<uint64_t>(tag) << 32,
                                                          kHashed - kReserved);
  return static_cast<int>(kHeaders + place);
}

struct Header {
  int64_t tag, dtype, values;
};

// Values of no more bytes travel behind their header: a second message of Gloo takes longer than two
// copies of them. Both sides agree on that if they agree on the shape. Longer ones travel before it, so
// that one wait sees the end of both.
constexpr size_t kBehindHeader = size_t{64} << 10;

bool behind_header(const at::Tensor& tensor) { return tensor.nbytes() <= kBehindHeader; }

// Memory of a header and of `bytes` behind it.
at::Tensor header_memory(size_t bytes) {
  return at::empty({static_cast<int64_t>(sizeof(Header) + bytes)}, at::TensorOptions(at::kByte));
}

at::Tensor header_of(const at::Tensor& tensor, const MessageShape& shape, int tag) {
  const size_t behind = behind_header(tensor) ? tensor.nbytes() : 0;
  const Header header{tag, static_cast<int64_t>(shape.dtype), shape.values};
  at::Tensor memory = header_memory(behind);
  auto* bytes = memory.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &header, sizeof header);
  if (behind > 0) std::memcpy(bytes + sizeof header, tensor.const_data_ptr(), behind);
  return memory;
}

// The time that is left of a wait. 0 is "as the group", as Gloo has it.
class Patience {
 public:
  explicit Patience(milliseconds timeout)
      : limit_(timeout), deadline_(Deadline::after(std::max(timeout, milliseconds(0)))) {}
  milliseconds left() const {
    if (limit_ == c10d::kUnsetTimeout || limit_ == kNoTimeout) return limit_;
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_.left());
    return std::max(left, milliseconds(1));
  }

 private:
  const milliseconds limit_;
  const Deadline deadline_;
};

}  // namespace

// A transfer of Gloo, whose wait() succeeds once only.
class GlooMessages::Transfer {
 public:
  void post(WorkPtr work) { work_ = std::move(work); }
  bool wait(milliseconds timeout) {
    if (!ended_ && work_) ended_ = work_->wait(timeout);
    return ended_ || !work_;
  }
  void abort() const {
    if (work_) work_->abort();
  }
  int source() const { return work_ ? work_->sourceRank() : -1; }

 private:
  WorkPtr work_;  // null: nothing is to be moved
  bool ended_ = false;
};

// One side of a message: a header and values, which are waited for one after the other, until both
// are there.
class GlooMessages::OneSide : public c10d::Work {
 public:
  explicit OneSide(c10d::OpType op) : Work(-1, op) {}

  bool wait(milliseconds timeout) override {
    std::lock_guard<std::mutex> one(waiting_);
    if (done_) return true;  // what the tensor holds now is the caller's
    try {
      done_ = wait_for_both(timeout);
    } catch (...) {
      finish(std::current_exception());
      throw;
    }
    if (done_) finish();
    return done_;
  }

 protected:
  virtual bool wait_for_both(milliseconds timeout) = 0;

 private:
  std::mutex waiting_;
  bool done_ = false;  // guarded by waiting_
};

class GlooMessages::Sent final : public OneSide {
 public:
  Sent(WorkPtr header, WorkPtr values) : OneSide(c10d::OpType::SEND) {
    header_.post(std::move(header));
    values_.post(std::move(values));
  }
  void abort() override {
    header_.abort();
    values_.abort();
  }

 protected:
  bool wait_for_both(milliseconds timeout) override {
    const Patience patience(timeout);
    return header_.wait(patience.left()) && values_.wait(patience.left());
  }

 private:
  Transfer header_, values_;
};

// What a receive expects, and the header that has come for it.
struct GlooMessages::Expected {
  int rank, tag;
  MessageShape shape;
  at::Tensor tensor;
  at::Tensor header = header_memory(kBehindHeader);

  void compare(int source) const {
    Header sent;
    std::memcpy(&sent, header.const_data_ptr<uint8_t>(), sizeof sent);
    if (sent.tag != tag) {
      throw MismatchError(str_of("rank ", source, " sends a message with the tag ", sent.tag,
                                 ", which is taken for the tag ", tag, " of rank ", rank,
                                 ": tags of 2^30 and more are not told apart; use smaller ones"));
    }
    const MessageShape theirs{static_cast<at::ScalarType>(sent.dtype), sent.values};
    if (theirs == shape) return;
    throw MismatchError(message_disagreement(source, theirs, rank, shape, tag));
  }

  // Of values that do not come behind the header.
  void post_values(Transfer& values, c10d::Backend& gloo, int peer) const {
    if (behind_header(tensor)) return;
    std::vector<at::Tensor> one = {tensor};
    values.post(gloo.recv(one, peer, values_tag(tag, shape)));
  }

  // Values that came behind the header, which has been compared.
  void copy_values() const {
    if (tensor.numel() == 0 || !behind_header(tensor)) return;
    std::memcpy(tensor.mutable_data_ptr(), header.const_data_ptr<uint8_t>() + sizeof(Header),
                tensor.nbytes());
  }
};

class GlooMessages::Received final : public OneSide {
 public:
  Received(const BackendPtr& gloo, Expected expected, int peer)
      : OneSide(c10d::OpType::RECV), expected_(std::move(expected)), peer_(peer) {
    std::vector<at::Tensor> header = {expected_.header};
    expected_.post_values(values_, *gloo, peer);
    header_.post(gloo->recv(header, peer, header_tag(expected_.tag)));
  }
  void abort() override {
    header_.abort();
    values_.abort();
  }
  int sourceRank() const override { return peer_; }

 protected:
  bool wait_for_both(milliseconds timeout) override {
    const Patience patience(timeout);
    if (!header_.wait(patience.left())) return false;
    expected_.compare(peer_);
    expected_.copy_values();
    return values_.wait(patience.left());
  }

 private:
  const Expected expected_;
  const int peer_;
  Transfer header_, values_;
};

// A receive whose transfers are posted when its turn has come.
class GlooMessages::InTurn final : public OneSide {
 public:
  InTurn(BackendPtr gloo, Expected expected, int peer)
      : OneSide(peer == kAnyRank ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV),
        gloo_(std::move(gloo)),
        expected_(std::move(expected)),
        peer_(peer) {}

  // On a thread of its own: waits for the header, then posts the receive of the values.
  void take_turn() {
    std::exception_ptr error;
    bool posted = false;
    try {
      {
        std::lock_guard<std::mutex> lock(state_);
        if (!aborted_) {
          std::vector<at::Tensor> header = {expected_.header};
          const int tag = header_tag(expected_.tag);
          header_.post(peer_ == kAnyRank ? gloo_->recvAnysource(header, tag)
                                         : gloo_->recv(header, peer_, tag));
        }
      }
      if (!aborted_ && header_.wait(kNoTimeout)) {
        const int source = peer_ == kAnyRank ? header_.source() : peer_;
        expected_.compare(source);
        std::lock_guard<std::mutex> lock(state_);
        if (!aborted_) {
          source_ = source;
          expected_.post_values(values_, *gloo_, source);
          posted = true;
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard<std::mutex> lock(state_);
      over_ = true;
      posted_ = posted;
      error_ = error;
      gloo_.reset();  // a work that is kept must not keep Gloo
    }
    turned_.notify_all();
  }

  void abort() override {
    std::lock_guard<std::mutex> lock(state_);
    aborted_ = true;
    header_.abort();
    values_.abort();
  }

  int sourceRank() const override {
    std::lock_guard<std::mutex> lock(state_);
    return source_;
  }

 protected:
  bool wait_for_both(milliseconds timeout) override {
    const Patience patience(timeout);
    {
      std::unique_lock<std::mutex> lock(state_);
      const auto over = [this] { return over_; };
      // Without a limit of its own the wait ends with that of the header.
      if (timeout == c10d::kUnsetTimeout || timeout == kNoTimeout) {
        turned_.wait(lock, over);
      } else if (!turned_.wait_for(lock, timeout, over)) {
        throw std::runtime_error(
            str_of("Timed out waiting ", timeout.count(), "ms for a message to come"));
      }
      if (error_) std::rethrow_exception(error_);
      if (!posted_) return false;
    }
    expected_.copy_values();
    return values_.wait(patience.left());
  }

 private:
  BackendPtr gloo_;
  const Expected expected_;
  const int peer_;
  mutable std::mutex state_;  // guards what follows, and the posting of transfers
  std::condition_variable turned_;
  std::atomic<bool> aborted_{false};
  bool over_ = false, posted_ = false;
  std::exception_ptr error_;
  int source_ = -1;
  Transfer header_, values_;
};

// More receives from any rank than this, each with a tag of its own, wait for each other.
constexpr size_t kMostThreads = 64;

GlooMessages::GlooMessages(int rank)
    : rank_(rank), threads_(std::make_unique<TaskQueue>("cgx-receive", kMostThreads)) {}

GlooMessages::~GlooMessages() {
  if (threads_) close();
}

WorkPtr GlooMessages::send(const BackendPtr& gloo, const at::Tensor& tensor,
                           const MessageShape& shape, int peer, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, "cgx: send: the tag is ", tag, "; allowed: 0 or more");
  std::vector<at::Tensor> header = {header_of(tensor, shape, tag)}, one = {tensor};
  WorkPtr values;
  if (!behind_header(tensor)) values = gloo->send(one, peer, values_tag(tag, shape));
  return c10::make_intrusive<Sent>(gloo->send(header, peer, header_tag(tag)), std::move(values));
}

WorkPtr GlooMessages::receive(const BackendPtr& gloo, const at::Tensor& tensor,
                              const MessageShape& shape, int peer, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, "cgx: recv: the tag is ", tag, "; allowed: 0 or more");
  Expected expected{rank_, tag, shape, tensor};
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!closed_, "cgx: recv on rank ", rank_, ": the process group has been destroyed");
  const auto waiting = turns_.find(header_tag(tag));
  if (peer != kAnyRank && waiting == turns_.end()) {
    return c10::make_intrusive<Received>(gloo, std::move(expected), peer);
  }
  auto work = c10::make_intrusive<InTurn>(gloo, std::move(expected), peer);
  if (waiting != turns_.end()) {
    waiting->second.push_back(work);
    return work;
  }
  const int turn = header_tag(tag);
  turns_[turn].push_back(work);
  if (!threads_->submit([this, turn] { run_turns(turn); })) {
    turns_.erase(turn);
    TORCH_CHECK(false, "cgx: recv from any rank on rank ", rank_,
                ": the machine gives no thread that could wait for the sender");
  }
  return work;
}

void GlooMessages::run_turns(int tag) {
  for (;;) {
    c10::intrusive_ptr<InTurn> next;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      next = turns_.at(tag).front();
    }
    next->take_turn();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = turns_.at(tag);
    queue.pop_front();
    if (queue.empty()) {
      turns_.erase(tag);
      return;
    }
  }
}

void GlooMessages::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (const auto& [tag, queue] : turns_) {
      for (const auto& work : queue) work->abort();
    }
  }
  threads_->close();
}

void GlooMessages::abandon() { (void)threads_.release(); }

}  // namespace cgx
