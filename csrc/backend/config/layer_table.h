// Layouts that old scripts register by hand (register_layer, set_quantization_bits): bucket number
// -> layers.
//
// The old system found the bucket of an all-reduce by counting calls, so that any other all-reduce
// shifted it. Here a bucket is found by its size: a plain all_reduce whose number of values is that
// of exactly one registered layout uses it; two different layouts of the same size are an error
// that names them. New code passes layers with the call instead. Thread-safe; one table per
// process.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace cgx {

struct RegisteredLayer {
  int64_t numel = 0;
  int64_t bits = 0;         // 0: the group's setting at the time of the call
  int64_t bucket_size = 0;  // 0: likewise
  bool operator==(const RegisteredLayer&) const = default;
};

class LayerTable {
 public:
  static LayerTable& instance();

  /// layer_idx may be the next free number of the bucket, or an existing one (replaced). bits <= 0
  /// and bucket_size <= 0 mean "as the group is set". ConfigError that names the bad argument.
  void add(int64_t bucket_idx, int64_t layer_idx, int64_t numel, int64_t bits, int64_t bucket_size);
  void set_bits(int64_t bucket_idx, int64_t layer_idx, int64_t bits);
  void set_bucket_size(int64_t bucket_idx, int64_t layer_idx, int64_t bucket_size);
  void clear();

  /// The layout for a call of `numel` values; nothing if none is registered. ConfigError if it is
  /// ambiguous.
  std::optional<std::vector<RegisteredLayer>> find(int64_t numel) const;

 private:
  RegisteredLayer& at(int64_t bucket_idx, int64_t layer_idx);

  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<RegisteredLayer>> buckets_;
};

}  // namespace cgx
