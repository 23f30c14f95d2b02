// Kernels of warps with a thread for each lane give the bytes of lanes that take turns, which the
// other tests compare with the CPU's codecs; ThreadSanitizer sees what lanes share without waiting
// for each other.
#include <cstring>
#include <string>
#include <vector>

#include "../device/host_kernels.h"
#include "check.h"
#include "codec/ops/convert.h"
#include "gpu_block.h"
#include "gpu_launches.h"
#include "lane_threads.h"

namespace cgx::native {
namespace {

// The launches of a table that is all for warps, with lanes that take turns, and with threads.
struct InTurns {
  static void encode(const gpu::Tables& tables, const gpu::EncodeCall& call, uint32_t split) {
    encode_all(tables, call, split);
  }
  static void decode(const gpu::Tables& tables, const gpu::DecodeCall& call, uint32_t split) {
    decode_all(tables, call, split);
  }
  static void sum(const gpu::Tables& tables, const gpu::SumCall& call, uint32_t split) {
    sum_all(tables, call, split);
  }
};

template <typename Family>
struct InThreads {
  template <typename Call>
  static Call of_warps(const gpu::Tables& tables, Call call, uint32_t split) {
    call.table = tables.warps[0].table;
    call.table.split = split;
    return call;
  }
  static void encode(const gpu::Tables& tables, const gpu::EncodeCall& call, uint32_t split) {
    device::encode_by_warps<Family, OnThreads>(of_warps(tables, call, split));
  }
  static void decode(const gpu::Tables& tables, const gpu::DecodeCall& call, uint32_t split) {
    device::decode_by_warps<Family, OnThreads>(of_warps(tables, call, split));
  }
  static void sum(const gpu::Tables& tables, const gpu::SumCall& call, uint32_t split) {
    device::sum_by_warps<Family, OnThreads>(of_warps(tables, call, split));
  }
};

template <typename Family>
class LaneCase {
 public:
  LaneCase(const CodecConfig& config, DType dtype, size_t n, uint32_t split)
      : codec_(make_codec(config)),
        type_(gpu::type_of(dtype)),
        split_(split),
        x_(n * size_of(dtype)) {
    std::vector<float> values = ordinary(n, n);
    for (size_t i = n / 3; i < n / 2; ++i) values[i] = 0.0f;
    values[n - 1] = __builtin_inff();
    from_float(values.data(), dtype, n, x_.data());
    runs_.add(*codec_, dtype, 0, 0, n, kIndex, 0, 0);
    image_ = runs_.image();
    tables_ = runs_.tables(image_.data());
    CHECK(tables_.warps.size() == 1 && tables_.rest.tiles == 0 && tables_.rest.long_buckets == 0,
          "all of it is for warps");
    name_ = str_of(codec_->describe(), ", ", cgx::name_of(dtype), ", n=", n, ", split ", split);
    bytes_ = codec_->encoded_bytes(n, dtype);
  }

  void check() {
    std::vector<std::byte> message;
    same("encode", [&]<typename How>(How) {
      std::vector<std::byte> made(bytes_);
      How::encode(tables_, {{}, data(x_), kKey, type_, {data(made)}, {}}, split_);
      return message = made;
    });
    same("decode", [&]<typename How>(How) {
      std::vector<std::byte> y(x_.size());
      How::decode(tables_, {{}, data(y), type_, 0, {data(message)}}, split_);
      return y;
    });
    for (const bool encodes : {true, false}) {
      same(encodes ? "sum" : "sum for oneself", [&]<typename How>(How) {
        std::vector<std::byte> xy = x_, made(bytes_);
        gpu::SumCall call{.table = {},
                          .x = data(xy),
                          .encoded = encodes ? data(made) : nullptr,
                          .y = data(xy),
                          .key = kKey,
                          .divisor = 3.0f,
                          .ranks = 3,
                          .own = type_,
                          .type = type_,
                          .payloads = {data(message), nullptr, data(message)},
                          .feedback = {}};
        How::sum(tables_, call, split_);
        xy.insert(xy.end(), made.begin(), made.end());
        return xy;
      });
    }
  }

 private:
  static unsigned char* data(std::vector<std::byte>& bytes) {
    return reinterpret_cast<unsigned char*>(bytes.data());
  }
  template <typename Run>
  void same(const char* what, const Run& run) {
    const auto wanted = run(InTurns{});
    CHECK(run(InThreads<Family>{}) == wanted, what, " of ", name_);
  }

  std::shared_ptr<const Codec> codec_;
  gpu::Type type_;
  uint32_t split_;
  std::vector<std::byte> x_;
  gpu::RunTable runs_;
  std::vector<std::byte> image_;
  gpu::Tables tables_;
  std::string name_;
  size_t bytes_;
};

// Each width takes the next block, type and split, so that all of them occur.
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

template <typename Family>
void of_rotated_blocks(const char* name, int most, int64_t blocks) {
  constexpr int64_t kBlocks[] = {256, 512, 1024};
  for (int bits = 1; bits <= most; ++bits) {
    CodecConfig config = config_named(name);
    config.set("bits", int64_t{bits});
    config.set("block_size", kBlocks[bits % 3]);
    config.set("scale", bits % 2 == 0 ? "mse" : "unbiased");
    const auto n = static_cast<size_t>(blocks * kBlocks[bits % 3]);
    LaneCase<Family>(config, kTypes[bits / 2 % 3], n, static_cast<uint32_t>((bits + 1) % 3))
        .check();
  }
}

}  // namespace

TEST(gpu_warps_of_threads_with_maxmin) {
  constexpr int64_t kBuckets[] = {64, 512, 2048};
  for (int bits = 1; bits <= 8; ++bits) {
    CodecConfig config = config_named("maxmin");
    config.set("bits", int64_t{bits});
    config.set("bucket_size", kBuckets[bits % 3]);
    config.set("rounding", bits % 2 == 0 ? "nearest" : "stochastic");
    LaneCase<gpu::maxmin::Warps>(config, kTypes[bits / 2 % 3], 3 * 2048,
                                 static_cast<uint32_t>((bits + 1) % 3))
        .check();
  }
}

TEST(gpu_warps_of_threads_with_rotated) { of_rotated_blocks<gpu::rotated::Warps>("rotated", 8, 5); }

TEST(gpu_warps_of_threads_with_trellis) {
  of_rotated_blocks<gpu::trellis::Warps>("trellis", 4, 11);
}

}  // namespace cgx::native
