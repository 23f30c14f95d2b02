#include "machinery/stress.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace cgx {
namespace {

// splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
struct Random {
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

uint64_t mix(uint64_t a, uint64_t b) { return Random{a ^ (b * 0xd1342543de82ef95 + 1)}(); }

struct Exchange {
  bool broadcast = false;
  std::vector<size_t> bytes_to;
};

// What `sender` sends in exchange number `index`.
Exchange exchange_of(const StressTask& task, size_t capacity, int size, int index, int sender) {
  Random random{mix(mix(task.seed, index), sender)};
  Exchange exchange;
  exchange.bytes_to.assign(size, 0);
  const uint64_t kind = random() % 8;
  if (size == 1 || kind == 0) return exchange;
  exchange.broadcast = kind <= 3;
  const size_t limit = std::max<size_t>(
      1, std::min(task.max_bytes, exchange.broadcast ? capacity : capacity / (size - 1)));
  // Small and large messages, and the borders.
  auto draw = [&]() -> size_t {
    const uint64_t r = random();
    switch (r % 8) {
      case 0:
        return limit;
      case 1:
      case 2:
      case 3:
        return 1 + (r >> 8) % std::min<size_t>(limit, 300);
      default:
        return 1 + (r >> 8) % limit;
    }
  };
  const size_t common = draw();
  for (int peer = 0; peer < size; ++peer) {
    if (peer == sender) continue;
    exchange.bytes_to[peer] = exchange.broadcast ? common : (random() % 4 == 0 ? 0 : draw());
  }
  return exchange;
}

Random stream_of(const StressTask& task, const Exchange& exchange, int index, int sender,
                 int receiver) {
  return {mix(mix(mix(~task.seed, index), sender), exchange.broadcast ? ~uint64_t{0} : receiver)};
}

void fill(Random random, std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(data + i, &word, std::min<size_t>(8, bytes - i));
  }
}

void check_alignment(const std::byte* data, int rank, const char* whose) {
  if ((reinterpret_cast<uintptr_t>(data) + Communicator::kPayloadOffset) % 64 != 0) {
    throw MismatchError(str_of("rank ", rank, ": ", whose, " memory is not aligned: ", data));
  }
}

class Runner {
 public:
  Runner(Communicator& comm, const StressTask& task)
      : comm_(comm),
        task_(task),
        deadline_(Deadline::after(
            std::chrono::nanoseconds(static_cast<int64_t>(task.timeout_seconds * 1e9)))) {}

  uint64_t run() {
    // Often several exchanges are posted before the first is received, as a pipelined reducer does.
    int received = 0;
    for (int index = 0; index < task_.exchanges; ++index) {
      if (task_.call_length > 0 && index % task_.call_length == 0) {
        while (received < index) receive(received++);
        comm_.begin_call();
        calls_.assign(comm_.size(), PeerInCall{});
      }
      expect(index);
      send(index);
      const int lag = static_cast<int>(mix(task_.seed ^ 77, index) % comm_.in_flight());
      while (received <= index - lag) receive(received++);
    }
    while (received < task_.exchanges) receive(received++);
    return checked_;
  }

 private:
  Exchange exchange(int index, int sender) const {
    return exchange_of(task_, comm_.capacity(), comm_.size(), index, sender);
  }

