// Reduce-scatter and all-gather over hosts of several ranks. Team k serves, on every host, the
// ranks whose local number is k modulo the number of teams: their shards cross the wire once.
#include <algorithm>

#include "reduce/schedule/arrivals.h"
#include "reduce/schedule/two_levels.h"

namespace cgx {
namespace {

constexpr int kStages = 2;
constexpr size_t kDepth = 2;

// A chunk of one run, for a message of its own.
Chunk alone(const Run& run) {
  Chunk chunk;
  chunk.runs = {run};
  chunk.runs.front().payload = 0;
  chunk.runs.front().packed = 0;
  chunk.values = run.count;
  chunk.payload_bytes = run.bytes;
  return chunk;
}

class Shards {
 public:
  explicit Shards(Call& call)
      : call_(call),
        levels_(call),
        dtype_(call.plan.dtype),
        shard_values_(call.plan.values / static_cast<size_t>(call.plan.size)) {}

  template <typename Announce, typename Send, typename Receive>
  void run(Announce announce, Send send, Receive receive) {
    const size_t rounds = call_.plan.rounds.size();
    for_each_step(rounds, kStages, kDepth, announce);
    levels_.begin();
    for_each_step(rounds, kStages, kDepth, [&](int stage, size_t number) {
      if (stage == 1) return receive(number);
      send(number);
      if (number == 0 && rounds > 1 && levels_.cross) levels_.cross->look_at_first();
    });
  }

 protected:
  // Local number of the rank whose values a run holds.
  int local_of(const Run& run) const {
    return call_.topology.local_of(static_cast<int>(run.offset / shard_values_));
  }
  const Chunk& chunk(size_t number, int team, int host) const {
    return levels_.shard(number, team).chunks[static_cast<size_t>(host)];
  }
  // The chunk that this rank's team serves on this host.
  const Chunk& served(size_t number) const { return chunk(number, levels_.local, levels_.host); }
  // The run of the rank with this local number on this host.
  const Run& run_of(size_t number, int local) const {
    const int team = local % call_.topology.teams();
    const Chunk& chunk = this->chunk(number, team, levels_.host);
    return chunk.runs[static_cast<size_t>(local / call_.topology.teams())];
  }

  Call& call_;
  TwoLevels levels_;
  const DType dtype_;
  const size_t shard_values_;  // of one rank
};

class ReduceScatter : private Shards {
 public:
  ReduceScatter(Call& call, const void* input, void* output)
      : Shards(call), input_(shards_view(call, input)), output_(static_cast<std::byte*>(output)) {}

  void run() {
    Shards::run([&](int stage, size_t number) { announce(stage, number); },
                [&](size_t number) { send(number); }, [&](size_t number) { receive(number); });
  }

 private:
  void announce(int stage, size_t number) {
    if (stage == 0) {
      levels_.announce_scatter(number);
      return;
    }
    if (levels_.member) {
      for (int p : levels_.cross->peers()) {
        levels_.cross->will_receive(p, served(number).payload_bytes, number == 0);
      }
    } else {
      levels_.intra->will_receive(levels_.local % call_.topology.teams(), own_bytes(number), false);
    }
  }

  size_t own_bytes(size_t number) const {
    return run_of(number, levels_.local).count * size_of(dtype_);
  }

  // The host's sums of all values that the own team serves, one chunk behind the other.
  View partial(size_t number) {
    if (!levels_.intra || !levels_.member) return input_;
    const size_t values = levels_.shard(number, levels_.local).intra.values;
    const DType type = call_.plan.partial_dtype();
    return {call_.work.buffer(number % kStages, values * size_of(type)), 0, type, true};
  }

  // The share of it that goes to one host.
  View partial(size_t number, int host) {
    View view = partial(number);
    for (int h = 0; view.packed && h < host; ++h) {
      view.base += chunk(number, levels_.local, h).values * size_of(view.dtype);
    }
    return view;
  }

