// The counter-based generator of stochastic rounding: a pure function of (key, number of the
// element).
//
// Nothing is stored between calls, so parts may be encoded in any order, by any thread, on any
// device, and a run may be replayed. Not for cryptography.
#pragma once

#include "base/host_device.h"

namespace cgx {

/// Key of the counter-based generator: made of (seed, sequence number, rank, stage) by
/// random_key().
struct RandomKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// One step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014): a bijection of 64 bits in which every bit of the input reaches every bit of the
/// output.
CGX_HD uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Factor of a counter: 2^32 over the golden ratio, whose multiples spread evenly
/// (Weyl). Next to each other they differ by a constant, so that vector code only adds.
constexpr uint32_t kRandomStep = 0x9e3779b9u;

/// A Weyl sequence that starts at `low`, mixed by rounds of xor-shift and multiply with the
/// constants of lowbias32 (Wellons, Prospecting for Hash Functions, 2018). `high` keeps streams
/// from being parts of each other. The last xor-shift of lowbias32 is left out: it changes the low
/// half only, of which 8 bits are used.
CGX_HD uint32_t random_bits_of(uint32_t state, uint32_t high) {
  state ^= (state >> 16) ^ high;
  state *= 0x7feb352du;
  state ^= state >> 15;
  return state * 0x846ca68bu;
}
CGX_HD uint32_t random_bits(uint32_t counter, uint32_t low, uint32_t high) {
  return random_bits_of(low + counter * kRandomStep, high);
}

/// Uniform in {0, 1, ..., 2^24 - 1} * 2^-24, exact in float32, falling as the bits rise: so a
/// fraction f exceeds it just where the sum of f 2^24 and (bits >> 8) carries.
CGX_HD float random_unit(uint32_t bits) { return rn_mul(static_cast<float>(~bits >> 8), 0x1p-24f); }

#if !defined(CGX_DEVICE_COMPILER)
/// Key of one encoding: different for every (seed, sequence number of the call, rank, stage of the
/// reduction).
inline RandomKey random_key(uint64_t seed, uint64_t sequence, int rank, int stage) {
  uint64_t state = splitmix64(seed);
  state = splitmix64(state ^ sequence);
  state = splitmix64(state ^ (static_cast<uint64_t>(static_cast<uint32_t>(stage)) << 32) ^
                     static_cast<uint32_t>(rank));
  return {static_cast<uint32_t>(state), static_cast<uint32_t>(state >> 32)};
}
#endif

#if !defined(CGX_DEVICE_COMPILER)
/// What takes the place of the sequence number where a step is counted, which a checkpoint holds:
/// different for every step of a tensor, and for every tensor of a step. Far from sequence numbers,
/// which are small.
inline uint64_t number_of_step(uint64_t step, uint64_t tensor) {
  return splitmix64(splitmix64(~tensor) ^ step);
}

/// Key of a local operator (csrc/tensors), by the one rule for all of them: the random number of an
/// element is a function of (seed, step, number of the tensor in the step, rank, number of the
/// element), so that a recomputation and a resumed run repeat it. rank: 0 where all ranks hold the same
/// tensor and need the same numbers. Of tensor 0 `step` is a sequence number itself.
inline RandomKey local_key(uint64_t seed, uint64_t step, uint64_t tensor, int rank) {
  return random_key(seed, tensor == 0 ? step : number_of_step(step, tensor), rank, 0);
}
#endif

/// Key of the elements whose number has the high word `high`: the counter itself has 32 bits only.
CGX_HD RandomKey key_of_high(RandomKey key, uint32_t high) {
  if (high == 0) return key;
  const uint64_t mixed = splitmix64(high);
  return {key.low ^ static_cast<uint32_t>(mixed), key.high ^ static_cast<uint32_t>(mixed >> 32)};
}

/// random_unit() of element number `index` of a call.
CGX_HD float random_of(RandomKey key, uint64_t index) {
  const RandomKey k = key_of_high(key, static_cast<uint32_t>(index >> 32));
  return random_unit(random_bits(static_cast<uint32_t>(index), k.low, k.high));
}

}  // namespace cgx
