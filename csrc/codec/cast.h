// The contract of a cast: the values that remain of a run of values in another format.
//
// A cast has no payload: it reads values and writes what a reader of the format would get, in the type
// of a tensor, in place or not. A family of casts describes a format of numbers and how values are
// rounded to it. Values of 16 bits become float32, which holds them; float64 is rounded from float64.
//
// A tensor is one run of values, or several, each of which a cast treats by itself: the rows whose values
// share scales, strips of rows, channels. A cast may measure a group of values before it casts them, for a
// scale or a mean: each run, or the whole tensor.
//
// A cast is a pure function of its arguments. Same input, same bits, on every SIMD level, and however
// a run is cut into parts. Thread-safety: all methods are const and may be called concurrently, for
// different parts of a run, too.
//
// Statistics are collected in the pass that casts. A run is divided into blocks of kStatisticsBlock
// values, counted from its start. The sums of a block are computed in one order, by one call, and are
// written to a place of the block's own; add_up() then goes through the blocks in order. So the number
// of threads does not change a bit of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype_set.h"
#include "codec/casts/gpu/call.h"
#include "codec/casts/measured.h"
#include "codec/declaration.h"
#include "codec/ops/random.h"

namespace cgx {

class Cast;
struct CastFamily;
/// What a user asks of a cast.
using CastConfig = ConfigOf<CastFamily>;

/// What the declaration of a family of casts makes.
struct CastMaker {
  static constexpr const char* kWord = "cast";

  /// ConfigError: parameters that do not go together.
  std::shared_ptr<const Cast> (*make)(const CastConfig& config);
  /// limits[i]: what |y - x[i]| may be at most, of a run of n finite values; from the format's
  /// statement, in float64. Values that saturate have no limit: infinity. Null: nothing is stated.
  void (*bound)(const CastConfig& config, const float* x, size_t n, double* limits) = nullptr;
};

struct CastFamily : Declared<CastMaker> {
  using Declared::Declared;
};

/// The types of tensors that casts read and write.
inline constexpr DTypeSet kCastable{DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                    DType::kFloat64};

/// What a cast did to some values. Of inputs that are NaN or infinite it counts that they were there,
/// and nothing else.
struct CastStatistics {
  uint64_t values = 0;
  uint64_t nonfinite = 0;
  uint64_t underflows = 0;    // values other than 0 that became 0
  uint64_t saturations = 0;   // values beyond the largest number of the format
  double amax = 0;            // the greatest |x|
  double squared_values = 0;  // sum of x^2
  // Sum of (y - x)^2, y before it is rounded to the output's type; without values that become infinite or
  // NaN, which count as saturations.
  double squared_error = 0;

  bool operator==(const CastStatistics&) const = default;
};

constexpr size_t statistics_blocks(size_t count) {
  return count / kStatisticsBlock + (count % kStatisticsBlock != 0 ? 1 : 0);
}

/// The statistics of a run: the sum over its blocks, in order.
CastStatistics add_up(std::span<const CastStatistics> blocks);

/// Which values a cast measures together before it casts them.
enum class Group : uint8_t { kNone, kRun, kTensor };

/// What bits per value a cast stands for, its scales included: of `count` values in runs of `columns`
/// values a row.
struct CastSize {
  double bits = 32;       // of a value
  double block_bits = 0;  // of what a block shares
  double group_bits = 0;  // of what a measured group shares
};

class Cast {
 public:
  explicit Cast(CastConfig config) : config_(std::move(config)), text_(config_.describe()) {}
  virtual ~Cast() = default;
  Cast(const Cast&) = delete;
  Cast& operator=(const Cast&) = delete;

  const CastConfig& config() const { return config_; }
  /// "e4m3 rounding=nearest"; goes into logs and errors.
  const std::string& describe() const { return text_; }

  DTypeSet dtypes() const { return kCastable; }

  /// Number of values of a row that share a scale. A part of a run starts at a multiple of it.
  virtual size_t block() const { return 1; }
  /// Number of rows whose values share a scale. If more than one, a run is so many rows, or fewer at the
  /// end, and is cast whole.
  virtual size_t block_rows() const { return 1; }
  /// Whether a run must not go on from one row to the next: blocks start anew in each, or each is a
  /// measured group. The caller may join rows that are whole blocks.
  virtual bool by_rows() const { return block() > 1 || block_rows() > 1 || group() == Group::kRun; }

