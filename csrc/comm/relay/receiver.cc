#include "comm/relay/receiver.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "comm/arguments.h"
#include "comm/futex.h"
#include "comm/relay/frame.h"

namespace cgx::relay {
namespace {

// Between two looks at transfers: first spin, then let others run, then sleep.
void back_off(int round) {
  if (round < 30) {
    cpu_relax();
  } else if (round < 130) {
    sched_yield();
  } else {
    const timespec pause{0, 50000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Receiver::Receiver(GuardedLibrary& library, RelayPool& pool)
    : library_(library),
      pool_(pool),
      stands_(library.point_to_point().lets_go()),
      sources_(static_cast<size_t>(library.size())) {}

bool Receiver::cancel() {
  bool busy = false;
  for (Source& in : sources_) {
    for (IncomingMessage& message : in.messages) {
      for (std::unique_ptr<Pending>* pending : {&message.first, &message.rest}) {
        busy = busy || (*pending && !(*pending)->done());
        pending->reset();
      }
    }
    in.standing.reset();
  }
  return busy;
}

void Receiver::abandon() {
  for (Source& in : sources_) {
    for (IncomingMessage& message : in.messages) {
      message.buffer.abandon();
      message.beginning.abandon();
    }
  }
}

void Receiver::begin_call() {
  for (Source& in : sources_) in.expected_in_call = false;
}

void Receiver::expect(int peer, size_t bytes) {
  Source& in = sources_[peer];
  const bool in_call = library_.in_call();
  const bool announced = !in_call || !in.expected_in_call;
  if (in_call && (bytes > library_.capacity() || (!announced && bytes == 0))) {
    throw ConfigError(str_of("rank ", library_.rank(), ": expect(", peer, ", ", bytes,
                             "): within a call the length must be given, allowed: 1 to ",
                             library_.capacity()));
  }
  in.expected_in_call = true;
  in.expected.push_back(
      {bytes, announced, announced && in_call && library_.classes() && bytes > 0});
  advance(peer);
}

void Receiver::need_next(int peer) {
  Source& in = sources_[peer];
  if (in.started > in.taken || !in.expected.empty()) return;
  if (library_.in_call() && in.expected_in_call) {
    throw ConfigError(str_of("rank ", library_.rank(), ": receive(", peer,
                             ") of a message that was not expected"));
  }
  expect(peer, 0);
}

void Receiver::start_receive(int peer) {
  Source& in = sources_[peer];
  IncomingMessage& message = in.message(in.started);
  const Expected next = in.expected.front();
  message.announced = next.announced;
  message.promise = next.promised ? next.bytes : 0;
  message.bytes = next.announced ? 0 : next.bytes;
  // What does not come with a first frame, and where it is put; payloads are aligned alike.
  const size_t place = next.announced ? kEager : kFrame;
  const bool has_rest = next.known() && kFrame + next.bytes > place;
  LengthClass rest;
  if (has_rest) rest = library_.class_of(kFrame + next.bytes - place, kAgreedTag);
  const bool stands = next.announced && in.standing;
  if (stands && !has_rest) {
    message.buffer = std::move(in.standing_buffer);
  } else {
    library_.guarded(peer, "making room for a message from",
                     [&] { message.buffer = pool_.take(place + rest.room); });
  }
  auto receive = [&](int tag, size_t offset, size_t bytes) {
    return library_.guarded(peer, "posting a receive from", [&] {
      return library_.point_to_point().receive(peer, tag, message.buffer.data() + offset, bytes);
    });
  };
  if (next.announced) {
    if (stands) {
      message.first = std::move(in.standing);
      if (has_rest) message.beginning = std::move(in.standing_buffer);
    } else {
      message.first = receive(kFirstTag, 0, kEager);
    }
    if (has_rest) message.rest = receive(rest.tag, kEager, rest.room);
    if (!next.known()) ++in.unknown;
  } else {
    message.first = receive(rest.tag, kFrame, rest.room);
  }
  in.expected.pop_front();
  ++in.started;
}

void Receiver::stand(int peer) {
  Source& in = sources_[peer];
  try {
    in.standing_buffer = pool_.take_small(kEager);
    in.standing =
        library_.point_to_point().receive(peer, kFirstTag, in.standing_buffer.data(), kEager);
  } catch (const std::exception&) {
    // The peer may have done its part and left. A call that needs it finds out.
    pool_.give(std::move(in.standing_buffer));
  }
}

void Receiver::join(IncomingMessage& message) {
  if (message.beginning.data() == nullptr) return;
  uint64_t bytes = 0;
  std::memcpy(&bytes, message.beginning.data(), kFrame);
  std::memcpy(message.buffer.data(), message.beginning.data(),
              bytes < kEager - kFrame ? kFrame + bytes : kEager);
  pool_.give(std::move(message.beginning));
}

// Looks at the length in a first frame that has come.
void Receiver::measure(int peer, IncomingMessage& message) {
  join(message);
  uint64_t bytes = 0;
  std::memcpy(&bytes, message.buffer.data(), kFrame);
  if (bytes == 0 || bytes > library_.capacity()) {
    library_.fail({FailureKind::kMismatch,
                   str_of("rank ", library_.called(library_.rank()), " over ", library_.name(),
                          ": rank ", library_.called(peer), " announces a message of ", bytes,
                          " bytes, allowed: 1 to ", library_.capacity())});
  }
  message.bytes = bytes;
  if (message.promise != 0) return;
  --sources_[peer].unknown;
  if (kFrame + bytes <= kEager) return;
  const LengthClass rest = library_.class_of(kFrame + bytes - kEager, kRestTag);
  library_.guarded(peer, "making room for a message from",
                   [&] { pool_.grow(message.buffer, kEager + rest.room, kEager); });
  message.rest = library_.guarded(peer, "posting a receive from", [&] {
    return library_.point_to_point().receive(peer, rest.tag, message.buffer.data() + kEager,
                                             rest.room);
  });
}

void Receiver::advance(int peer) {
  Source& in = sources_[peer];
  for (;;) {
    while (!in.expected.empty() && in.started - in.released < kIncoming) {
      // Receives of a class meet messages in their order: none may be posted before a rest whose
      // class is not known yet.
      if (in.unknown > 0 && in.expected.front().known()) break;
      start_receive(peer);
    }
    const uint64_t before = in.unknown;
    while (in.measured < in.started) {
      IncomingMessage& message = in.message(in.measured);
      if (message.announced) {
        if (!message.first->done()) break;
        library_.guarded(peer, "receiving from", [&] { message.first->wait(Deadline()); });
        measure(peer, message);
      }
      ++in.measured;
    }
    if (in.unknown == before) return;
  }
}

// Moves the messages of all but one peer on; returns whether looking again soon may move them
// further.
bool Receiver::advance_others(int peer) {
  bool under_way = false;
  for (int other = 0; other < library_.size(); ++other) {
    if (other == peer || other == library_.rank()) continue;
    Source& in = sources_[other];
    if (in.measured == in.started) continue;
    advance(other);
    under_way = under_way || in.measured < in.started;
  }
  return under_way;
}

// Waits for `pending` to its end, or only a little where the messages of other peers have to be
// looked at as well (`polls`, for the `round`th time).
void Receiver::wait_once(Pending& pending, const Wait& wait, bool polls, int round) {
  if (wait.deadline.expired()) {
    library_.fail({FailureKind::kTimeout,
                   str_of("rank ", library_.called(library_.rank()), " over ", library_.name(),
                          ", ", wait.what, " rank ", library_.called(wait.peer), ", waited ",
                          wait.started.elapsed_text(), ": deadline passed (set ",
                          wait.deadline.elapsed_text(), " ago)")});
  }
  if (polls) {
    back_off(round);
  } else {
    library_.wait(pending, wait.peer, wait.what, wait.deadline);
  }
}

// Where a transfer's end shows only in wait(): waits for the first frames of all peers that are to
// send and have not promised a length, so that the rests of all of them travel at once.
void Receiver::start_rests(const Deadline& deadline) {
  for (int peer = 0; peer < library_.size(); ++peer) {
    advance(peer);
    Source& in = sources_[peer];
    while (in.unknown > 0) {
      library_.wait(*in.message(in.measured).first, peer, "receiving from", deadline);
      advance(peer);
    }
  }
}

Receiver::Source& Receiver::next_of(int peer, const char* call) {
  Source& in = sources_[peer];
  if (in.taken != in.released) {
    throw ConfigError(str_of("rank ", library_.rank(), ": ", call, "(", peer,
                             ") before the release of its last message"));
  }
  need_next(peer);
  return in;
}

Message Receiver::receive(int peer, const Deadline& deadline) {
  Source& in = next_of(peer, "receive");
  const uint64_t number = in.taken;
  IncomingMessage& message = in.message(number);
  if (!library_.point_to_point().can_poll()) start_rests(deadline);
  wait_for(peer, "receiving from", deadline, [&]() -> Pending* {
    advance(peer);
    if (in.measured <= number) return message.first.get();
    return message.mismatched() || message.last()->done() ? nullptr : message.last();
  });
  if (message.mismatched()) {
    library_.fail({FailureKind::kMismatch,
                   str_of("rank ", library_.called(library_.rank()), " over ", library_.name(),
                          ": rank ", library_.called(peer), " announces a message of ",
                          message.bytes, " bytes, expected were ", message.promise)});
  }
  library_.guarded(peer, "receiving from", [&] { message.last()->wait(deadline); });
  in.taken = number + 1;
  return {message.buffer.data() + kFrame, message.bytes};
}

Message Receiver::peek(int peer, const Deadline& deadline) {
  Source& in = next_of(peer, "peek");
  const uint64_t number = in.taken;
  IncomingMessage& message = in.message(number);
  wait_for(peer, "receiving from", deadline, [&]() -> Pending* {
    advance(peer);
    return in.measured <= number || !message.first->done() ? message.first.get() : nullptr;
  });
  library_.guarded(peer, "receiving from", [&] { message.first->wait(deadline); });
  const std::byte* data = message.buffer.data() + kFrame;
  if (!message.announced) return {data, message.bytes};
  return {data, std::min<size_t>(message.bytes, kEager - kFrame)};
}

void Receiver::release(int peer) {
  Source& in = sources_[peer];
  if (in.taken == in.released) {
    throw ConfigError(
        str_of("rank ", library_.rank(), ": release(", peer, ") without receive(", peer, ")"));
  }
  IncomingMessage& message = in.message(in.released);
  message.first.reset();
  message.rest.reset();
  pool_.give(std::move(message.buffer));
  in.released = in.taken;
  advance(peer);
  if (stands_ && message.announced && library_.in_call() && !in.standing) stand(peer);
}

}  // namespace cgx::relay