  std::vector<int> senders(int index) const {
    std::vector<int> peers;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer != comm_.rank() && exchange(index, peer).bytes_to[comm_.rank()] != 0)
        peers.push_back(peer);
    }
    Random random{mix(mix(task_.seed + 5, index), comm_.rank())};
    for (size_t i = peers.size(); i > 1; --i) std::swap(peers[i - 1], peers[random() % i]);
    return peers;
  }

  // Within a call, later messages are expected only when the first of the peer has been seen, but
  // for communicators that match lengths.
  struct PeerInCall {
    bool expected = false;
    bool seen = false;
    std::vector<size_t> held_back;
  };

  void expect(int index) {
    for (int peer : senders(index)) {
      const size_t bytes = exchange(index, peer).bytes_to[comm_.rank()];
      if (calls_.empty()) {
        comm_.expect(peer, 0);
        continue;
      }
      PeerInCall& call = calls_[peer];
      if (call.seen || !call.expected || comm_.matches_lengths()) {
        comm_.expect(peer, bytes);
      } else {
        call.held_back.push_back(bytes);
      }
      call.expected = true;
    }
  }

  void see_first(int peer) {
    if (calls_.empty() || calls_[peer].seen) return;
    comm_.peek(peer, deadline_);
    calls_[peer].seen = true;
    for (size_t bytes : calls_[peer].held_back) comm_.expect(peer, bytes);
  }

  void send(int index) {
    const int me = comm_.rank();
    const Exchange mine = exchange(index, me);
    if (mine.broadcast) {
      const size_t bytes = *std::max_element(mine.bytes_to.begin(), mine.bytes_to.end());
      std::byte* memory = comm_.open_broadcast(bytes, deadline_);
      check_alignment(memory, me, "lent");
      fill(stream_of(task_, mine, index, me, 0), memory, bytes);
    } else {
      std::vector<std::byte*> buffers;
      comm_.open(mine.bytes_to, buffers, deadline_);
      for (int peer = 0; peer < comm_.size(); ++peer) {
        if (mine.bytes_to[peer] == 0) continue;
        check_alignment(buffers[peer], me, "lent");
        fill(stream_of(task_, mine, index, me, peer), buffers[peer], mine.bytes_to[peer]);
      }
    }
    comm_.post(deadline_);
  }

  void receive(int index) {
    const int me = comm_.rank();
    for (int peer : senders(index)) {
      const Exchange sent = exchange(index, peer);
      see_first(peer);
      const Message message = comm_.receive(peer, deadline_);
      check_alignment(message.data, me, "received");
      if (message.bytes != sent.bytes_to[me]) {
        throw MismatchError(str_of("rank ", me, ": exchange ", index, " from rank ", peer, " has ",
                                   message.bytes, " bytes, expected ", sent.bytes_to[me]));
      }
      expected_.resize(message.bytes);
      fill(stream_of(task_, sent, index, peer, me), expected_.data(), message.bytes);
      if (std::memcmp(expected_.data(), message.data, message.bytes) != 0) {
        const auto at = std::mismatch(expected_.begin(), expected_.end(), message.data).first -
                        expected_.begin();
        throw MismatchError(str_of("rank ", me, ": exchange ", index, " from rank ", peer,
                                   " differs at byte ", at, " of ", message.bytes));
      }
      comm_.release(peer);
      ++checked_;
    }
  }

  Communicator& comm_;
  StressTask task_;
  Deadline deadline_;
  std::vector<std::byte> expected_;
  std::vector<PeerInCall> calls_;  // by peer; empty outside of calls
  uint64_t checked_ = 0;
};

}  // namespace

uint64_t stress_rank(Communicator& comm, const StressTask& task) {
  if (comm.capacity() < static_cast<size_t>(comm.size())) {
    throw ConfigError(str_of("capacity is ", comm.capacity(),
                             " bytes, allowed for this test: ", comm.size(), " or more"));
  }
  return Runner(comm, task).run();
}

uint64_t stress_group(const std::vector<Communicator*>& group, const StressTask& task) {
  std::mutex mutex;
  std::exception_ptr error;
  uint64_t sum = 0;
  std::vector<std::thread> threads;
  for (Communicator* comm : group) {
    threads.emplace_back([&, comm] {
      try {
        const uint64_t checked = stress_rank(*comm, task);
        std::lock_guard lock(mutex);
        sum += checked;
      } catch (...) {
        {
          std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
        }
        comm->abort({FailureKind::kAborted, "the stress test failed on this rank"});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return sum;
}

}  // namespace cgx
