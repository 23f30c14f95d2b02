// The engine on the memory of a (stub) GPU: the bits of the engine on the host, over every
// communicator of a GPU, all algorithms and layouts of hosts.
#include <atomic>
#include <cstring>
#include <memory>

#include "check.h"
#include "data.h"
#include "gpu_groups.h"
#include "groups.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

std::vector<Layer> plan_layers_of(uint64_t seed) {
  Random random(seed);
  std::vector<Layer> layers;
  const size_t many = 1 + random(3);
  for (size_t i = 0; i < many; ++i) {
    const size_t count = random(8) == 0 ? random(4) : 1 + random(2500);
    const uint64_t kind = random(5);
    if (kind == 0) {
      layers.push_back({count, raw_codec()});
    } else if (kind == 1) {
      layers.push_back({count, make_codec(random(2) == 0 ? "bf16" : "fp16")});
    } else {
      const int64_t buckets[] = {1, 7, 64, 100, 512};
      layers.push_back(
          {count, make_maxmin({1 + static_cast<int>(random(8)), buckets[random(5)],
                               random(2) == 0 ? Rounding::kNearest : Rounding::kStochastic,
                               random(4) == 0, static_cast<int64_t>(random(3))})});
    }
  }
  return layers;
}

// All-reduces twice, so that slots are used again. By turns with residuals of both types, and none.
void check_all_reduce(const Hosts& hosts, Way intra, Way cross, Reduction reduction,
                      uint64_t seed) {
  const auto dtype = static_cast<DType>(seed % 3);
  EngineOptions options = options_of(reduction, 9000, 3000, 30000);
  options.intra_exact = seed % 2 == 0;
  options.checksum = seed % 5 == 0 && intra == Way::kStaged && cross == Way::kStaged;
  const std::vector<Layer> layers = plan_layers_of(seed);
  size_t count = 0;
  for (const Layer& layer : layers) count += layer.count;
  const Tensors inputs = inputs_of(hosts.size(), count, dtype, seed);
  // The host's communicators take fewer exchanges at once; that changes no bits.
  EngineGroup expected =
      make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
  GpuGroup gpus = make_gpus(hosts, options, intra, cross);
  run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const device::InContext here(Driver::get(), kContext);
    std::vector<std::byte> on_host = inputs[r];
    const OnDevice on_device(gpus.gpus[r]->queue, inputs[r]);
    const DType type = seed / 3 % 3 == 1 ? DType::kFloat32 : DType::kBFloat16;
    std::vector<std::byte> owed = tensor_of(values(count, 0, seed + r), type);
    const OnDevice owed_on_device(gpus.gpus[r]->queue, owed);
    const bool feedback = seed / 3 % 3 != 0;
    for (int turn = 0; turn < 2; ++turn) {
      const auto plan = expected.ranks[r]->plan_all_reduce(layers, dtype);
      const bool average = seed % 4 == 0;
      expected.ranks[r]->run(*plan, on_host.data(), on_host.data(), average, patience(),
                             std::nullopt, nullptr,
                             feedback ? Residual{owed.data(), type} : Residual{});
      const auto same = gpus.ranks[r]->plan_all_reduce(layers, dtype);
      gpus.ranks[r]->run(*same, on_device.data(), on_device.data(), average, patience(),
                         std::nullopt, nullptr,
                         feedback ? Residual{owed_on_device.data(), type} : Residual{});
    }
    CHECK(on_device.read() == on_host, "rank ", rank, ", seed ", seed);
    CHECK(owed_on_device.read() == owed, "residual of rank ", rank, ", seed ", seed);
  });
}

}  // namespace

TEST(gpu_engine_over_pinned_memory) {
  uint64_t seed = 0;
  for (const Hosts& hosts : layouts()) {
    for (Reduction reduction : {Reduction::kAuto, Reduction::kOneShot,
                                Reduction::kScatterReduceAllGather, Reduction::kRing}) {
      check_all_reduce(hosts, Way::kStaged, Way::kStaged, reduction, ++seed);
    }
  }
}

