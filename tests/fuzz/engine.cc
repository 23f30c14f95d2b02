#include "reduce/engine.h"

#include <deque>

#include "base/crc32c.h"
#include "base/error.h"
#include "check.h"
#include "specs.h"

namespace cgx::native {
namespace {

constexpr size_t kCapacity = 20000;

// A communicator whose peers have already sent what they will ever send. Messages lie in memory of
// exactly their size.
class Scripted final : public Communicator {
 public:
  Scripted(int size, bool announces)
      : messages_(static_cast<size_t>(size)), announces_(announces) {}

  void add(int peer, std::vector<std::byte> message) {
    messages_[static_cast<size_t>(peer)].push_back(std::move(message));
  }

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(messages_.size()); }
  const char* name() const override { return "scripted"; }
  size_t capacity() const override { return kCapacity; }
  int in_flight() const override { return 4; }
  bool announces() const override { return announces_; }

  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline&) override {
    buffers.assign(bytes_to.size(), nullptr);
    for (size_t p = 0; p < bytes_to.size(); ++p) {
      if (bytes_to[p] > 0) buffers[p] = lend(bytes_to[p]);
    }
  }
  std::byte* open_broadcast(size_t bytes, const Deadline&) override {
    return bytes == 0 ? nullptr : lend(bytes);
  }
  void post(const Deadline&) override {}
  Message receive(int peer, const Deadline& deadline) override { return peek(peer, deadline); }
  Message peek(int peer, const Deadline&) override {
    auto& queue = messages_[static_cast<size_t>(peer)];
    if (queue.empty()) throw PeerLostError(str_of("rank ", peer, " has nothing more to say"));
    return {queue.front().data(), queue.front().size()};
  }
  void release(int peer) override { messages_[static_cast<size_t>(peer)].pop_front(); }
  void abort(const Failure&) override {}

 private:
  std::byte* lend(size_t bytes) {
    lent_.push_back(std::make_unique<std::byte[]>(bytes));
    return lent_.back().get();
  }

  std::vector<std::deque<std::vector<std::byte>>> messages_;
  std::vector<std::unique_ptr<std::byte[]>> lent_;
  bool announces_;
};

// From bits of the input that say nothing else: an input keeps its meaning.
Operation operation_of(uint8_t group) {
  switch (group >> 2 & 3) {
    case 1:
      return Operation::kReduceScatter;
    case 2:
      return Operation::kAllGather;
    default:
      return Operation::kAllReduce;
  }
}

std::shared_ptr<const Plan> plan_of(Operation operation, const EngineOptions& options,
                                    const Topology& topology, const std::vector<Layer>& layers,
                                    DType dtype) {
  if (operation == Operation::kAllReduce) {
    return make_all_reduce_plan(options, topology, layers, dtype);
  }
  const Layer shard = layers.empty() ? Layer{0, raw_codec()} : layers.front();
  return make_shards_plan(options, topology, operation, shard.count, shard.codec, dtype);
}

}  // namespace

void fuzz_engine(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t group = input.take<uint8_t>();
  const int ranks = 2 + group % 2;
  const DType dtype = take_dtype(input);
  EngineOptions options;
  options.checksum = (group & 128) != 0;
  options.intra_reduction = static_cast<Reduction>(input.below(4));
  options.intra = {2000 + input.below(18000), kCapacity};
  options.nonfinite = input.flip() ? NonFinite::kRaise : NonFinite::kPropagate;
  const Operation operation = operation_of(group);
  const bool average = input.flip();
  const Topology topology = Topology::one_host(ranks);
  auto scripted = std::make_unique<Scripted>(ranks, input.flip());
  const auto layers = take_layers(input, 3, 1500);
  std::shared_ptr<const Plan> plan;
  try {
    plan = plan_of(operation, options, topology, layers, dtype);
  } catch (const ConfigError&) {
    return;
  }
  // What the peers say: for each round some chunks, altered now and then.
  for (size_t round = 0; round < plan->rounds.size(); ++round) {
    const auto& chunks = plan->rounds[round].shards[0].chunks;
    for (int peer = 1; peer < ranks; ++peer) {
      const auto own = static_cast<size_t>(peer) % chunks.size();
      for (size_t step = 0; step < chunks.size(); ++step) {
        const uint8_t how = input.take<uint8_t>();
        // In the order of scatter-reduce-all-gather, or any other.
        const size_t which = how & 1 ? input.below(chunks.size()) : (step == 0 ? 0 : own);
        size_t payload = chunks[which].payload_bytes;
        if (how & 2) payload = input.below(payload + 50);
        std::vector<std::byte> message(Communicator::kPayloadOffset + payload);
        const CallIdentity sender{plan.get(), 0, average, peer, options.checksum};
        write_header(message.data(), sender, round, payload, how & 4 ? 1 : 0);
        input.fill(message.data() + Communicator::kPayloadOffset, payload);
        if (options.checksum) {
          const uint64_t crc = crc32c(message.data(), message.size());
          const uint64_t twice = crc << 32 | crc;
          message.resize(message.size() + kChecksumBytes);
          std::memcpy(message.data() + message.size() - kChecksumBytes, &twice, sizeof twice);
        }
        if (how & 8) {
          for (size_t k = input.below(4); k > 0; --k) {
            message[input.below(Communicator::kPayloadOffset)] ^= input.take<std::byte>();
          }
        }
        if (how & 16) message.resize(input.below(message.size() + 1));
        message.shrink_to_fit();
        if (!message.empty()) scripted->add(peer, std::move(message));
      }
    }
  }
  Engine engine({topology, 0, std::move(scripted), nullptr, "scripted"}, options);
  // Each of exactly its size; an all-reduce is in place.
  const size_t whole = plan->values * size_of(dtype), shard = whole / static_cast<size_t>(ranks);
  const size_t given = operation == Operation::kAllGather ? shard : whole;
  const size_t taken = operation == Operation::kReduceScatter ? shard : whole;
  auto tensor = std::make_unique<std::byte[]>(given);
  input.fill(tensor.get(), given);
  std::unique_ptr<std::byte[]> apart;
  if (operation != Operation::kAllReduce) apart = std::make_unique<std::byte[]>(taken);
  auto run = [&] {
    engine.run(*plan, tensor.get(), apart ? apart.get() : tensor.get(), average,
               Deadline::after(std::chrono::seconds(60)));
  };
  try {
    run();
    CHECK(!engine.failure());
  } catch (const NonFiniteError&) {
    CHECK(options.nonfinite == NonFinite::kRaise && !engine.failure());
  } catch (const Error&) {
    CHECK(engine.failure());
    error_of<Error>(run);
  }
}

}  // namespace cgx::native
