#include "codec/compat/cuda_float_compress.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/float_mode.h"
#include "base/host_device.h"

namespace cgx::cuda_float_compress {
namespace {

static_assert(std::endian::native == std::endian::little, "words are little-endian");

// Groups that are shuffled side by side: their words are a cache line each.
constexpr size_t kLanes = 16;
constexpr size_t kTile = kLanes * kGroup;  // values

using Words = uint32_t[kGroup][kLanes];

// The original's quotients. False: a value may be a misfit.
inline bool quantise(const float* x, size_t n, const Grid& grid, int32_t* q) {
  const Grid own = grid;  // in registers
  int32_t least = 0;      // negative: somewhere there is no room
  for (size_t i = 0; i < n; ++i) {
    const Quotient found = quotient_of(x[i], own);
    q[i] = found.q;
    least |= found.room;
  }
  return least >= 0;
}

// The values of a run that quantise() doubts. `first`: index of x[0], for the misfits.
void settle(const float* x, size_t n, size_t first, const Grid& grid, int32_t* q,
            Misfits* misfits) {
  for (size_t i = 0; i < n; ++i) {
    const Fit fit = settle(x[i], grid, q[i]);
    if (fit == Fit::kOutOfRange) {
      misfits->range = std::min(misfits->range, first + i);
      return;
    }
    if (fit == Fit::kOutOfBound) misfits->bound = std::min(misfits->bound, first + i);
  }
}

inline void zigzag_deltas(const int32_t* q, size_t n, uint32_t* u) {  // q[-1]: 0
  for (size_t i = 0; i < n; ++i) {
    u[i] = zigzag(static_cast<uint32_t>(q[i]) - static_cast<uint32_t>(q[i - 1]));
  }
}

// n <= kTile values to the words of kLanes groups. `out`: word 0 of the first group.
void encode_tile(const float* x, size_t n, size_t first, const Grid& grid, Misfits* misfits,
                 uint32_t* out) {
  uint32_t u[kTile];
  int32_t q[1 + kRun];
  q[0] = 0;
  for (size_t start = 0; start < n; start += kRun) {
    const size_t count = std::min<size_t>(n - start, kRun);
    if (!quantise(x + start, count, grid, q + 1)) {
      settle(x + start, count, first + start, grid, q + 1, misfits);
    }
    zigzag_deltas(q + 1, count, u + start);
  }
  std::fill(u + n, u + kTile, 0);
  Words words;
  for (size_t w = 0; w < kGroup; ++w) {
    for (size_t lane = 0; lane < kLanes; ++lane) words[w][lane] = u[lane * kGroup + w];
  }
  transpose_fields(words);
  for (size_t row = 0; row < kGroup; ++row) {
    std::copy(words[row], words[row] + kLanes, out + place(row));
  }
}

// The words of kLanes groups to their kTile values. `in`: word 0 of the first group.
void decode_tile(const uint32_t* in, float step, float* y) {
  Words words;
  for (size_t row = 0; row < kGroup; ++row) {
    const uint32_t* from = in + place(row);
    std::copy(from, from + kLanes, words[row]);
  }
  transpose_fields(words);
  uint32_t sum[kLanes] = {};  // of a group so far
  for (size_t w = 0; w < kGroup; ++w) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sum[lane] += unzigzag(words[w][lane]);
      words[w][lane] = sum[lane];
    }
  }
  uint32_t before[kLanes];  // the sum of the groups of the run before this one
  for (size_t lane = 0; lane < kLanes; ++lane) {
    before[lane] = lane % kGroupsOfRun == 0 ? 0 : before[lane - 1] + sum[lane - 1];
  }
  for (size_t w = 0; w < kGroup; ++w) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto q = static_cast<int32_t>(words[w][lane] + before[lane]);
      y[lane * kGroup + w] = value_of(q, step);
    }
  }
}

}  // namespace

Grid make_grid(float step, double max_error) {
  const FloatMode mode;
  auto surely = static_cast<float>(max_error);
  if (surely > max_error) surely = std::nextafter(surely, 0.0f);
  return {step, 1.0f / step, max_error, surely};
}

Misfits encode(const float* x, size_t n, float step, double max_error, bool keep_going,
               uint32_t* raw) {
  const FloatMode mode;
  const Grid grid = make_grid(step, max_error);
  Misfits misfits{n, n};
  for (size_t start = 0; start < raw_words(n); start += kTile) {
    const size_t block = start / kBlockValues * kBlockValues;
    uint32_t* out = raw + block + (start - block) / kGroup;
    const size_t count = start < n ? std::min(n - start, kTile) : 0;
    encode_tile(x + std::min(start, n), count, start, grid, &misfits, out);
    if (misfits.range < n || (misfits.bound < n && !keep_going)) break;
  }
  return misfits;
}

void decode(const uint32_t* raw, size_t n, float step, float* y) {
  const FloatMode mode;
  for (size_t start = 0; start < n; start += kTile) {
    const size_t block = start / kBlockValues * kBlockValues;
    const uint32_t* in = raw + block + (start - block) / kGroup;
    if (n - start >= kTile) {
      decode_tile(in, step, y + start);
    } else {
      float last[kTile];
      decode_tile(in, step, last);
      std::copy(last, last + (n - start), y + start);
    }
  }
}

size_t first_out_of_range(const float* x, size_t n, float step, float* largest) {
  const FloatMode mode;
  const float inverse = 1.0f / step;
  int32_t most = 0;  // bits of magnitudes compare as they do, and those of NaN are the greatest
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(as_bits(x[i]) & kMagnitude);
    most = magnitude > most ? magnitude : most;
  }
  *largest = from_bits(static_cast<uint32_t>(most));
  if (room(*largest * inverse, kRange) >= 0) return n;  // the product grows with the magnitude
  for (size_t i = 0; i < n; ++i) {
    if (room(x[i] * inverse, kRange) < 0) return i;
  }
  return n;
}

// Let u be a power of two with |x| + max_error <= 2^24 u for all x. If u <= 2 max_error, the step is
// s = m u, with the greatest m. A product q s near an x is a multiple of u and at most 2^24 u: a
// float32 value, so that decoding is exact. |x - q s| of the nearest quotient is at most s / 2. It
// is at most one from the original's: that has x * (1 / s) with an error below 2^24 / m * 2^-23 =
// 2 / m, and no error if m is 1 or 2, powers of two.
// If u > 2 max_error, s is the greatest power of two: x * (1 / s) is exact. From 2^23 on it is an
// integer that decodes to x; below that, q is a float32 value, and its product with s is exact.
float exact_step(double max_error, float largest) {
  const FloatMode mode;
  auto step = static_cast<float>(2 * max_error);
  if (step > 2 * max_error) step = std::nextafter(step, 0.0f);
  int exponent = 0;  // largest + max_error <= 2^exponent
  std::frexp(static_cast<double>(largest) + max_error, &exponent);
  const double u = std::ldexp(1.0, exponent - 24);
  if (u > step) return std::ldexp(1.0f, std::ilogb(step));
  return static_cast<float>(std::floor(step / u) * u);
}

}  // namespace cgx::cuda_float_compress
