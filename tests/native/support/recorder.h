// A communicator that keeps the headers of the first and of the last message that its rank posts,
// and else does what another one does.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace cgx::native {

/// The header of a message as it was posted, and the bytes of the whole message.
struct Posted {
  std::vector<std::byte> header;
  size_t bytes = 0;

  bool operator==(const Posted&) const = default;
};
struct Recorded {
  Posted first, last;
};

/// `recorded` must outlive the communicator.
class Recorder final : public Communicator {
 public:
  Recorder(std::unique_ptr<Communicator> real, Recorded& recorded)
      : real_(std::move(real)), recorded_(recorded) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const char* name() const override { return real_->name(); }
  size_t capacity() const override { return real_->capacity(); }
  size_t longest() const override { return real_->longest(); }
  void make_room(size_t bytes) override { real_->make_room(bytes); }
  int in_flight() const override { return real_->in_flight(); }
  bool announces() const override { return real_->announces(); }
  bool matches_lengths() const override { return real_->matches_lengths(); }
  size_t frame_bytes() const override { return real_->frame_bytes(); }
  void begin_call() override { real_->begin_call(); }
  void expect(int peer, size_t bytes) override { real_->expect(peer, bytes); }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline) override {
    real_->open(bytes_to, buffers, deadline);
    for (size_t p = 0; p < buffers.size(); ++p) lent(buffers[p], bytes_to[p]);
  }
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline) override {
    std::byte* message = real_->open_broadcast(bytes, deadline);
    lent(message, bytes);
    return message;
  }
  void post(const Deadline& deadline) override {
    if (message_ != nullptr) {
      recorded_.last = {{message_, message_ + std::min(bytes_, kPayloadOffset)}, bytes_};
      if (recorded_.first.bytes == 0) recorded_.first = recorded_.last;
    }
    message_ = nullptr;
    real_->post(deadline);
  }
  void flush(const Deadline& deadline) override { real_->flush(deadline); }

  Message receive(int peer, const Deadline& deadline) override {
    return real_->receive(peer, deadline);
  }
  Message peek(int peer, const Deadline& deadline) override { return real_->peek(peer, deadline); }
  void release(int peer) override { real_->release(peer); }

  bool direct() const override { return real_->direct(); }
  size_t direct_room(size_t bytes) const override { return real_->direct_room(bytes); }
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override {
    return real_->send_from(peer, lane, data, bytes);
  }
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override {
    return real_->receive_into(peer, lane, data, bytes, room);
  }
  void finish(Pending& transfer, int peer, const Deadline& deadline) override {
    real_->finish(transfer, peer, deadline);
  }
  void abort(const Failure& cause) override { real_->abort(cause); }
  std::optional<Failure> failure() override { return real_->failure(); }

 private:
  void lent(std::byte* message, size_t bytes) {
    if (message_ != nullptr || message == nullptr || bytes == 0) return;
    message_ = message;
    bytes_ = bytes;
  }

  std::unique_ptr<Communicator> real_;
  Recorded& recorded_;
  std::byte* message_ = nullptr;  // lent, and not posted yet
  size_t bytes_ = 0;
};

}  // namespace cgx::native
