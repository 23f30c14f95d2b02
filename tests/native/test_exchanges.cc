// Random exchanges with checked contents, over every communicator.
#include <string>

#include "check.h"
#include "groups.h"
#include "machinery/slot_access.h"
#include "machinery/stress.h"

namespace cgx::native {

TEST(exchange_random_messages) {
  for (CommunicatorKind communicator : kKinds) {
    for (int size = 1; size <= 5; ++size) {
      for (int call_length : {0, 7}) {
        Group group = make_group(communicator, size, 40000, 2 + size % 3);
        if (group.network) group.network->set_delay(std::chrono::microseconds(200), 5);
        StressTask task;
        task.exchanges = 60;
        task.seed = static_cast<uint64_t>(size);
        task.max_bytes = 30000;
        task.timeout_seconds = 120;
        task.call_length = call_length;
        const uint64_t checked = stress_group(group.pointers(), task);
        CHECK((checked > 0) == (size > 1), "size ", size);
        if (group.network) CHECK(group.network->overruns() == 0);
      }
    }
  }
}

TEST(exchange_messages_longer_than_the_capacity) {
  for (CommunicatorKind communicator : kKinds) {
    Group group = make_group(communicator, 3, 4000, 3);
    for (Communicator* comm : group.pointers()) {
      comm->make_room(100);  // no less than there is
      CHECK(comm->capacity() == 4000);
      error_of<ConfigError>([&] { comm->make_room(comm->longest() + 1); });
      comm->make_room(500000);
      CHECK(comm->capacity() == 500000);
    }
    StressTask task;
    task.exchanges = 60;
    task.seed = 5;
    task.max_bytes = 60000;
    task.timeout_seconds = 120;
    task.call_length = 7;
    CHECK(stress_group(group.pointers(), task) > 0);
  }
}

TEST(exchange_after_the_counters_of_the_bells_wrap) {
  for (CommunicatorKind communicator : {CommunicatorKind::kInProcess, CommunicatorKind::kShm}) {
    Group group = make_group(communicator, 3, 4096);
    for (Communicator* comm : group.pointers()) {
      SlotExchangeTestAccess::set_bell(dynamic_cast<SlotExchange&>(*comm), 0xffffffffu);
    }
    StressTask task;
    task.exchanges = 200;
    task.max_bytes = 1000;
    task.timeout_seconds = 120;
    CHECK(stress_group(group.pointers(), task) > 0);
  }
}

// Two ranks in step of which both sleep wake each other up again and again, some 50 us each: their
// waits are short, and only their own sleeps are in the way of shorter ones.
TEST(exchange_ranks_in_step_spin_again_after_one_was_late) {
  using Access = SlotExchangeTestAccess;
  using std::chrono::microseconds;
  Group group = make_group(CommunicatorKind::kShm, 2, 4096);
  auto& comm = dynamic_cast<SlotExchange&>(*group.ranks[0]);
  const auto limit = Access::spin_limit(comm);
  const auto late = limit + microseconds(700), short_wait = limit / 4;
  const auto least = Access::spin_after(comm, late, 20);
  CHECK(least <= microseconds(1), "spins for ", least.count(), " ns beside a late peer");
  CHECK(Access::spin_after(comm, short_wait, 20) == limit, "does not spin again");
  CHECK(Access::spin_after(comm, late, 20) == least, "spins beside a late peer");
}

TEST(exchange_wrong_use_is_named) {
  for (CommunicatorKind communicator : kKinds) {
    Group group = make_group(communicator, 2, 1000);
    Communicator& comm = *group.ranks[0];
    std::vector<std::byte*> buffers;
    auto refused = [&](const std::vector<size_t>& bytes_to) {
      return error_of<ConfigError>([&] { comm.open(bytes_to, buffers, patience()); });
    };
    CHECK(contains(refused({0}), "1 ranks"));
    CHECK(contains(refused({1, 0}), "to itself"));
    CHECK(contains(refused({0, 1001}), "1001"));
    CHECK(contains(refused({0, ~size_t{0}}), "does not fit"));
    error_of<ConfigError>([&] { comm.open_broadcast(1001, patience()); });
    error_of<ConfigError>([&] { comm.post(patience()); });
    error_of<ConfigError>([&] { comm.release(1); });
    for (int peer : {-1, 0, 2}) error_of<ConfigError>([&] { comm.receive(peer, patience()); });
    // Still usable.
    StressTask task;
    task.exchanges = 10;
    task.max_bytes = 100;
    CHECK(stress_group(group.pointers(), task) > 0);
  }
}

}  // namespace cgx::native