  void send(size_t number) {
    levels_.scatter_inside(number, input_, partial(number));
    if (!levels_.member) return;
    Channel& cross = *levels_.cross;
    bytes_.assign(levels_.hosts, 0);
    for (int host : cross.peers()) {
      bytes_[static_cast<size_t>(host)] = chunk(number, levels_.local, host).payload_bytes;
    }
    const std::vector<std::byte*>& messages = cross.open(bytes_);
    for (int host : cross.peers()) {
      call_.stages.encode_chunk(call_, chunk(number, levels_.local, host), partial(number, host),
                                Stage::kContribution, messages[static_cast<size_t>(host)]);
    }
    cross.post(number);
  }

  void receive(size_t number) {
    const Run& own = run_of(number, levels_.local);
    const size_t first = own.offset % shard_values_;
    std::byte* out = output_ + first * size_of(dtype_);
    if (!levels_.member) {
      const int from = levels_.local % call_.topology.teams();
      call_.stages.copy(out, levels_.intra->receive(from, number), own_bytes(number));
      levels_.intra->release(from);
      return;
    }
    Channel& cross = *levels_.cross;
    const Chunk& mine = served(number);
    payloads_.assign(levels_.hosts, nullptr);  // nullptr: this host's sum
    for (int host : cross.peers()) {
      payloads_[static_cast<size_t>(host)] = cross.receive(host, number);
    }
    std::byte* sums = call_.work.buffer(kStages, mine.values * size_of(dtype_));
    const View result{sums, 0, dtype_, true};
    call_.stages.sum(call_, mine,
                     {payloads_, partial(number, levels_.host), result, nullptr, call_.divisor(),
                      /*final=*/true, /*own_index=*/-1, Feedback::kSet});
    for (int host : cross.peers()) cross.release(host);
    deliver(number, mine, result, out);
  }

  // Each rank that the team serves gets its values; this one is the first of them.
  void deliver(size_t number, const Chunk& mine, const View& result, std::byte* out) {
    bytes_.assign(levels_.intra ? static_cast<size_t>(levels_.intra->size()) : 1, 0);
    for (const Run& run : mine.runs) {
      const auto to = static_cast<size_t>(local_of(run));
      if (static_cast<int>(to) == levels_.local) {
        call_.stages.copy(out, result.at(run, 0), run.count * size_of(dtype_));
      } else {
        bytes_[to] = run.count * size_of(dtype_);
      }
    }
    if (mine.runs.size() < 2) return;
    const std::vector<std::byte*>& messages = levels_.intra->open(bytes_);
    for (const Run& run : mine.runs) {
      const auto to = static_cast<size_t>(local_of(run));
      if (bytes_[to] > 0) call_.stages.copy(messages[to], result.at(run, 0), bytes_[to]);
    }
    levels_.intra->post(number);
  }

  const View input_;
  std::byte* const output_;
  std::vector<size_t> bytes_;
  std::vector<const std::byte*> payloads_;
};

class AllGather : private Shards {
 public:
  AllGather(Call& call, const void* input, void* output)
      : Shards(call),
        input_{static_cast<std::byte*>(const_cast<void*>(input)),
               shard_values_ * static_cast<size_t>(call.identity.rank), dtype_, false, true},
        output_{static_cast<std::byte*>(output), 0, dtype_} {
    for (int host = 0; host < static_cast<int>(levels_.hosts); ++host) {
      if (host != levels_.host) other_hosts_.push_back(host);
    }
  }

  void run() {
    Shards::run([&](int stage, size_t number) { announce(stage, number); },
                [&](size_t number) { send(number); }, [&](size_t number) { receive(number); });
  }

 private:
  void announce(int stage, size_t number) {
    if (levels_.intra && stage == 0) {
      for (int p : levels_.locals) {
        levels_.intra->will_receive(p, run_of(number, p).bytes, number == 0);
      }
    }
    if (stage == 0) return;
    if (levels_.member) {
      for (int host : levels_.cross->peers()) {
        levels_.cross->will_receive(host, chunk(number, levels_.local, host).payload_bytes,
                                    number == 0);
      }
    }
    if (levels_.intra) {
      for (int team : levels_.other_members) {
        levels_.intra->will_receive(team, foreign_bytes(number, team), false);
      }
    }
  }

