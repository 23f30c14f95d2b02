#include "codec/bdi/chunk_encoder.h"

#include <algorithm>
#include <cstring>

#include "codec/bdi/bits.h"
#include "codec/ops/random.h"

namespace cgx::bdi {
namespace {

// Owners that are neither an immediate nor a base, of which there are 128.
constexpr uint32_t kZero = 255;
constexpr uint32_t kFree = 254;
static_assert(kMostImmediates + kMostBases <= kFree);

// Streams of random numbers: of deltas one, of bases one for each configuration.
constexpr int kDeltaStage = 0;
constexpr int kBaseStage = 1;

uint32_t draw(RandomKey key, uint64_t counter) {
  const RandomKey k = key_of_high(key, static_cast<uint32_t>(counter >> 32));
  return random_bits(static_cast<uint32_t>(counter), k.low, k.high);
}

uint32_t largest(uint32_t bits) { return static_cast<uint32_t>((uint64_t{1} << bits) - 1); }

uint64_t most_bits(const Format& format) {
  uint64_t most = 32 * uint64_t{format.batch};
  for (const Config& config : format.configs) {
    const uint64_t word = 1 + selector_bits(format, config.bases) + config.delta_bits;
    most = std::max(most, format.batch * word + width_of(config.bases) +
                              uint64_t{config.bases} * config.base_bits);
  }
  return most;
}

}  // namespace

ChunkEncoder::ChunkEncoder(const Format& format, const EncoderOptions& options)
    : format_(format),
      options_(options),
      shifted_(format.batch),
      start_(format.batch),
      owner_(format.batch),
      selectors_(format.batch + 1),
      deltas_(format.batch + 1),
      bytes_(bytes_of(most_bits(format))) {
  std::copy(format.immediates.begin(), format.immediates.end(), bases_);
}

uint8_t ChunkEncoder::encode(const uint32_t* words, uint32_t count, uint64_t chunk,
                             std::vector<std::byte>& out) {
  count_ = count;
  chunk_ = chunk;
  shift(words);
  // From the fewest bits to the most: the first that holds the chunk is the best one.
  const auto& configs = format_.configs;
  auto cost_of = [&](size_t k) { return accounted_bits(format_, configs[k], count, nonzero_); };
  uint64_t done_cost = 0;  // all of fewer bits have been tried, and of as many those before `next`
  size_t next = 0;
  while (true) {
    size_t best = configs.size();
    for (size_t k = 0; k < configs.size(); ++k) {
      const uint64_t cost = cost_of(k);
      if (cost < done_cost || (cost == done_cost && k < next)) continue;
      if (best == configs.size() || cost < cost_of(best)) best = k;
    }
    if (best == configs.size()) break;
    if (holds(best) && (format_.lossless() || round(configs[best], words))) {
      write(configs[best], out);
      return static_cast<uint8_t>(best + 1);
    }
    done_cost = cost_of(best);
    next = best + 1;
  }
  const auto* raw = reinterpret_cast<const std::byte*>(words);
  out.insert(out.end(), raw, raw + sizeof(uint32_t) * count);
  return kRaw;
}

void ChunkEncoder::shift(const uint32_t* words) {
  const uint32_t init = format_.scale_init, delta = format_.scale_delta;
  const bool mask = format_.zero_mask;
  // Here and below: locals, as a compiler must assume that stores to arrays change members.
  const uint32_t count = count_;
  uint32_t* __restrict shifted = shifted_.data();
  uint32_t* __restrict start = start_.data();
  uint32_t zeros = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t s = words[i] >> init;
    const bool zero = mask & (s >> delta == 0);
    shifted[i] = s;
    start[i] = zero ? kZero : kFree;
    zeros += zero ? 1 : 0;
  }
  nonzero_ = count - zeros;
  if (format_.words != Words::kFloat32 || init + delta < 31) return;
  // All that is left is the sign: infinities and NaN are no zeros.
  for (uint32_t i = 0; i < count_; ++i) {
    if (start_[i] != kZero || same_kind(format_.words, words[i], 0)) continue;
    start_[i] = kFree;
    ++nonzero_;
  }
}

// Whether the configuration has a base and a delta for each word. A base takes all free words that
// it can, then the next free word becomes a base.
bool ChunkEncoder::holds(size_t number) {
  const Config& config = format_.configs[number];
  const auto immediates = static_cast<uint32_t>(format_.immediates.size());
  const uint32_t most = largest(config.delta_bits);
  std::memcpy(owner_.data(), start_.data(), sizeof(uint32_t) * count_);
  used_ = 0;
  from_ = 0;
  uint32_t left = nonzero_;
  for (uint32_t k = 0; k < immediates && left > 0; ++k) left -= cover(bases_[k], k, most);
  while (left > 0) {
    uint32_t place = 0;
    if (used_ == config.bases || !pick(config, number, &place)) return false;
    const uint32_t scale = format_.scale_base;
    // The base that a decoder will have, so that deltas start from there.
    const uint32_t base = shifted_[place] >> scale << scale;
    bases_[immediates + used_] = base;
    left -= cover(base, immediates + used_, most);
    // A word that is too far from its own base is farther from all others, which are lower.
    if (owner_[place] == kFree) return false;
    ++used_;
  }
  find_deltas();
  return true;
}

