// The relay over a library that lies, loses its peers, and is slow.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/relay/current_wait.h"
#include "comm/relay/lengths.h"
#include "comm/relay/memory.h"
#include "comm/relay/relay.h"
#include "groups.h"
#include "machinery/stress.h"

namespace cgx::native {

// A group that once sent long messages has many buffers: short ones must not go round all of them.
TEST(relay_takes_the_buffer_that_was_used_last) {
  RelayPool pool;
  std::vector<RelayBuffer> buffers;
  for (int i = 0; i < 5; ++i) buffers.push_back(pool.take(10000));
  for (RelayBuffer& buffer : buffers) pool.give(std::move(buffer));
  RelayBuffer last = pool.take(9000);
  const std::byte* memory = last.data();
  for (int i = 0; i < 10; ++i) {
    pool.give(std::move(last));
    last = pool.take(static_cast<size_t>(8000 - 100 * i));
    CHECK(last.data() == memory, "took another buffer the time ", i);
  }
  RelayBuffer other = pool.take(100);
  CHECK(other.data() != memory, "took one that is in use");
  CHECK(pool.bytes() == 5 * last.bytes(), pool.bytes(), " bytes in all");
}

TEST(relay_forged_lengths_are_refused) {
  for (bool lazy : {false, true}) {
    for (uint64_t length : {uint64_t{0}, uint64_t{1001}, uint64_t{1} << 40, ~uint64_t{0}}) {
      Group group =
          make_group(lazy ? CommunicatorKind::kLazyRelay : CommunicatorKind::kRelay, 2, 1000);
      group.network->forge_length(1, length);
      group.ranks[1]->open_broadcast(10, patience());
      group.ranks[1]->post(patience());
      const std::string text =
          error_of<MismatchError>([&] { group.ranks[0]->receive(1, patience()); });
      CHECK(contains(text, "announces a message of"), text);
      CHECK(group.network->overruns() == 0);
    }
  }
}

TEST(relay_classes_of_lengths_hold_their_lengths_and_have_tags_of_their_own) {
  relay::LengthClass before = relay::length_class(1);
  CHECK(before.tag >= relay::kClassTags && before.room == 1);
  auto check = [&](size_t bytes) {
    const relay::LengthClass found = relay::length_class(bytes);
    CHECK(found.room >= bytes && found.tag < relay::kTags, bytes);
    CHECK(found.room - bytes <= bytes / 8, bytes);
    // Lengths ascend: a class is the one before, or has another, larger tag and more room.
    CHECK((found.tag == before.tag) == (found.room == before.room), bytes);
    CHECK(found.tag >= before.tag && found.room >= before.room, bytes);
    before = found;
  };
  for (size_t bytes = 1; bytes < 20000; ++bytes) check(bytes);
  for (size_t bytes = 20000; bytes < size_t{1} << 47; bytes += bytes / 61) check(bytes);
}

TEST(relay_connections_that_end_at_any_point) {
  for (bool lazy : {false, true}) {
    for (int operations = 0; operations < 40; operations += 3) {
      Group group =
          make_group(lazy ? CommunicatorKind::kLazyRelay : CommunicatorKind::kRelay, 3, 60000);
      group.network->fail_after(1, operations);
      StressTask task;
      task.exchanges = 60;
      task.max_bytes = 20000;
      task.timeout_seconds = 60;
      error_of<Error>([&] { stress_group(group.pointers(), task); });
      CHECK(group.network->overruns() == 0);
      // Destroyed with transfers under way.
    }
  }
}

// As Gloo does with a send whose write fails on its own thread.
TEST(relay_waits_whose_error_the_library_has_lost_are_ended) {
  for (bool sending : {true, false}) {
    Group group = make_group(CommunicatorKind::kLazyRelay, 3, 60000);
    Communicator& comm = *group.ranks[0];
    group.network->break_silently(1);
    std::atomic<bool> over{false};
    std::string text;
    std::thread waits([&] {
      text = error_of<PeerLostError>([&] {
        if (sending) {
          comm.open_broadcast(40000, patience());
          comm.post(patience());
          comm.flush(patience());
        } else {
          comm.receive(1, patience());
        }
      });
      over = true;
    });
    auto now = std::chrono::steady_clock::now();
    while (!over) comm.check_wait(now += relay::CurrentWait::kPatience);
    waits.join();
    CHECK(contains(text, sending ? "sending to rank 1, " : "receiving from rank 1, "), text);
    CHECK(contains(text, "mock: the connection has broken"), text);
    CHECK(error_of<PeerLostError>([&] { comm.receive(2, patience()); }) == text);
  }
}

TEST(relay_waits_for_a_slow_rank_are_not_ended_though_others_have_gone) {
  Group group = make_group(CommunicatorKind::kLazyRelay, 3, 60000);
  group.network->break_silently(2);
  std::atomic<bool> over{false};
  std::thread waits([&] {
    group.ranks[0]->receive(1, patience());
    over = true;
  });
  auto now = std::chrono::steady_clock::now();
  for (int look = 0; look < 100; ++look) {
    group.ranks[0]->check_wait(now += relay::CurrentWait::kPatience);
    std::this_thread::yield();
  }
  CHECK(!over && !group.ranks[0]->failure());
  group.ranks[1]->open_broadcast(40000, patience());
  group.ranks[1]->post(patience());
  waits.join();
  CHECK(!group.ranks[0]->failure());
}

TEST(relay_gives_a_wait_up_a_second_after_its_connection_broke) {
  using std::chrono::milliseconds;
  relay::CurrentWait waits;
  const relay::CurrentWait::Clock::time_point start{std::chrono::hours(1)};
  CHECK(!waits.look(), "before any wait");
  waits.begin(3, "sending to", start);
  const auto seen = waits.look();
  CHECK(seen && seen->peer == 3 && seen->began == start);
  // It counts from the first time that the connection was found broken, however old the wait is.
  CHECK(!waits.give_up(*seen, start + milliseconds(60000)));
  CHECK(!waits.give_up(*seen, start + milliseconds(60999)));
  CHECK(waits.give_up(*seen, start + milliseconds(61000)));
  waits.end();
  CHECK(!waits.look());
  CHECK(!waits.give_up(*seen, start + milliseconds(61000)), "after the end of the wait");
  waits.begin(3, "sending to", start + milliseconds(61000));
  CHECK(!waits.give_up(*seen, start + milliseconds(62000)), "what was seen of another wait");
  const auto next = waits.look();
  CHECK(!waits.give_up(*next, start + milliseconds(62000)), "each wait has its second");
}

TEST(relay_messages_around_the_first_frame) {
  const size_t frame = kRelayEagerBytes - 8;
  Group group = make_group(CommunicatorKind::kRelay, 2, 4 * frame);
  for (size_t bytes : {size_t{1}, frame - 1, frame, frame + 1, 2 * frame, 4 * frame}) {
    run_ranks(2, [&](int rank) {
      Communicator& comm = *group.ranks[static_cast<size_t>(rank)];
      std::byte* memory = comm.open_broadcast(bytes, patience());
      for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(i * 7 + bytes);
      comm.post(patience());
      const Message beginning = comm.peek(1 - rank, patience());
      CHECK(beginning.bytes >= std::min(bytes, Communicator::kPayloadOffset));
      const Message message = comm.receive(1 - rank, patience());
      CHECK(message.bytes == bytes);
      for (size_t i = 0; i < bytes; ++i) {
        CHECK(message.data[i] == static_cast<std::byte>(i * 7 + bytes), i);
      }
      comm.release(1 - rank);
      comm.flush(patience());
    });
  }
}

}  // namespace cgx::native