  // Bytes that a team brings from the other hosts: its chunks, one behind the other.
  size_t foreign_bytes(size_t number, int team) const {
    size_t bytes = 0;
    for (int host : other_hosts_) bytes += bundle_stride(chunk(number, team, host));
    return bytes;
  }

  void send(size_t number) {
    const Chunk own = alone(run_of(number, levels_.local));
    std::byte* message =
        levels_.member ? levels_.cross->open_broadcast(served(number).payload_bytes) : nullptr;
    // This rank is the first rank that its team serves, so its run is the first of the message.
    std::byte* encoded = levels_.intra ? levels_.intra->open_broadcast(own.payload_bytes) : message;
    call_.stages.encode_chunk(call_, own, input_, Stage::kContribution, encoded, /*final=*/true);
    call_.stages.decode_chunk(call_, own, encoded, output_);
    if (levels_.intra) {
      if (message != nullptr) call_.stages.copy(message, encoded, own.payload_bytes);
      levels_.intra->post(number);
    }
    if (levels_.intra) take_locals(number, message);
    if (message != nullptr) levels_.cross->post(number);
  }

  // Receives the messages of the other ranks of this host; `message` gets the values of the ranks
  // that this rank's team works for.
  void take_locals(size_t number, std::byte* message) {
    alone_.clear();
    for (int p : levels_.locals) alone_.push_back(alone(run_of(number, p)));
    decode_arrivals(
        call_, *levels_.intra, levels_.locals, number, output_,
        [&](int p) -> const Chunk& {
          const auto at = std::find(levels_.locals.begin(), levels_.locals.end(), p);
          return alone_[static_cast<size_t>(at - levels_.locals.begin())];
        },
        [&](int p, const std::byte* theirs) {
          if (message == nullptr || theirs == nullptr) return;
          if (p % call_.topology.teams() != levels_.local) return;
          const Run& run = run_of(number, p);
          call_.stages.copy(message + run.payload, theirs, run.bytes);
        });
  }

  void receive(size_t number) {
    if (levels_.member) {
      std::byte* bundle = levels_.intra
                              ? levels_.intra->open_broadcast(foreign_bytes(number, levels_.local))
                              : nullptr;
      decode_arrivals(
          call_, *levels_.cross, other_hosts_, number, output_,
          [&](int host) -> const Chunk& { return chunk(number, levels_.local, host); },
          [&](int host, const std::byte* payload) {
            if (bundle == nullptr || payload == nullptr) return;
            const Chunk& theirs = chunk(number, levels_.local, host);
            call_.stages.copy(bundle, payload, theirs.payload_bytes);
            bundle += bundle_stride(theirs);
          });
      if (levels_.intra) levels_.intra->post(number);
    }
    for (int team : levels_.other_members) {
      const std::byte* bundle = levels_.intra->receive(team, number);
      bundled_.clear();
      for (int host : other_hosts_) {
        const Chunk& theirs = chunk(number, team, host);
        bundled_.push_back({&theirs, bundle});
        bundle += bundle_stride(theirs);
      }
      call_.stages.decode(call_, bundled_, output_);
      levels_.intra->release(team);
    }
  }

  const View input_;
  const View output_;
  std::vector<int> other_hosts_;        // ascending, as bundles have them
  std::vector<Chunk> alone_;            // of the locals
  std::vector<ReceivedChunk> bundled_;  // by other host
};

}  // namespace

void reduce_scatter_two_levels(Call& call, const void* input, void* output) {
  call.stages.check_shards(call, shards_view(call, input));
  ReduceScatter(call, input, output).run();
}

void all_gather_two_levels(Call& call, const void* input, void* output) {
  const size_t shard = call.plan.values / static_cast<size_t>(call.plan.size);
  // Exact values only move.
  if (call.plan.compressed || call.residual.base != nullptr) {
    call.stages.check_input(call, input, shard);
  }
  AllGather(call, input, output).run();
}

}  // namespace cgx
