// The contract of a compressor: what bytes of varying number a run of values becomes, and back.
//
// A payload is complete: its header says how many values of which type it holds, and whatever else a
// reader needs, so any compressor of a family reads the payloads of all others. Sizes depend on the
// data; most_bytes() bounds them. Compressors do not go on the wire of a collective, whose messages
// have sizes that are known without data: that is codec/codec.h.
//
// A compressor is a pure function of its arguments, apart from tables that it keeps. Same input, same
// bytes, on every SIMD level. It works on the calling thread. Thread-safety: all methods are const and
// may be called concurrently, and so may the entropy coder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype_set.h"
#include "codec/declaration.h"
#include "codec/entropy.h"

namespace cgx {

class Compressor;
struct CompressorFamily;
/// What a user asks of a compressor.
using CompressorConfig = ConfigOf<CompressorFamily>;

/// What the declaration of a family of compressors makes.
struct CompressorMaker {
  static constexpr const char* kWord = "compressor";

  /// ConfigError: parameters that do not go together, or no `entropy` where one is needed.
  std::shared_ptr<const Compressor> (*make)(const CompressorConfig& config,
                                            std::shared_ptr<const EntropyCoder> entropy);
  /// Payloads need an entropy coder. Where they do not, one makes them shorter, if the format has it.
  bool needs_entropy = false;
  /// Checksums cover all of a payload: any altered byte is an error. Else some alterations change
  /// values.
  bool detects_changes = true;
  /// Every value of its types. Else values such as NaN and infinities, or values out of a range, are
  /// errors that say so.
  bool takes_all = true;
};

struct CompressorFamily : Declared<CompressorMaker> {
  using Declared::Declared;
};

/// What a payload's header says.
struct PayloadInfo {
  DType dtype = DType::kFloat32;
  uint64_t count = 0;  // values
  /// Of the tensor that was compressed; payloads without a shape: the count alone.
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;  // of the payload
  /// "lossless", "absolute", "relative" (`bound` is absolute, and was given in parts of the range),
  /// "pointwise" (in parts of each value), "words" (between the values' bits as integers).
  std::string kind = "lossless";
  double bound = 0;
};

class Compressor {
 public:
  explicit Compressor(CompressorConfig config)
      : config_(std::move(config)), text_(config_.describe()) {}
  virtual ~Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  const CompressorConfig& config() const { return config_; }
  /// "bounded kind=absolute bound=0.001"; goes into logs and errors.
  const std::string& describe() const { return text_; }

  /// The element types that compress() takes with this configuration.
  virtual DTypeSet dtypes() const = 0;

  /// The most bytes of a payload of n values; needs no data. ConfigError: a type that it does not take.
  size_t most_bytes(size_t n, DType dtype) const;

  /// Writes the payload of n values to the beginning of `out` and returns its bytes.
  ///   x    aligned as its type is; elements of bool are 0 or 1
  ///   out  most_bytes(n, dtype) bytes or more, of any alignment; does not overlap x. Bytes behind the
  ///        payload may be written, too
  /// ConfigError: a type or a value that it does not take, or `out` is too short.
  size_t compress(const void* x, size_t n, DType dtype, std::span<std::byte> out) const;

  /// Reads the header, and checks it: against the payload's length, and by a checksum if there is one.
  /// Takes no more memory than a payload of this length can need. ConfigError: the payload is of
  /// another format or version, was cut or altered.
  virtual PayloadInfo info(std::span<const std::byte> payload) const = 0;

  /// Writes the values of a payload, of any configuration of the family.
  ///   y  the n values of type dtype that info() says, aligned; no other byte is touched. After an error
  ///      it may be partly written
  /// ConfigError: see info(); n or dtype differs from the payload's.
  void decompress(std::span<const std::byte> payload, void* y, size_t n, DType dtype) const;

  /// limits[i]: what |decompressed - x[i]| may be at most, in float64; of a complex element two limits.
  /// Infinities and NaN stay what they are where a compressor takes them, and so do values with the
  /// limit 0.
  virtual void bound(const void* x, size_t n, DType dtype, double* limits) const = 0;

 private:
  virtual size_t most_payload(size_t n, DType dtype) const = 0;
  virtual size_t write(const void* x, size_t n, DType dtype, std::span<std::byte> out) const = 0;
  virtual void read(std::span<const std::byte> payload, const PayloadInfo& info, void* y) const = 0;

  const CompressorConfig config_;
  const std::string text_;
};

/// All families of compressors: first the list of codec/compressors/list.h, then the added ones.
const DeclarationList<CompressorFamily>& compressors();
/// For tests, before threads use compressors. ConfigError: the name is taken.
void add_compressor(const CompressorFamily& family);

/// ConfigError: parameters that do not go together, or `entropy` is null and the format needs it.
std::shared_ptr<const Compressor> make_compressor(const CompressorConfig& config,
                                                  std::shared_ptr<const EntropyCoder> entropy);

}  // namespace cgx
