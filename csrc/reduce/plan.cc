#include "reduce/plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/communicator.h"

namespace cgx {
namespace {

size_t align_piece(size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

// A run that is not yet placed in a message.
struct Run {
  size_t offset;
  size_t count;
  const Codec* codec;
};

void append(Chunk& chunk, const Run& run, DType dtype) {
  if (run.count == 0) return;
  Piece piece;
  piece.offset = run.offset;
  piece.count = run.count;
  piece.codec = run.codec;
  piece.payload = align_piece(chunk.payload_bytes);
  piece.bytes = run.codec->encoded_bytes(run.count, dtype);
  chunk.payload_bytes = piece.payload + piece.bytes;
  chunk.values += run.count;
  chunk.pieces.push_back(piece);
}

// The largest multiple of the granule whose encoding fits into `budget` bytes (0 if not even one
// does), at most `count`.
size_t fitting(const Codec& codec, size_t count, size_t budget, DType dtype) {
  if (codec.encoded_bytes(count, dtype) <= budget) return count;
  size_t low = 0,
         high = count /
                codec.granule();  // low fits, high + 1 granules do not (or are more than count)
  while (low < high) {
    size_t middle = low + (high - low + 1) / 2;
    if (codec.encoded_bytes(middle * codec.granule(), dtype) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * codec.granule();
}

// Cuts runs into `parts` consecutive chunks of about equal encoded size.
std::vector<Chunk> cut_evenly(const std::vector<Run>& runs, int parts, DType dtype) {
  size_t total = 0;
  for (const Run& run : runs) total += run.codec->encoded_bytes(run.count, dtype);
  std::vector<Chunk> chunks(static_cast<size_t>(parts));
  size_t next = 0, used = 0,
         done = 0;  // position: `used` values of runs[next]; `done` bytes given away
  for (int part = 0; part < parts; ++part) {
    Chunk& chunk = chunks[static_cast<size_t>(part)];
    const size_t left = static_cast<size_t>(parts - part);
    size_t target = done < total ? (total - done + left - 1) / left : 0;
    while (next < runs.size() && (target > 0 || left == 1)) {
      const Run& run = runs[next];
      const size_t rest = run.count - used;
      const size_t bytes = run.codec->encoded_bytes(rest, dtype);
      size_t take = rest;
      if (left > 1 && bytes > target) {
        // Nearest granule border to the target, at least one granule so that every chunk makes
        // progress.
        const size_t granule = run.codec->granule();
        const double per_value = static_cast<double>(bytes) / static_cast<double>(rest);
        const double granules =
            static_cast<double>(target) / per_value / static_cast<double>(granule);
        size_t whole = static_cast<size_t>(granules + 0.5);
        if (whole == 0 && chunk.empty()) whole = 1;
        take = std::min(rest, whole * granule);
      }
      if (take == 0) break;
      append(chunk, Run{run.offset + used, take, run.codec}, dtype);
      const size_t spent = run.codec->encoded_bytes(take, dtype);
      done += spent;
      target -= std::min(target, spent);
      used += take;
      if (used == run.count) {
        ++next;
        used = 0;
      } else {
        break;
      }
    }
  }
  return chunks;
}

[[noreturn]] void bucket_too_big(const Codec& codec, size_t budget) {
  throw ConfigError(
      str_of("bucket_size ", codec.spec().bucket_size, " (", codec.describe(),
             "): one encoded bucket does not fit into a message of ", budget,
             " bytes; use a smaller bucket_size, or raise CGX_SHM_SEGMENT_KB (shared memory) or "
             "CGX_FUSION_BUFFER_SIZE_MB (other carriers)"));
}

class Hasher {  // FNV-1a over the plan's content
 public:
  template <typename T>
  Hasher& add(const T& value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    auto v = static_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, v >>= 8) byte(static_cast<unsigned char>(v));
    return *this;
  }
  Hasher& add_text(const std::string& text) {
    for (char c : text) byte(static_cast<unsigned char>(c));
    return add(text.size());
  }
  uint64_t value() const { return hash_; }

 private:
  void byte(unsigned char b) { hash_ = (hash_ ^ b) * 0x100000001b3ULL; }
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

void finish(Plan& plan) {
  Hasher hasher;
  hasher.add(plan.operation).add(plan.algorithm).add(plan.dtype).add(plan.size);
  hasher.add(plan.segments.size());
  for (const Segment& segment : plan.segments) {
    plan.compressed = plan.compressed || segment.codec != raw_codec();
    const CodecSpec& spec = segment.codec->spec();
    hasher.add(segment.count).add_text(spec.name).add(spec.bits).add(spec.bucket_size);
    hasher.add(spec.rounding).add(spec.skip_incomplete_buckets).add(spec.seed);
  }
  // Capacities differ between carriers and configurations; equal rounds are what ranks must agree
  // on.
  hasher.add(plan.rounds.size());
  if (!plan.rounds.empty()) {
    for (const Chunk& chunk : plan.rounds.front().chunks) hasher.add(chunk.values);
  }
  plan.hash = hasher.value();
}

}  // namespace

size_t Chunk::message_bytes() const {
  return empty() ? 0 : Communicator::kPayloadOffset + payload_bytes;
}

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
  }
  return "unknown operation";
}

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return "one-shot";
    case Algorithm::kScatterReduceAllGather:
      return "scatter-reduce-all-gather";
  }
  return "unknown algorithm";
}