// Gives `owner` the free words of a base's reach; returns their number.
uint32_t ChunkEncoder::cover(uint32_t base, uint32_t owner, uint32_t most) {
  const uint64_t reach = ((uint64_t{most} + 1) << format_.scale_delta) - 1;
  // A word below the base is at least 2^32 - base above it, modulo 2^32.
  const auto limit = static_cast<uint32_t>(std::min<uint64_t>(reach, 0xffffffffu - base));
  const uint32_t count = count_;
  const uint32_t* __restrict shifted = shifted_.data();
  uint32_t* __restrict owners = owner_.data();
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t before = owners[i];
    const bool take = (before == kFree) & (shifted[i] - base <= limit);
    owners[i] = take ? owner : before;
    taken += take ? 1 : 0;
  }
  return taken;
}

// The free word that becomes the next base. False: none fits into a base's bits.
bool ChunkEncoder::pick(const Config& config, size_t number, uint32_t* place) {
  const uint32_t most = largest(config.base_bits);
  auto fits = [&](uint32_t i) {
    return owner_[i] == kFree && shifted_[i] >> format_.scale_base <= most;
  };
  while (from_ < count_ && !fits(from_)) ++from_;
  *place = from_;
  if (from_ == count_ || !options_.random_bases) return from_ < count_;
  uint64_t candidates = 0;
  for (uint32_t i = from_; i < count_; ++i) candidates += fits(i) ? 1 : 0;
  const RandomKey key = random_key(options_.seed, number, 0, kBaseStage);
  uint64_t skip = candidates * draw(key, chunk_ * kMostBases + used_) >> 32;
  for (; !fits(*place) || skip-- > 0; ++*place) continue;
  return true;
}

void ChunkEncoder::find_deltas() {
  const uint32_t scale = format_.scale_delta, count = count_;
  const uint32_t* __restrict shifted = shifted_.data();
  const uint32_t* __restrict owners = owner_.data();
  uint32_t* __restrict selectors = selectors_.data();
  uint32_t* __restrict deltas = deltas_.data();
  uint32_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t owner = owners[i];
    selectors[at] = owner;
    deltas[at] = (shifted[i] - bases_[owner]) >> scale;
    at += owner != kZero ? 1 : 0;  // what a zero has written, the next word overwrites
  }
}

// Rounds deltas up where chance says so, and checks that no word becomes one of another kind.
bool ChunkEncoder::round(const Config& config, const uint32_t* words) {
  const uint32_t scale = format_.scale_delta, init = format_.scale_init;
  const uint32_t most = largest(config.delta_bits);
  const uint64_t top = format_.top();
  const RandomKey key = random_key(options_.seed, 0, 0, kDeltaStage);
  const uint64_t first = chunk_ * format_.batch;
  if (format_.words == Words::kUint32 && !options_.stochastic) return true;  // of one kind all
  uint32_t at = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    const uint32_t owner = owner_[i];
    if (owner == kZero) continue;
    const uint64_t low = uint64_t{bases_[owner]} + (uint64_t{deltas_[at]} << scale);
    uint32_t& delta = deltas_[at++];
    const auto rest = static_cast<uint32_t>(shifted_[i] - low);
    if (options_.stochastic && rest > 0 && most >= uint64_t{delta} + 1) {
      const uint64_t high = low + (uint64_t{1} << scale);
      if (high <= top && same_kind(format_.words, words[i], static_cast<uint32_t>(high << init)) &&
          draw(key, first + i) >> (32 - scale) < rest) {
        ++delta;
        continue;
      }
    }
    if (!same_kind(format_.words, words[i], static_cast<uint32_t>(low << init))) return false;
  }
  return true;
}

void ChunkEncoder::write(const Config& config, std::vector<std::byte>& out) {
  BitWriter bits(bytes_.data());
  if (format_.zero_mask) {
    for (uint32_t i = 0; i < count_; i += 32) {
      uint32_t word = 0;
      const uint32_t some = std::min(count_ - i, 32u);
      const uint32_t* start = start_.data() + i;
      for (uint32_t k = some; k-- > 0;) word = 2 * word + (start[k] == kFree ? 1 : 0);
      bits.put(word, some);
    }
  }
  bits.put(used_, width_of(config.bases));
  const uint32_t* bases = bases_ + format_.immediates.size();
  for (uint32_t k = 0; k < used_; ++k) bits.put(bases[k] >> format_.scale_base, config.base_bits);
  if (const uint32_t width = selector_bits(format_, used_); width > 0) {
    for (uint32_t i = 0; i < nonzero_; ++i) bits.put(selectors_[i], width);
  }
  for (uint32_t i = 0; i < nonzero_; ++i) bits.put(deltas_[i], config.delta_bits);
  out.insert(out.end(), bytes_.data(), bits.finish());
}

}  // namespace cgx::bdi
