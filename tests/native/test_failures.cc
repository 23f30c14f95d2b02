// Waits end: at the deadline, when a peer leaves, after an abort; and the first cause stays.
#include <thread>

#include "check.h"
#include "groups.h"
#include "machinery/slot_access.h"

namespace cgx::native {
namespace {

using Clock = std::chrono::steady_clock;

// A message to all peers.
void broadcast(Communicator& comm, size_t bytes) {
  std::byte* memory = comm.open_broadcast(bytes, patience());
  std::fill(memory, memory + bytes, std::byte{1});
  comm.post(patience());
}

}  // namespace

TEST(failure_deadline) {
  for (CommunicatorKind communicator : kKinds) {
    Group group = make_group(communicator, 3, 1000);
    const auto start = Clock::now();
    const std::string text = error_of<TimeoutError>([&] { group.ranks[0]->receive(2, soon(200)); });
    CHECK(Clock::now() - start >= std::chrono::milliseconds(195));
    CHECK(contains(text, "rank 0") && contains(text, "2"), text);
    // Broken: here and on the others, with the first cause.
    error_of<TimeoutError>([&] { group.ranks[0]->open_broadcast(1, patience()); });
    if (!group.network) {
      CHECK(contains(error_of<TimeoutError>([&] { group.ranks[1]->receive(0, patience()); }),
                     "rank 0 failed: "));
    } else {
      error_of<Error>([&] { group.ranks[1]->receive(0, patience()); });
    }
  }
}

TEST(failure_abort_from_another_thread) {
  for (CommunicatorKind communicator : kKinds) {
    for (int aborter : {0, 2}) {
      Group group = make_group(communicator, 3, 1000);
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        group.ranks[static_cast<size_t>(aborter)]->abort(
            {FailureKind::kAborted, "the user said so"});
      });
      // All wait: 0 and 1 for messages, 2 for room.
      std::exception_ptr error;
      try {
        run_ranks(3, [&](int rank) {
          Communicator& comm = *group.ranks[static_cast<size_t>(rank)];
          const std::string text = error_of<AbortedError>([&] {
            for (;;) {
              if (rank == 2 && !group.network) {
                broadcast(comm, 10);
                continue;
              }
              comm.receive((rank + 1) % 3, patience());
              comm.release((rank + 1) % 3);
            }
          });
          CHECK(contains(text, "the user said so"), text);
        });
      } catch (...) {
        error = std::current_exception();
      }
      other.join();
      if (error) std::rethrow_exception(error);
    }
  }
}

TEST(failure_peer_leaves) {
  for (CommunicatorKind communicator : kKinds) {
    Group group = make_group(communicator, 3, 1000);
    broadcast(*group.ranks[2], 10);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.ranks[2].reset();
    });
    std::string text;
    std::exception_ptr error;
    try {
      Communicator& comm = *group.ranks[0];
      int received = 0;
      text = error_of<PeerLostError>([&] {
        for (;; ++received) {
          CHECK(comm.receive(2, patience()).bytes == 10);
          comm.release(2);
        }
      });
      // What it had sent before it left is still there, where memory outlives the sender.
      CHECK(received == 1 || (received == 0 && group.network));
    } catch (...) {
      error = std::current_exception();
    }
    other.join();
    if (error) std::rethrow_exception(error);
    CHECK(contains(text, "2"), text);
    error_of<Error>([&] { group.ranks[1]->receive(0, patience()); });
  }
}

TEST(failure_all_at_once) {
  // Every rank reports its own failure at the same time: one of them is the cause on all.
  for (CommunicatorKind communicator : {CommunicatorKind::kInProcess, CommunicatorKind::kShm}) {
    for (int round = 0; round < 20; ++round) {
      Group group = make_group(communicator, 4, 100);
      std::vector<std::string> texts(4);
      run_ranks(4, [&](int rank) {
        Communicator& comm = *group.ranks[static_cast<size_t>(rank)];
        comm.abort({FailureKind::kMismatch, str_of("cause ", rank)});
        texts[static_cast<size_t>(rank)] =
            error_of<MismatchError>([&] { comm.open_broadcast(1, patience()); });
      });
      const std::string cause = texts[0].substr(texts[0].find("cause "));
      for (const std::string& text : texts) CHECK(contains(text, cause), text);
    }
  }
}

