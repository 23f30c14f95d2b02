#include "codec/cast.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/float_mode.h"
#include "base/host_device.h"
#include "codec/casts/list.h"
#include "codec/ops/convert.h"

namespace cgx {
namespace {

// Values that are cast at once: they stay in the first level's cache.
constexpr size_t kCastTile = 1024;

DeclarationList<CastFamily>& cast_list() {
  // Never destroyed: threads may cast while the process ends.
  static auto* all = [] {
    auto* made = new DeclarationList<CastFamily>;
#define CGX_CAST(name) made->add(name##_cast());
    CGX_CASTS(CGX_CAST)
#undef CGX_CAST
    return made;
  }();
  return *all;
}

// On bits, as compilers make branches of comparisons of floats, and then do not vectorise.
constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
int32_t signed_bits(float x) { return static_cast<int32_t>(as_bits(x)); }
// All bits are ones if x is finite, else none.
int32_t finite_mask(float x) { return ((signed_bits(x) & kMagnitude) - kInfinity) >> 31; }

// The statistics of one block.
class BlockSums {
 public:
  void add(const float* x, const float* y, size_t n) {
    add_counts(x, y, n);
    add_squares(x, y, n);
    total_.values += n;
  }

  CastStatistics total(uint64_t saturations) const {
    CastStatistics total = total_;
    total.saturations = saturations;
    for (const double sum : squares_) total.squared_error += sum;
    return total;
  }

 private:
  void add_counts(const float* x, const float* y, size_t n) {
    int32_t amax = 0, nonfinite = 0, underflows = 0;  // bits of magnitudes are in their order
    for (size_t i = 0; i < n; ++i) {
      const int32_t finite = finite_mask(x[i]);
      const int32_t magnitude = signed_bits(x[i]) & kMagnitude & finite;
      nonfinite += 1 + finite;
      underflows += (magnitude != 0 ? 1 : 0) & ((signed_bits(y[i]) & kMagnitude) == 0 ? 1 : 0);
      amax = magnitude > amax ? magnitude : amax;
    }
    total_.nonfinite += static_cast<uint64_t>(nonfinite);
    total_.underflows += static_cast<uint64_t>(underflows);
    total_.amax = std::max(total_.amax, from_bits(static_cast<uint32_t>(amax)));
  }

  // Sum k has every kSums-th value of the block from k on: compilers may compute them side by side, and
  // the order of each stays.
  void add_squares(const float* x, const float* y, size_t n) {
    size_t i = 0;
    for (; i < n && place(i) != 0; ++i) squares_[place(i)] += square(x[i], y[i]);
    double sums[kSums];
    std::copy(squares_, squares_ + kSums, sums);
    for (; i + kSums <= n; i += kSums) {
      for (size_t k = 0; k < kSums; ++k) sums[k] += square(x[i + k], y[i + k]);
    }
    std::copy(sums, sums + kSums, squares_);
    for (; i < n; ++i) squares_[place(i)] += square(x[i], y[i]);
  }

  size_t place(size_t i) const { return (total_.values + i) % kSums; }
  static double square(float x, float y) {
    const auto finite = static_cast<uint32_t>(finite_mask(x));
    const double error = static_cast<double>(from_bits(as_bits(y) & finite)) -
                         static_cast<double>(from_bits(as_bits(x) & finite));
    return error * error;
  }

  static constexpr size_t kSums = 8;

  CastStatistics total_;
  double squares_[kSums] = {};
};

void check_part_of_cast(const Cast& cast, size_t first, size_t n, size_t count, size_t unit) {
  const bool inside = first <= count && n <= count - first;
  if (inside && first % unit == 0 && (n % unit == 0 || first + n == count)) return;
  throw ConfigError(str_of(cast.describe(), ": part of a run is first=", first, ", n=", n,
                           ", allowed with count=", count, ": multiples of ", unit,
                           " up to the end of the run"));
}

}  // namespace

CastStatistics add_up(std::span<const CastStatistics> blocks) {
  CastStatistics total;
  for (const CastStatistics& block : blocks) {
    total.values += block.values;
    total.nonfinite += block.nonfinite;
    total.underflows += block.underflows;
    total.saturations += block.saturations;
    total.amax = std::max(total.amax, block.amax);
    total.squared_error += block.squared_error;
  }
  return total;
}

void Cast::roundtrip(const void* x, DType x_dtype, size_t count, size_t first, size_t n,
                     RandomKey key, uint64_t index, void* y, DType y_dtype,
                     CastStatistics* blocks) const {
  check_dtype(describe() + ": x", x_dtype, dtypes());
  check_dtype(describe() + ": y", y_dtype, dtypes());
  check_part_of_cast(*this, first, n, count, block());
  if (blocks != nullptr) check_part_of_cast(*this, first, n, count, kStatisticsBlock);
  const FloatMode mode;
  const size_t unit = block();
  const size_t tile = unit < kCastTile ? kCastTile / unit * unit : unit;
  const size_t most = std::min(tile, n);
  std::vector<float> scratch(2 * most);
  float* const in = scratch.data();
  float* const out = in + most;
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  BlockSums sums;
  uint64_t saturations = 0;
  for (size_t done = 0; done < n; done += tile) {
    const size_t some = std::min(tile, n - done), at = first + done;
    to_float(from + done * size_of(x_dtype), x_dtype, some, in);
    cast(in, some, key, index + at, out, blocks == nullptr ? nullptr : &saturations);
    from_float(out, y_dtype, some, to + done * size_of(y_dtype));
    for (size_t i = 0; blocks != nullptr && i < some;) {
      const size_t number = (at + i) / kStatisticsBlock, end = (number + 1) * kStatisticsBlock;
      const size_t here = std::min(some - i, end - (at + i));
      sums.add(in + i, out + i, here);
      i += here;
      if (at + i != end && at + i != first + n) continue;
      // Of a tile that reaches into the next block, all saturations count here.
      blocks[number] = sums.total(saturations);
      sums = BlockSums();
      saturations = 0;
    }
  }
}

const DeclarationList<CastFamily>& casts() { return cast_list(); }

void add_cast(const CastFamily& family) { cast_list().add(family); }

std::shared_ptr<const Cast> make_cast(const CastConfig& config) {
  return config.family().make(config);
}

}  // namespace cgx
