// Exact all-reduces over direct transfers: right on every communicator that has them, refused where
// ranks disagree, and memory of the caller is the caller's again after a failure.
#include <algorithm>
#include <thread>

#include "check.h"
#include "data.h"
#include "groups.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

constexpr CommunicatorKind kDirect[] = {CommunicatorKind::kInProcess, CommunicatorKind::kRelay,
                                        CommunicatorKind::kLazyRelay};

EngineOptions direct_options() {
  EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
  options.direct_from = 1;
  options.direct_chunk = 1024;
  return options;
}

EngineGroup direct_engines(int size, CommunicatorKind communicator) {
  return make_engines(std::vector<std::string>(static_cast<size_t>(size), "a"), direct_options(),
                      communicator, CommunicatorKind::kInProcess);
}

std::shared_ptr<const Plan> plan_of(Engine& engine, size_t count, DType dtype) {
  return engine.plan_all_reduce({{count, raw_codec()}}, dtype);
}

}  // namespace

TEST(direct_sums_on_all_communicators) {
  uint64_t seed = 0;
  for (int size : {2, 3, 5}) {
    for (CommunicatorKind communicator : kDirect) {
      EngineGroup engines = direct_engines(size, communicator);
      for (const auto& network : engines.networks)
        network->set_delay(std::chrono::microseconds(300), seed);
      for (size_t count : {1, 15, 16, 17, 100, 767, 768, 769, 5003}) {
        for (DType dtype : kDTypes) {
          const bool average = ++seed % 2 == 0;
          std::vector<std::vector<float>> inputs;
          std::vector<std::vector<std::byte>> data;
          for (int rank = 0; rank < size; ++rank) {
            const auto x = values(count, static_cast<int>(seed % kPatterns),
                                  seed * 64 + static_cast<uint64_t>(rank));
            data.push_back(tensor_of(x, dtype));
            inputs.push_back(values_of(data.back(), dtype));
          }
          run_ranks(size, [&](int rank) {
            Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
            auto& mine = data[static_cast<size_t>(rank)];
            const auto plan = plan_of(engine, count, dtype);
            CHECK(plan->algorithm == Algorithm::kDirect);
            engine.run(*plan, mine.data(), mine.data(), average, patience());
          });
          // fp32 in rank order, by hand.
          std::vector<float> sum = inputs.front();
          for (int rank = 1; rank < size; ++rank) {
            for (size_t i = 0; i < count; ++i) sum[i] += inputs[static_cast<size_t>(rank)][i];
          }
          if (average) {
            for (float& value : sum) value /= static_cast<float>(size);
          }
          const auto expected = tensor_of(sum, dtype);
          for (int rank = 0; rank < size; ++rank) {
            CHECK(data[static_cast<size_t>(rank)] == expected, str_of(size, " ranks, ", count));
          }
        }
      }
      for (const auto& network : engines.networks) CHECK(network->overruns() == 0);
    }
  }
}

TEST(direct_needs_a_communicator_that_has_it) {
  error_of<ConfigError>([] { direct_engines(2, CommunicatorKind::kShm); });
  Group group = make_group(CommunicatorKind::kShm, 2, 1000);
  std::byte value{};
  CHECK(!group.ranks[0]->direct());
  error_of<ConfigError>([&] { group.ranks[0]->send_from(1, 0, &value, 1); });
  error_of<ConfigError>([&] { group.ranks[0]->receive_into(1, 0, &value, 1, 1); });
  for (CommunicatorKind communicator : kDirect) {
    Group direct = make_group(communicator, 2, 1000);
    CHECK(direct.ranks[0]->direct());
    for (int lane : {-1, Communicator::kDirectLanes}) {
      error_of<ConfigError>([&] { direct.ranks[0]->send_from(1, lane, &value, 1); });
    }
    error_of<ConfigError>([&] { direct.ranks[0]->send_from(0, 0, &value, 1); });
  }
}

TEST(direct_lanes_do_not_meet) {
  for (CommunicatorKind communicator : kDirect) {
    Group group = make_group(communicator, 2, 1000);
    const std::vector<std::byte> one(100, std::byte{1}), two(100, std::byte{2});
    std::vector<std::byte> first(100), second(100);
    Communicator &sender = *group.ranks[0], &receiver = *group.ranks[1];
    auto a = sender.send_from(1, 0, one.data(), one.size());
    auto b = sender.send_from(1, 1, two.data(), two.size());
    auto d = receiver.receive_into(0, 1, second.data(), 100, 100);
    auto c = receiver.receive_into(0, 0, first.data(), 100, 100);
    receiver.finish(*d, 0, patience());
    receiver.finish(*c, 0, patience());
    sender.finish(*a, 1, patience());
    sender.finish(*b, 1, patience());
    CHECK(first == one && second == two);
  }
}