const Segment* Plan::first_compressed() const {
  for (const Segment& segment : segments) {
    if (segment.codec != raw_codec()) return &segment;
  }
  return nullptr;
}

size_t one_shot_payload_bytes(const std::vector<Segment>& segments, DType dtype) {
  size_t bytes = 0;
  for (const Segment& segment : segments) {
    if (segment.count > 0) {
      bytes = align_piece(bytes) + segment.codec->encoded_bytes(segment.count, dtype);
    }
  }
  return bytes;
}

std::shared_ptr<const Plan> plan_all_reduce(std::vector<Segment> segments, DType dtype, int size,
                                            Algorithm algorithm, size_t capacity) {
  auto plan = std::make_shared<Plan>();
  plan->operation = Operation::kAllReduce;
  plan->algorithm = algorithm;
  plan->dtype = dtype;
  plan->size = size;
  plan->segments = std::move(segments);
  for (const Segment& segment : plan->segments) plan->values += segment.count;
  const int parts = algorithm == Algorithm::kOneShot ? 1 : size;
  if (size > 1) {
    // What a round costs beyond its payload: a header per message, padding per piece; cutting a
    // round into chunks can split each border's piece in two, whose encodings may be one byte and
    // one padding longer than the whole's.
    const size_t fixed =
        static_cast<size_t>(parts) * (Communicator::kPayloadOffset + 2 * kPieceAlignment);
    const size_t budget = capacity > fixed ? capacity - fixed : 0;
    std::vector<Run> runs;
    size_t used = 0, offset = 0;
    auto close_round = [&] {
      if (!runs.empty()) plan->rounds.push_back(Round{cut_evenly(runs, parts, dtype)});
      runs.clear();
      used = 0;
    };
    for (const Segment& segment : plan->segments) {
      size_t first = 0;
      while (first < segment.count) {
        const size_t rest = segment.count - first;
        const size_t free = budget > used + kPieceAlignment ? budget - used - kPieceAlignment : 0;
        const size_t take = fitting(*segment.codec, rest, free, dtype);
        if (take == 0) {
          if (runs.empty()) bucket_too_big(*segment.codec, free);
          close_round();
          continue;
        }
        runs.push_back(Run{offset + first, take, segment.codec.get()});
        used += kPieceAlignment + segment.codec->encoded_bytes(take, dtype);
        first += take;
        if (take < rest) close_round();
      }
      offset += segment.count;
    }
    close_round();
  }
  finish(*plan);
  return plan;
}

std::shared_ptr<const Plan> plan_shards(Operation operation, size_t shard,
                                        std::shared_ptr<const Codec> codec, DType dtype, int size,
                                        size_t capacity) {
  auto plan = std::make_shared<Plan>();
  plan->operation = operation;
  plan->algorithm = Algorithm::kScatterReduceAllGather;
  plan->dtype = dtype;
  plan->size = size;
  plan->values = shard * static_cast<size_t>(size);
  plan->segments.assign(static_cast<size_t>(size), Segment{shard, codec});
  if (size > 1) {
    // A reduce-scatter sends a message to every peer in one exchange, an all-gather the same one to
    // all.
    const size_t messages = operation == Operation::kReduceScatter ? static_cast<size_t>(size) : 1;
    const size_t per_message = capacity / messages;
    const size_t fixed = Communicator::kPayloadOffset + kPieceAlignment;
    const size_t budget = per_message > fixed ? per_message - fixed : 0;
    for (size_t first = 0; first < shard;) {
      const size_t take = fitting(*codec, shard - first, budget, dtype);
      if (take == 0) bucket_too_big(*codec, budget);
      Round round;
      for (int rank = 0; rank < size; ++rank) {
        Chunk chunk;
        append(chunk, Run{static_cast<size_t>(rank) * shard + first, take, codec.get()}, dtype);
        round.chunks.push_back(std::move(chunk));
      }
      plan->rounds.push_back(std::move(round));
      first += take;
    }
  }
  finish(*plan);
  return plan;
}

}  // namespace cgx