  virtual Group group() const { return Group::kNone; }
  /// Whether a run is what has one number of the tensor's first dimension; else a row, of the last one.
  virtual bool by_channels() const { return false; }
  /// Measures no more than this many values of a group, which the caller takes from places of its choice;
  /// 0: all of them.
  virtual size_t samples() const { return 0; }

  /// Whether a value's result depends on the value alone (and its number, of a stochastic rounding).
  bool elementwise() const { return block() == 1 && block_rows() == 1 && group() == Group::kNone; }
  /// Whether it draws random numbers.
  virtual bool stochastic() const { return false; }

  /// A second cast of its result changes nothing, with any key; for results in float32.
  virtual bool idempotent() const { return true; }

  virtual CastSize size() const = 0;
  /// The largest number of the format, without scales, and its least step; NaN where it has no such.
  virtual double largest() const = 0;
  virtual double smallest_step() const = 0;

  /// Sets what the kernels need to know of the format; call.values is set. False: no kernel has it.
  virtual bool set_call(casting::on_gpu::Call& call) const {
    static_cast<void>(call);
    return false;
  }

  /// Measures values of a group: a part of it of at most kStatisticsBlock values, or more parts, joined in
  /// their order by join().
  Measured measure(const void* x, DType x_dtype, size_t n) const;
  virtual Measured join(const Measured& before, const Measured& after) const {
    static_cast<void>(after);
    return before;
  }

  /// Where the values of a call lie, and what is known of them.
  struct Run {
    size_t count = 0;    // values of the run
    size_t columns = 0;  // values of a row of it
    size_t total = 0;    // values of the group that was measured
    RandomKey key{};
    uint64_t index = 0;   // number of the run's first value in the whole call
    Measured measured{};  // of the run's group
  };

  /// Casts the values [first, first + n) of a run.
  ///   x        value number `first` of the run; n values of type x_dtype, of any alignment
  ///   first    a multiple of block(); first + n is a multiple of block(), or equal to run.count. With
  ///            statistics the same of kStatisticsBlock. With block_rows() > 1 the whole run
  ///   y        n values of type y_dtype; may be x where the types are equal, else they do not overlap
  ///   blocks   null, or statistics_blocks(run.count) entries; this part writes its own entries
  /// ConfigError: a type that it does not take, or another part.
  void roundtrip(const void* x, DType x_dtype, const Run& run, size_t first, size_t n, void* y,
                 DType y_dtype, CastStatistics* blocks) const;

 private:
  template <typename Real>
  void roundtrip_as(const std::byte* x, DType x_dtype, const Run& run, size_t first, size_t n,
                    std::byte* y, DType y_dtype, CastStatistics* blocks) const;

  /// y = what the format makes of x, which may be y. n values from a multiple of block() on, to another
  /// one or to the run's end. `run.index` is the number of x[0], and run.count is n.
  ///   saturations  null, or what the number of values beyond the largest number is added to. Infinite
  ///                values do not count
  virtual void cast(const float* x, size_t n, const Run& run, float* y,
                    uint64_t* saturations) const = 0;
  virtual void cast(const double* x, size_t n, const Run& run, double* y,
                    uint64_t* saturations) const = 0;

  /// At most kStatisticsBlock values.
  virtual Measured measure(const float* x, size_t n) const {
    static_cast<void>(x), static_cast<void>(n);
    return {};
  }
  virtual Measured measure(const double* x, size_t n) const {
    static_cast<void>(x), static_cast<void>(n);
    return {};
  }

  const CastConfig config_;
  const std::string text_;
};

/// All families of casts: first the list of codec/casts/list.h, then the added ones.
const DeclarationList<CastFamily>& casts();
/// For tests, before threads use casts. ConfigError: the name is taken.
void add_cast(const CastFamily& family);

/// ConfigError: parameters that do not go together.
std::shared_ptr<const Cast> make_cast(const CastConfig& config);

}  // namespace cgx
