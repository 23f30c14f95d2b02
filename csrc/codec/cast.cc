#include "codec/cast.h"

#include <algorithm>
#include <cstring>
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
template <typename Real>
struct Bits {
  using Signed = int32_t;
  static constexpr Signed kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
};
template <>
struct Bits<double> {
  using Signed = int64_t;
  static constexpr Signed kMagnitude = 0x7fffffffffffffff, kInfinity = 0x7ff0000000000000;
};
template <typename Real>
auto signed_bits(Real x) {
  return static_cast<typename Bits<Real>::Signed>(as_bits(x));
}
float real_of(int32_t bits) { return from_bits(static_cast<uint32_t>(bits)); }
double real_of(int64_t bits) { return wide_from_bits(static_cast<uint64_t>(bits)); }

// All bits are ones if x is finite, else none.
template <typename Real>
auto finite_mask(Real x) {
  using B = Bits<Real>;
  return ((signed_bits(x) & B::kMagnitude) - B::kInfinity) >> (8 * sizeof(Real) - 1);
}

// The statistics of one block.
template <typename Real>
class BlockSums {
 public:
  void add(const Real* x, const Real* y, size_t n) {
    add_counts(x, y, n);
    add_squares(x, y, n);
    total_.values += n;
  }

  CastStatistics total(uint64_t saturations) const {
    CastStatistics total = total_;
    total.saturations = saturations;
    for (const Sum& sum : sums_) {
      total.squared_error += sum.error;
      total.squared_values += sum.value;
    }
    return total;
  }

 private:
  using Signed = typename Bits<Real>::Signed;

  struct Sum {
    double error = 0, value = 0;
  };

  void add_counts(const Real* x, const Real* y, size_t n) {
    Signed amax = 0, nonfinite = 0, underflows = 0;  // bits of magnitudes are in their order
    for (size_t i = 0; i < n; ++i) {
      const Signed finite = finite_mask(x[i]);
      const Signed magnitude = signed_bits(x[i]) & Bits<Real>::kMagnitude & finite;
      nonfinite += 1 + finite;
      underflows +=
          (magnitude != 0 ? 1 : 0) & ((signed_bits(y[i]) & Bits<Real>::kMagnitude) == 0 ? 1 : 0);
      amax = magnitude > amax ? magnitude : amax;
    }
    total_.nonfinite += static_cast<uint64_t>(nonfinite);
    total_.underflows += static_cast<uint64_t>(underflows);
    total_.amax = std::max(total_.amax, static_cast<double>(real_of(amax)));
  }

  // Sum k has every kSums-th value of the block from k on: compilers may compute them side by side, and
  // the order of each stays.
  void add_squares(const Real* x, const Real* y, size_t n) {
    size_t i = 0;
    for (; i < n && place(i) != 0; ++i) add_to(sums_[place(i)], x[i], y[i]);
    Sum sums[kSums];
    std::copy(sums_, sums_ + kSums, sums);
    for (; i + kSums <= n; i += kSums) {
      for (size_t k = 0; k < kSums; ++k) add_to(sums[k], x[i + k], y[i + k]);
    }
    std::copy(sums, sums + kSums, sums_);
    for (; i < n; ++i) add_to(sums_[place(i)], x[i], y[i]);
  }

  size_t place(size_t i) const { return (total_.values + i) % kSums; }
  static void add_to(Sum& sum, Real x, Real y) {
    const Signed finite = finite_mask(x), both = finite & finite_mask(y);
    const double value = static_cast<double>(real_of(signed_bits(x) & finite));
    const double error = static_cast<double>(real_of(signed_bits(y) & both)) -
                         static_cast<double>(real_of(signed_bits(x) & both));
    sum.error += error * error;
    sum.value += value * value;
  }

  static constexpr size_t kSums = 8;

  CastStatistics total_;
  Sum sums_[kSums];
};

void check_part_of_cast(const Cast& cast, size_t first, size_t n, size_t count, size_t unit) {
  const bool inside = first <= count && n <= count - first;
  if (inside && first % unit == 0 && (n % unit == 0 || first + n == count)) return;
  throw ConfigError(str_of(cast.describe(), ": part of a run is first=", first, ", n=", n,
                           ", allowed with count=", count, ": multiples of ", unit,
                           " up to the end of the run"));
}

// Values as they lie, where they are of the type to compute in.
template <typename Real>
bool is_direct(const std::byte* values, DType dtype) {
  constexpr DType own = sizeof(Real) == 4 ? DType::kFloat32 : DType::kFloat64;
  return dtype == own && reinterpret_cast<uintptr_t>(values) % alignof(Real) == 0;
}

