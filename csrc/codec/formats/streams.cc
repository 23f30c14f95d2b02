#include "codec/formats/streams.h"

#include "base/unroll.h"
#include "codec/ops/scalar-inl.h"

namespace cgx::formats {
namespace {

/// By Kind; the other kinds have no codes.
struct StreamLoops {
  void (*encode[3])(const Coder& coder, const float* x, size_t n, RandomKey key, uint64_t index,
                    std::byte* out);
  void (*decode[2])(const Coder& coder, const std::byte* in, size_t n, float* y);  // by `add`
};

}  // namespace
}  // namespace cgx::formats

#define CGX_LEVEL_FILE "codec/formats/streams-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::formats {
namespace {

const StreamLoops& stream_loops() {
  static constexpr cpu::ByLevel<StreamLoops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

}  // namespace

void encode(const Coder& coder, const float* x, size_t n, RandomKey key, uint64_t index,
            std::byte* out) {
  stream_loops().encode[static_cast<int>(coder.kind)](coder, x, n, key, index, out);
}

void decode(const Coder& coder, const std::byte* in, size_t n, float* y, bool add) {
  stream_loops().decode[add ? 1 : 0](coder, in, n, y);
}

}  // namespace cgx::formats
