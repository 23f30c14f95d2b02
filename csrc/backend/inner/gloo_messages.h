// Sends and receives between ranks over Gloo, whose lengths are compared before a value moves.
//
// Gloo does not compare: a longer message ends the process of its receiver, and a shorter one
// leaves the rest of the tensor unset. So each message has a header with its type and its number of
// values. Up to 64 KiB of values travel behind it, in one message of Gloo: most of the time of a
// short one is Gloo's own. More travel before it, with a tag that depends on type and number:
//
//   sender     more: values, tag v(tag, type, n) ----> receiver   both sides post both transfers at
//              header, up to 64 KiB, tag h(tag) ----->            once: no round trip is added
//
// The receiver has room for 64 KiB behind each header, whatever it expects, and copies what came to
// its tensor in wait(), after the comparison.
//
// GlooMessages with one tag keep their order. Values of another length than the receiver's do not match
// its buffer; the header tells the difference, and wait() throws. A receive from any rank learns from
// the header who sends, and posts the receive of the values then, on a thread of its own. Until it
// has, later receives with that tag wait for their turn: the message belongs to the first of them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "backend/adapters/torch_types.h"
#include "backend/p2p/message_shape.h"
#include "backend/work/task_queue.h"

namespace cgx {

/// Thread-safe. Tensors are dense, on the CPU, of types that Gloo moves; works hold them. wait() of
/// a receive throws MismatchError if the message has another type or number of values. ValueError
/// for a tag below 0.
class GlooMessages {
 public:
  static constexpr int kAnyRank = -1;

  /// `rank`: of this process in the group, for errors.
  explicit GlooMessages(int rank);
  ~GlooMessages();

  WorkPtr send(const BackendPtr& gloo, const at::Tensor& tensor, const MessageShape& shape,
               int peer, int tag);
  /// `peer`: kAnyRank to receive from whoever sends first; sourceRank() of the work tells who.
  WorkPtr receive(const BackendPtr& gloo, const at::Tensor& tensor, const MessageShape& shape,
                  int peer, int tag);

  /// Ends the receives whose sender is not known yet. Nothing is received in turn afterwards.
  void close();
  /// In a forked child: leaks the threads, which stayed in the parent.
  void abandon();

 private:
  // gloo_messages.cc defines these.
  class Transfer;
  struct Expected;
  class OneSide;
  class Sent;
  class Received;
  class InTurn;

  /// Runs the receives of a tag one after the other, until all have run.
  void run_turns(int tag);

  const int rank_;
  std::unique_ptr<TaskQueue> threads_;
  std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  std::map<int, std::deque<c10::intrusive_ptr<InTurn>>> turns_;  // by tag; no empty ones
};

}  // namespace cgx