TEST(direct_ranks_that_disagree_are_told_and_nothing_is_overrun) {
  struct Side {
    size_t count;
    bool average, compressed;
  };
  // Sizes of one class of lengths and of two; another operation; a codec.
  const Side sides[][2] = {{{5000, false, false}, {5001, false, false}},
                           {{5000, false, false}, {90000, false, false}},
                           {{5000, false, false}, {5000, true, false}},
                           {{5000, false, false}, {5000, false, true}}};
  for (CommunicatorKind communicator :
       {CommunicatorKind::kRelay, CommunicatorKind::kLazyRelay, CommunicatorKind::kInProcess}) {
    for (const auto& pair : sides) {
      for (int odd : {0, 2}) {
        EngineGroup engines = direct_engines(3, communicator);
        std::vector<std::string> texts(3);
        run_ranks(3, [&](int rank) {
          const Side& side = pair[rank == odd ? 1 : 0];
          Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
          std::vector<float> data(side.count, 1.0F);
          const auto codec = side.compressed ? make_maxmin({4, 64}) : raw_codec();
          const auto plan = engine.plan_all_reduce({{side.count, codec}}, DType::kFloat32);
          try {
            engine.run(*plan, data.data(), data.data(), side.average, soon(20000));
          } catch (const Error& e) {
            texts[static_cast<size_t>(rank)] = e.what();
          }
          // The tensor is gone from here on: nobody may touch it.
        });
        for (const std::string& text : texts) {
          CHECK(contains(text, "ranks disagree") && contains(text, str_of("rank ", odd, " runs")),
                text);
        }
        for (const auto& network : engines.networks) CHECK(network->overruns() == 0);
      }
    }
  }
}

TEST(direct_memory_is_let_go_when_a_connection_ends) {
  for (CommunicatorKind communicator : {CommunicatorKind::kRelay, CommunicatorKind::kLazyRelay}) {
    for (int operations = 0; operations < 60; operations += 3) {
      EngineGroup engines = direct_engines(3, communicator);
      engines.networks.front()->fail_after(1, operations);
      run_ranks(3, [&](int rank) {
        Engine& engine = *engines.ranks[static_cast<size_t>(rank)];
        // Freed at once after the failure: a sanitizer sees what comes late.
        auto data = std::make_unique<std::vector<float>>(6000, 1.0F);
        const auto plan = plan_of(engine, data->size(), DType::kFloat32);
        try {
          engine.run(*plan, data->data(), data->data(), false, soon(20000));
          CHECK(*std::min_element(data->begin(), data->end()) == 3.0F);
        } catch (const PeerLostError&) {
        } catch (const AbortedError&) {
        }
      });
      CHECK(engines.networks.front()->overruns() == 0);
    }
  }
}

TEST(direct_waits_end) {
  for (CommunicatorKind communicator : kDirect) {
    // A peer that does not come.
    EngineGroup late = direct_engines(2, communicator);
    std::vector<float> data(5000, 1.0F);
    const auto plan = plan_of(*late.ranks[0], data.size(), DType::kFloat32);
    const std::string text = error_of<TimeoutError>(
        [&] { late.ranks[0]->run(*plan, data.data(), data.data(), false, soon(200)); });
    CHECK(contains(text, "all_reduce number 1") && contains(text, "rank 1"), text);
    // One that has said that it comes, and does not.
    Group group = make_group(communicator, 2, 1000);
    std::byte value{};
    auto transfer = group.ranks[0]->receive_into(1, 0, &value, 1, 1);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.ranks[1]->abort({FailureKind::kAborted, "the user said so"});
    });
    const std::string heard =
        error_of<Error>([&] { group.ranks[0]->finish(*transfer, 1, soon(20000)); });
    other.join();
    CHECK(contains(heard, "the user said so"), heard);
    // A live one, while this rank's own watch gives the call up for the death of a third.
    Group third = make_group(communicator, 3, 1000);
    auto waited_for = third.ranks[0]->receive_into(1, 0, &value, 1, 1);
    std::thread watch([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      third.ranks[0]->abort({FailureKind::kPeerLost, "the process of rank 2 has ended"});
    });
    const std::string told =
        error_of<PeerLostError>([&] { third.ranks[0]->finish(*waited_for, 1, soon(20000)); });
    watch.join();
    CHECK(contains(told, "the process of rank 2 has ended"), told);
  }
}

}  // namespace cgx::native