TEST(gpu_engine_over_ipc) {
  uint64_t seed = 100;
  for (const Hosts& hosts : layouts()) {
    for (Reduction reduction :
         {Reduction::kOneShot, Reduction::kScatterReduceAllGather, Reduction::kRing}) {
      check_all_reduce(hosts, Way::kIpc, Way::kStaged, reduction, ++seed);
    }
  }
}

TEST(gpu_engine_in_lockstep) {
  uint64_t seed = 200;
  for (const Hosts& hosts : {Hosts{"a", "b"}, Hosts{"a", "b", "c", "d", "e"},
                             Hosts{"a", "a", "b", "b"}, Hosts{"a", "a", "b", "b", "b", "c"}}) {
    for (Reduction reduction :
         {Reduction::kOneShot, Reduction::kScatterReduceAllGather, Reduction::kRing}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        check_all_reduce(hosts, Way::kIpc, Way::kLockstep, reduction, ++seed);
      }
    }
  }
}

TEST(gpu_engine_in_lockstep_with_empty_chunks) {
  // Fewer buckets than ranks: some own nothing.
  const std::vector<Layer> layers = {{100, make_maxmin({.bits = 4, .bucket_size = 64})}};
  for (Reduction reduction : {Reduction::kScatterReduceAllGather, Reduction::kRing}) {
    const EngineOptions options = options_of(reduction, 9000, 3000, 30000);
    const Hosts hosts = {"a", "b", "c", "d"};
    EngineGroup expected =
        make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
    GpuGroup gpus = make_gpus(hosts, options, Way::kIpc, Way::kLockstep);
    const Tensors inputs = inputs_of(4, 100, DType::kFloat32, 3);
    run_ranks(4, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const device::InContext here(Driver::get(), kContext);
      std::vector<std::byte> on_host = inputs[r];
      const OnDevice on_device(gpus.gpus[r]->queue, inputs[r]);
      const auto plan = expected.ranks[r]->plan_all_reduce(layers, DType::kFloat32);
      expected.ranks[r]->run(*plan, on_host.data(), on_host.data(), false, patience());
      gpus.ranks[r]->run(*plan, on_device.data(), on_device.data(), false, patience());
      CHECK(on_device.read() == on_host, "rank ", rank);
    });
  }
}