void to_real(const std::byte* x, DType dtype, size_t n, float* y) { to_float(x, dtype, n, y); }
void to_real(const std::byte* x, DType, size_t n, double* y) {
  std::memcpy(y, x, n * sizeof(double));
}
void from_real(const float* x, DType dtype, size_t n, std::byte* y) { from_float(x, dtype, n, y); }
void from_real(const double* x, DType dtype, size_t n, std::byte* y) {
  if (dtype == DType::kFloat64) {
    std::memcpy(y, x, n * sizeof(double));
    return;
  }
  // Numbers of formats are numbers of float32.
  std::vector<float> narrow(x, x + n);
  from_float(narrow.data(), dtype, n, y);
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
    total.squared_values += block.squared_values;
    total.squared_error += block.squared_error;
  }
  return total;
}

template <typename Real>
void Cast::roundtrip_as(const std::byte* x, DType x_dtype, const Run& run, size_t first, size_t n,
                        std::byte* y, DType y_dtype, CastStatistics* blocks) const {
  const bool whole = block_rows() > 1;
  const size_t unit = whole ? run.count : block();
  const size_t tile =
      whole || unit >= kCastTile ? std::max(unit, size_t{1}) : kCastTile / unit * unit;
  const size_t most = std::min(tile, n);
  // In place, statistics need what was there.
  const bool read_here = is_direct<Real>(x, x_dtype) && !(blocks != nullptr && x == y);
  const bool write_here = is_direct<Real>(y, y_dtype);
  std::vector<Real> scratch((read_here ? 0 : most) + (write_here ? 0 : most));
  BlockSums<Real> sums;
  uint64_t saturations = 0;
  Run part = run;
  for (size_t done = 0; done < n; done += tile) {
    const size_t some = std::min(tile, n - done), at = first + done;
    const std::byte* from = x + done * size_of(x_dtype);
    std::byte* to = y + done * size_of(y_dtype);
    const Real* in = reinterpret_cast<const Real*>(from);
    if (!read_here) {
      to_real(from, x_dtype, some, scratch.data());
      in = scratch.data();
    }
    Real* out = write_here ? reinterpret_cast<Real*>(to) : scratch.data() + (read_here ? 0 : most);
    part.count = some;
    part.index = run.index + at;
    cast(in, some, part, out, blocks == nullptr ? nullptr : &saturations);
    if (!write_here) from_real(out, y_dtype, some, to);
    for (size_t i = 0; blocks != nullptr && i < some;) {
      const size_t number = (at + i) / kStatisticsBlock, end = (number + 1) * kStatisticsBlock;
      const size_t here = std::min(some - i, end - (at + i));
      sums.add(in + i, out + i, here);
      i += here;
      if (at + i != end && at + i != first + n) continue;
      // Of a tile that reaches into the next block, all saturations count here.
      blocks[number] = sums.total(saturations);
      sums = BlockSums<Real>();
      saturations = 0;
    }
  }
}

void Cast::roundtrip(const void* x, DType x_dtype, const Run& run, size_t first, size_t n, void* y,
                     DType y_dtype, CastStatistics* blocks) const {
  check_dtype(describe() + ": x", x_dtype, dtypes());
  check_dtype(describe() + ": y", y_dtype, dtypes());
  check_part_of_cast(*this, first, n, run.count,
                     block_rows() > 1 ? std::max(run.count, size_t{1}) : block());
  if (blocks != nullptr) check_part_of_cast(*this, first, n, run.count, kStatisticsBlock);
  const FloatMode mode;
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  if (x_dtype == DType::kFloat64) {
    roundtrip_as<double>(from, x_dtype, run, first, n, to, y_dtype, blocks);
  } else if (y_dtype == DType::kFloat64) {
    throw ConfigError(str_of(describe(), ": y is float64 and x is ", name_of(x_dtype),
                             ", allowed: the type of x, or float32"));
  } else {
    roundtrip_as<float>(from, x_dtype, run, first, n, to, y_dtype, blocks);
  }
}

Measured Cast::measure(const void* x, DType x_dtype, size_t n) const {
  check_dtype(describe() + ": x", x_dtype, dtypes());
  const FloatMode mode;
  const auto* from = static_cast<const std::byte*>(x);
  Measured all;
  const auto each = [&]<typename Real>(Real) {
    const bool here = is_direct<Real>(from, x_dtype);
    std::vector<Real> scratch(here ? 0 : std::min(n, kStatisticsBlock));
    for (size_t done = 0; done < n; done += kStatisticsBlock) {
      const size_t some = std::min(kStatisticsBlock, n - done);
      const std::byte* start = from + done * size_of(x_dtype);
      if (!here) to_real(start, x_dtype, some, scratch.data());
      const Measured one =
          measure(here ? reinterpret_cast<const Real*>(start) : scratch.data(), some);
      all = done == 0 ? one : join(all, one);
    }
  };
  x_dtype == DType::kFloat64 ? each(double{}) : each(float{});
  return all;
}

const DeclarationList<CastFamily>& casts() { return cast_list(); }

void add_cast(const CastFamily& family) { cast_list().add(family); }

std::shared_ptr<const Cast> make_cast(const CastConfig& config) {
  return config.family().make(config);
}

}  // namespace cgx
