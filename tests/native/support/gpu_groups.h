// Groups of engines on the memory of a (stub) GPU, over every communicator of a GPU; each rank is a
// thread with a stream of its own.
#pragma once

#include <barrier>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "codec/gpu/kernels.h"
#include "comm/gpu/ipc.h"
#include "comm/gpu/lockstep.h"
#include "comm/gpu/staged.h"
#include "device/queue.h"
#include "groups.h"
#include "reduce/engine.h"
#include "reduce/schedule/device_stages.h"
#include "reduce/schedule/two_levels.h"
#include "stub.h"

namespace cgx::native {

using device::Driver;
using device::Queue;

// Every rank of the tests has its own stream.
struct Gpu {
  Gpu() : in(Driver::get(), kContext), queue(Driver::get(), new_stream(Driver::get())) {
    kernels = std::make_unique<gpu::KernelModule>(queue.driver(), kernel_image(queue.driver()));
  }
  ~Gpu() { Driver::get().destroy_stream(queue.stream()); }
  const device::InContext in;
  const Queue queue;
  std::unique_ptr<gpu::KernelModule> kernels;
};

// Device memory with a tensor in it.
class OnDevice {
 public:
  OnDevice(const Queue& queue, const std::vector<std::byte>& tensor)
      : queue_(queue),
        bytes_(tensor.size()),
        memory_(device::allocate_device(queue.driver(), tensor.size())) {
    if (bytes_ > 0) std::memcpy(memory_.get(), tensor.data(), bytes_);
  }
  ~OnDevice() { queue_.synchronize("the test", patience()); }
  std::byte* data() const { return memory_.get(); }
  std::vector<std::byte> read() const {
    std::vector<std::byte> tensor(bytes_);
    queue_.synchronize("the test", patience());
    if (bytes_ > 0) std::memcpy(tensor.data(), memory_.get(), bytes_);
    return tensor;
  }

 private:
  const Queue& queue_;
  const size_t bytes_;
  const std::shared_ptr<std::byte> memory_;
};

// Collectives of threads: each waits for its stream, then all copy.
class Threads {
 public:
  explicit Threads(int size) : meeting(size), from(static_cast<size_t>(size)) {}
  std::barrier<> meeting;
  struct Send {
    const std::byte* data;
    std::vector<size_t> bytes_to;
  };
  std::vector<Send> from;
};

class ThreadCollectives final : public ByteCollectives {
 public:
  ThreadCollectives(const Queue& queue, std::shared_ptr<Threads> all, int rank)
      : queue_(queue), all_(std::move(all)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(all_->from.size()); }
  const char* name() const override { return "threads"; }
  std::unique_ptr<Ticket> all_to_all(const std::byte* from, const std::vector<size_t>& bytes_to,
                                     std::byte* to, const std::vector<size_t>& bytes_of,
                                     const Deadline& deadline) override {
    queue_.synchronize("the test", deadline);
    all_->from[static_cast<size_t>(rank_)] = {from, bytes_to};
    all_->meeting.arrive_and_wait();
    for (size_t p = 0; p < bytes_of.size(); ++p) {
      const Threads::Send& sent = all_->from[p];
      const auto me = static_cast<size_t>(rank_);
      CHECK(bytes_of[p] == sent.bytes_to[me], "rank ", rank_, " expects ", bytes_of[p],
            " bytes of ", p, ", which sends ", sent.bytes_to[me]);
      size_t skip = 0;
      for (size_t q = 0; q < me; ++q) skip += sent.bytes_to[q];
      queue_.copy(to, sent.data + skip, bytes_of[p]);
      to += bytes_of[p];
    }
    queue_.synchronize("the test", deadline);
    all_->meeting.arrive_and_wait();
    return nullptr;
  }
  std::unique_ptr<Ticket> all_gather(const std::byte* from, size_t bytes, std::byte* to,
                                     const Deadline& deadline) override {
    queue_.synchronize("the test", deadline);
    all_->from[static_cast<size_t>(rank_)] = {from, {bytes}};
    all_->meeting.arrive_and_wait();
    for (const Threads::Send& sent : all_->from) {
      CHECK(sent.bytes_to.front() == bytes, "parts of ", bytes, " and ", sent.bytes_to.front());
      queue_.copy(to, sent.data, bytes);
      to += bytes;
    }
    queue_.synchronize("the test", deadline);
    all_->meeting.arrive_and_wait();
    return nullptr;
  }
  void abort() override {}