TEST(gpu_engine_scatters_and_gathers) {
  uint64_t seed = 300;
  for (const Hosts& hosts : layouts()) {
    for (Way cross : {Way::kStaged, Way::kLockstep}) {
      for (size_t shard : {1, 100, 1501}) {
        const auto dtype = static_cast<DType>(++seed % 3);
        const auto codec = make_maxmin({1 + static_cast<int>(seed % 8), seed % 5 == 0 ? 1 : 64});
        const size_t size = hosts.size();
        EngineOptions options = options_of(Reduction::kAuto, 9000, 3000, 30000);
        options.intra_exact = seed % 2 == 0;
        const Tensors inputs = inputs_of(size, shard * size, dtype, seed);
        EngineGroup expected =
            make_engines(hosts, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
        GpuGroup gpus = make_gpus(hosts, options, Way::kIpc, cross);
        run_ranks(static_cast<int>(size), [&](int rank) {
          const auto r = static_cast<size_t>(rank);
          const device::InContext here(Driver::get(), kContext);
          const size_t bytes = shard * size_of(dtype);
          std::vector<std::byte> part(bytes), whole(bytes * size);
          const Queue& queue = gpus.gpus[r]->queue;
          const OnDevice input(queue, inputs[r]), scattered(queue, part), gathered(queue, whole);
          const DType type = seed / 3 % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
          auto owed = tensor_of(values(shard * size, 0, seed + r), type);
          auto shard_owed = tensor_of(values(shard, 0, seed + r), type);
          const OnDevice owed_there(queue, owed), shard_owed_there(queue, shard_owed);
          for (int turn = 0; turn < 2; ++turn) {
            const auto scatter =
                expected.ranks[r]->plan_shards(Operation::kReduceScatter, shard, codec, dtype);
            const auto gather =
                expected.ranks[r]->plan_shards(Operation::kAllGather, shard, codec, dtype);
            const auto run = [&](Engine& engine, const Plan& plan, const void* from, void* to,
                                 std::byte* residual) {
              const bool feedback = seed % 4 != 0;
              engine.run(plan, from, to, plan.operation == Operation::kReduceScatter, patience(),
                         std::nullopt, nullptr, feedback ? Residual{residual, type} : Residual{});
            };
            run(*expected.ranks[r], *scatter, inputs[r].data(), part.data(), owed.data());
            run(*expected.ranks[r], *gather, part.data(), whole.data(), shard_owed.data());
            run(*gpus.ranks[r], *scatter, input.data(), scattered.data(), owed_there.data());
            run(*gpus.ranks[r], *gather, scattered.data(), gathered.data(),
                shard_owed_there.data());
          }
          CHECK(owed_there.read() == owed, "residual, rank ", rank, ", seed ", seed);
          CHECK(shard_owed_there.read() == shard_owed, "gather's, rank ", rank, ", seed ", seed);
          CHECK(scattered.read() == part, "scatter, rank ", rank, ", seed ", seed);
          CHECK(gathered.read() == whole, "gather, rank ", rank, ", seed ", seed);
        });
      }
    }
  }
}

TEST(gpu_engine_raises_on_nonfinite_values) {
  for (Way way : {Way::kStaged, Way::kIpc}) {
    for (const char* name : {"maxmin", "fp16"}) {
      EngineOptions options = options_of(Reduction::kScatterReduceAllGather, 9000, 3000, 30000);
      options.nonfinite = NonFinite::kRaise;
      const std::vector<Layer> layers = {
          {5000, (name[0] == 'm' ? make_maxmin({.bucket_size = 64}) : make_codec(name))}};
      GpuGroup gpus = make_gpus({"a", "a", "a"}, options, way, Way::kStaged);
      // Finite; a NaN; finite, but not in 16 bits.
      for (const float bad : {1.0f, __builtin_nanf(""), 65520.0f}) {
        std::atomic<int> raised{0};
        run_ranks(3, [&](int rank) {
          const auto r = static_cast<size_t>(rank);
          const device::InContext here(Driver::get(), kContext);
          std::vector<float> x(5000, 0.5f);
          if (rank == 1) x[4321] = bad;
          const OnDevice tensor(gpus.gpus[r]->queue, tensor_of(x, DType::kFloat32));
          const auto plan = gpus.ranks[r]->plan_all_reduce(layers, DType::kFloat32);
          try {
            gpus.ranks[r]->run(*plan, tensor.data(), tensor.data(), false, patience());
          } catch (const NonFiniteError&) {
            ++raised;
          }
        });
        const bool expected = !(bad == 1.0f || (bad == 65520.0f && name[0] == 'm'));
        CHECK(raised == (expected ? 3 : 0), name, ", ", bad, ": ", raised.load(), " ranks raised");
      }
    }
  }
}

TEST(gpu_engine_gives_up_at_its_deadline) {
  for (Way way : {Way::kStaged, Way::kIpc}) {
    EngineOptions options = options_of(Reduction::kOneShot, 9000, 3000, 30000);
    GpuGroup gpus = make_gpus({"a", "a"}, options, way, Way::kStaged);
    const device::InContext here(Driver::get(), kContext);
    const OnDevice tensor(gpus.gpus[0]->queue, std::vector<std::byte>(400));
    const auto plan = gpus.ranks[0]->plan_all_reduce({{100, raw_codec()}}, DType::kFloat32);
    const std::string text = error_of<TimeoutError>(
        [&] { gpus.ranks[0]->run(*plan, tensor.data(), tensor.data(), false, soon(300)); });
    CHECK(contains(text, "rank 1"), text);
  }
}

}  // namespace cgx::native
