// The contract of a cast: the values that remain of a run of values in another format.
//
// A cast has no payload: it reads values and writes what a reader of the format would get, in the type
// of a tensor, in place or not. A family of casts describes a format of numbers and how values are
// rounded to it. Arithmetic is float32 whatever the tensor's type.
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

/// Values whose statistics are summed together.
inline constexpr size_t kStatisticsBlock = 4096;

/// What a cast did to some values. Of inputs that are NaN or infinite it counts that they were there,
/// and nothing else.
struct CastStatistics {
  uint64_t values = 0;
  uint64_t nonfinite = 0;
  uint64_t underflows = 0;   // values other than 0 that became 0
  uint64_t saturations = 0;  // values beyond the largest number of the format
  float amax = 0;            // the greatest |x|
  double squared_error = 0;  // sum of (y - x)^2, y before it is rounded to the output's type

  bool operator==(const CastStatistics&) const = default;
};

constexpr size_t statistics_blocks(size_t count) {
  return count / kStatisticsBlock + (count % kStatisticsBlock != 0 ? 1 : 0);
}

/// The statistics of a run: the sum over its blocks, in order.
CastStatistics add_up(std::span<const CastStatistics> blocks);

class Cast {
 public:
  explicit Cast(CastConfig config) : config_(std::move(config)), text_(config_.describe()) {}
  virtual ~Cast() = default;
  Cast(const Cast&) = delete;
  Cast& operator=(const Cast&) = delete;

  const CastConfig& config() const { return config_; }
  /// "e4m3 rounding=nearest"; goes into logs and errors.
  const std::string& describe() const { return text_; }

  /// The types of tensors that it reads and writes.
  DTypeSet dtypes() const { return kComputed; }

  /// Number of values that share a scale. A part of a run starts at a multiple of it.
  virtual size_t block() const { return 1; }

  /// A second cast of its result changes nothing, with any key; for results in float32.
  virtual bool idempotent() const { return true; }

  /// Casts the values [first, first + n) of a run of `count` values.
  ///   x        value number `first` of the run; n values of type x_dtype, of any alignment
  ///   first    a multiple of block(); first + n is a multiple of block(), or equal to count. With
  ///            statistics the same of kStatisticsBlock
  ///   index    number of the run's first value in the whole call: counter of the generator
  ///   y        n values of type y_dtype; may be x where the types are equal, else they do not overlap
  ///   blocks   null, or statistics_blocks(count) entries of the run; this part writes its own entries
  /// ConfigError: a type that it does not take, or another part.
  void roundtrip(const void* x, DType x_dtype, size_t count, size_t first, size_t n, RandomKey key,
                 uint64_t index, void* y, DType y_dtype, CastStatistics* blocks) const;

 private:
  /// y = what the format makes of x; y does not overlap x. n values from a multiple of block() on, to
  /// another one or to the run's end.
  ///   index        number of x[0] in the call
  ///   saturations  null, or what the number of values beyond the largest number is added to. Infinite
  ///                values do not count
  virtual void cast(const float* x, size_t n, RandomKey key, uint64_t index, float* y,
                    uint64_t* saturations) const = 0;

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