TEST(failure_texts_of_any_length_cross_the_memory) {
  for (size_t length : {0, 1, 1007, 1008, 1009, 100000}) {
    Group group = make_group(CommunicatorKind::kInProcess, 2, 100);
    const std::string text(length, 'x');
    group.ranks[0]->abort({FailureKind::kResource, text});
    const std::string told =
        error_of<ResourceError>([&] { group.ranks[1]->receive(0, patience()); });
    CHECK(contains(told, text.substr(0, 990)), length);  // the rest is said of it
  }
  for (const char* operation : {"all_gather_into_tensor", "connection of GPUs", ""}) {
    const Failure whole{FailureKind::kTimeout, "two\n  lines", 3, {operation, 7}};
    const Failure again = unpack_failure(pack_failure(whole));
    CHECK(again.kind == whole.kind && again.text == whole.text && again.rank == 3);
    CHECK(again.call.operation == operation && again.call.number == 7);
  }
  for (const char* packed : {"", " ", "7", "99999999999999999999 x", "-1 y", "2 text", "2",
                             "2 0 1 99 short", "2 0 1 -1 x", "2 0 1 5 abc", "2 0 1 5"}) {
    const Failure failure = unpack_failure(packed);
    error_of<Error>([&] { throw_failure(failure); });
  }
}

TEST(failure_damaged_shared_memory) {
  using Access = SlotExchangeTestAccess;
  const uint64_t huge = ~uint64_t{0};
  struct Damage {
    uint64_t offset, bytes, posted;
  };
  for (CommunicatorKind communicator : {CommunicatorKind::kInProcess, CommunicatorKind::kShm}) {
    for (const Damage& damage : {Damage{8, 0, 1}, Damage{8, 1001, 1}, Damage{9, 10, 1},
                                 Damage{huge - 55, 10, 1}, Damage{64 * 1000 + 8, 10, 1},
                                 Damage{8, huge, 1}, Damage{8, 10, 3}, Damage{8, 10, huge}}) {
      Group group = make_group(communicator, 2, 1000);
      Access::announce(dynamic_cast<SlotExchange&>(*group.ranks[1]), 0, damage.offset, damage.bytes,
                       damage.posted);
      const std::string text =
          error_of<MismatchError>([&] { group.ranks[0]->receive(1, patience()); });
      CHECK(contains(text, "damaged"), text);
      error_of<MismatchError>([&] { group.ranks[1]->receive(0, patience()); });
    }
    Group group = make_group(communicator, 2, 1000);
    broadcast(*group.ranks[0], 10);
    broadcast(*group.ranks[0], 10);
    Access::seen(dynamic_cast<SlotExchange&>(*group.ranks[1]), 0).released = 99;
    CHECK(contains(error_of<MismatchError>([&] { broadcast(*group.ranks[0], 10); }), "damaged"));
  }
}

TEST(failure_half_written) {
  // The writer of a failure died in the middle of it.
  Group group = make_group(CommunicatorKind::kInProcess, 2, 100);
  SlotHeader& header = SlotExchangeTestAccess::header(dynamic_cast<SlotExchange&>(*group.ranks[0]));
  header.failure_state = SlotHeader::kBeingWritten;
  error_of<PeerLostError>([&] { group.ranks[1]->receive(0, patience()); });
  // And one that wrote nonsense.
  Group other = make_group(CommunicatorKind::kInProcess, 2, 100);
  SlotHeader& bad = SlotExchangeTestAccess::header(dynamic_cast<SlotExchange&>(*other.ranks[0]));
  bad.failure_kind = 4000000000u;
  bad.failure_rank = -2000000000;
  bad.failure_length = 4000000000u;
  bad.failure_state = SlotHeader::kWritten;
  error_of<Error>([&] { other.ranks[1]->receive(0, patience()); });
}

}  // namespace cgx::native