 private:
  const Queue& queue_;
  const std::shared_ptr<Threads> all_;
  const int rank_;
};

enum class Way { kStaged, kIpc, kLockstep };

struct GpuGroup {
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::vector<std::unique_ptr<Engine>> ranks;
  std::vector<std::shared_ptr<MockNetwork>> networks;

  GpuGroup() = default;
  GpuGroup(GpuGroup&&) = default;
  // At once on all ranks, which wait for each other to close what they share.
  ~GpuGroup() {
    run_ranks(static_cast<int>(ranks.size()),
              [&](int rank) { ranks[static_cast<size_t>(rank)].reset(); });
  }
};

inline std::vector<std::unique_ptr<Communicator>> communicators_of(GpuGroup& group, Way way,
                                                                   const std::vector<int>& members,
                                                                   size_t capacity,
                                                                   CommunicatorKind host) {
  const auto size = static_cast<int>(members.size());
  std::vector<std::unique_ptr<Communicator>> all(members.size());
  auto queue = [&](int i) -> const Queue& {
    return group.gpus[static_cast<size_t>(members[static_cast<size_t>(i)])]->queue;
  };
  if (way == Way::kLockstep) {
    auto threads = std::make_shared<Threads>(size);
    for (int i = 0; i < size; ++i) {
      all[static_cast<size_t>(i)] = make_lockstep(
          queue(i), std::make_unique<ThreadCollectives>(queue(i), threads, i), capacity);
    }
    return all;
  }
  Group made =
      make_group(host, size, way == Way::kIpc ? size * kIpcControlBytes : capacity, kCrossInFlight);
  if (made.network) group.networks.push_back(made.network);
  auto rendezvous = local_rendezvous();
  run_ranks(size, [&](int i) {
    auto& mine = made.ranks[static_cast<size_t>(i)];
    std::string why_not;
    if (way == Way::kStaged) {
      all[static_cast<size_t>(i)] = make_staged(queue(i), std::move(mine));
    } else {
      const AsProcess own(members[static_cast<size_t>(i)] + 1);
      auto communicator = make_gpu_ipc(queue(i), mine, *rendezvous, capacity, patience(), why_not);
      CHECK(communicator, why_not);
      all[static_cast<size_t>(i)] = std::move(communicator);
    }
  });
  return all;
}

inline GpuGroup make_gpus(const Hosts& hosts, const EngineOptions& options, Way intra, Way cross) {
  const Topology topology(hosts);
  GpuGroup group;
  std::vector<Communicators> communicators;
  for (int rank = 0; rank < topology.size(); ++rank) {
    group.gpus.push_back(std::make_unique<Gpu>());
    communicators.push_back({topology, rank, nullptr, nullptr, "native test"});
  }
  auto give = [&](const std::vector<int>& members,
                  std::unique_ptr<Communicator> Communicators::* link, Way way, size_t bytes,
                  CommunicatorKind host) {
    auto made = communicators_of(group, way, members, bytes, host);
    for (size_t i = 0; i < members.size(); ++i) {
      made[i]->call_ranks(members);
      communicators[static_cast<size_t>(members[i])].*link = std::move(made[i]);
    }
  };
  const bool across = topology.host_count() > 1;
  for (int host = 0; host < topology.host_count(); ++host) {
    if (across && topology.host(host).size() == 1) continue;
    give(topology.host(host), &Communicators::intra, intra, options.intra.most,
         CommunicatorKind::kInProcess);
  }
  for (int team = 0; across && team < topology.teams(); ++team) {
    give(topology.team(team), &Communicators::cross, cross, options.cross_bytes,
         CommunicatorKind::kRelay);
  }
  for (size_t rank = 0; rank < communicators.size(); ++rank) {
    Gpu& gpu = *group.gpus[rank];
    auto engine = std::make_unique<Engine>(std::move(communicators[rank]), options);
    engine->use(std::make_unique<DeviceStages>(gpu.queue, *gpu.kernels));
    group.ranks.push_back(std::move(engine));
  }
  return group;
}

}  // namespace cgx::native
