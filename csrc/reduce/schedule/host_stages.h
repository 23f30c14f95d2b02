// The stages on the host: in slices that stay in the cache, on several threads where a chunk is long
// enough. Decode, sum and encode touch a value while it is in the cache.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "reduce/schedule/stages.h"

namespace cgx {

class HostStages final : public Stages {
 public:
  /// Null: the calling thread alone.
  explicit HostStages(std::unique_ptr<const Parallel> parallel = nullptr);

  void encode(Call& call, std::span<const ChunkToSend> chunks, const View& input, Stage stage,
              bool final) override;
  void decode(Call& call, std::span<const ReceivedChunk> chunks, const View& output) override;
  void sum(Call& call, const Chunk& chunk, const Sum& wanted) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void check_input(Call& call, const void* data, size_t values) override;
  bool on_device() const override { return false; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override;

 private:
  void encode_one(Call& call, const Chunk& chunk, const View& input, Stage stage,
                  std::byte* payload, bool final);
  void encode_with_residual(Call& call, const Chunk& chunk, const View& input, Stage stage,
                            std::byte* payload, bool final);
  void decode_one(Call& call, const Chunk& chunk, const std::byte* payload, const View& output);

  const std::unique_ptr<const Parallel> parallel_;
  std::vector<float> scratch_;  // reused from call to call
};

}  // namespace cgx
