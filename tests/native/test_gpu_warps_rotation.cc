// Kernels of warps for rotated blocks on the host: the bytes and values of the CPU, for blocks,
// widths, types, sizes and values out of the ordinary.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "check.h"
#include "codec/families/gpu_list.h"
#include "codec/ops/convert.h"
#include "gpu_block.h"

namespace cgx::native {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::shared_ptr<const Codec> codec_of(const char* name, int64_t bits, int64_t block,
                                      const char* scale = "mse") {
  CodecConfig config = config_named(name);
  config.set("bits", bits);
  config.set("block_size", block);
  config.set("scale", scale);
  return make_codec(config);
}

void check_values(const std::shared_ptr<const Codec>& codec, DType dtype,
                  const std::vector<float>& x) {
  BlockCase c{codec, dtype, x.size(), std::vector<std::byte>(x.size() * size_of(dtype))};
  from_float(x.data(), dtype, x.size(), c.x.data());
  check_encode(c);
  check_decode(c);
  check_sum(c);
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

}  // namespace

TEST(gpu_warps_of_rotated_blocks_at_every_width) {
  for (const char* name : {"rotated", "trellis"}) {
    const int most = name == std::string("rotated") ? 8 : 4;
    for (int bits = 1; bits <= most; ++bits) {
      for (int i = 0; i < 3; ++i) {
        const int64_t block = 256 << i;
        const auto codec = codec_of(name, bits, block, bits % 2 == 0 ? "mse" : "unbiased");
        const auto n = static_cast<size_t>(5 * block) + static_cast<size_t>(bits);
        // Each width meets each type, and each type each block.
        check_values(codec, kTypes[(bits + i) % 3], ordinary(n, n));
      }
    }
  }
}

TEST(gpu_warps_take_whole_rotated_blocks) {
  for (const char* name : {"rotated", "trellis"}) {
    for (const uint64_t block : {256, 512, 1024, 2048, 4096}) {
      for (const uint64_t n : {block - 1, 3 * block, 9 * block + 1}) {
        const auto codec = codec_of(name, 4, static_cast<int64_t>(block));
        gpu::RunTable table;
        table.add(*codec, DType::kFloat32, 0, 0, n, 0, 0, 0);
        const uint64_t taken = block <= 1024 ? n / block * block : 0;
        uint64_t of_warps = 0, of_blocks = 0;
        for (const auto& run : table.by_warps(codec->config().family().id).runs()) {
          of_warps += run.count - run.start;
        }
        for (const auto& run : table.rest().runs()) of_blocks += run.count - run.start;
        CHECK(of_warps == taken && of_blocks == n - taken, name, ", block ", block, ", n=", n);
      }
    }
  }
}

TEST(gpu_warps_of_rotated_blocks_around_blocks_and_tiles) {
  for (const char* name : {"rotated", "trellis"}) {
    for (const int64_t block : {256, 512, 1024, 2048, 4096}) {
      const auto size = static_cast<size_t>(block);
      for (const size_t n :
           {size_t{0}, size_t{1}, size - 1, size, size + 1, size_t{2048}, size_t{4096}, 4096 + size,
            4096 + size - 1, size_t{8193}, size_t{12288}}) {
        const char* scale = n % 2 == 0 ? "mse" : "unbiased";
        const DType dtype = kTypes[n % 3];
        check_values(codec_of(name, static_cast<int64_t>(n % 4) + 1, block, scale), dtype,
                     ordinary(n, n + 1));
      }
    }
  }
}

TEST(gpu_warps_of_rotated_blocks_that_are_zeros_or_not_finite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : {"rotated", "trellis"}) {
    for (const int64_t block : {256, 512, 1024}) {
      const auto size = static_cast<size_t>(block);
      for (const char* scale : {"mse", "unbiased"}) {
        for (const int64_t bits : {1, 3, 4}) {
          std::vector<float> x = ordinary(9 * size + 5, 3);
          const auto fill = [&](size_t number, float value) {
            for (size_t i = 0; i < size; ++i) x[number * size + i] = value;
          };
          fill(0, 0.0f);
          fill(1, -0.0f);
          x[2 * size + 7] = nan;
          x[3 * size] = kInfinity;
          x[4 * size - 1] = -kInfinity;
          fill(4, 0.0f);
          x[4 * size + 100] = -3.0f;  // all coefficients have the same magnitude
          fill(5, nan);
          fill(6, 1.5f);
          // Each block and each number of bits meets each type, and each type both scales.
          const DType dtype = kTypes[(block / 256 + bits + (scale[0] == 'm' ? 0 : 1)) % 3];
          check_values(codec_of(name, bits, block, scale), dtype, x);
        }
      }
    }
  }
}

TEST(gpu_warps_of_rotated_blocks_of_any_magnitude) {
  for (const char* name : {"rotated", "trellis"}) {
    for (const float magnitude : {0x1p-140f, 0x1p-126f, 1e-30f, 1e30f, 0x1p125f, 0x1.fffffep127f}) {
      for (const char* scale : {"mse", "unbiased"}) {
        std::vector<float> x = ordinary(3 * 1024 + 1, 11);
        for (float& v : x) v = v * 0.25f * magnitude;
        x[5] = magnitude;
        for (const DType dtype : kTypes) check_values(codec_of(name, 3, 1024, scale), dtype, x);
      }
    }
  }
}

TEST(gpu_warps_of_rotated_find_the_thresholds_below_a_magnitude) {
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    const float* levels = gpu::rotated::WarpQuantizer::levels_of(bits);
    const uint32_t magnitudes = 1u << (bits - 1);
    const gpu::rotated::Guess guess = gpu::rotated::guess_of(levels, bits);
    const auto check = [&](float magnitude) {
      uint32_t found = bits <= 6 ? gpu::rotated::cell_of<2>(magnitude, guess, 0x1p23f)
                                 : gpu::rotated::cell_of<4>(magnitude, guess, 0x1p23f);
      found -= gpu::rotation::kWhole;
      CHECK(found < magnitudes, bits, " bits, ", magnitude);
      if (magnitude > gpu::rotated::bound_of(levels, found)) ++found;
      const uint32_t code = rotated::code_of(magnitude, levels, static_cast<int>(bits));
      CHECK(found - 1 == code - magnitudes, bits, " bits, ", magnitude);
    };
    for (uint32_t i = 0; i + 1 < magnitudes; ++i) {
      const float threshold = rotated::threshold(levels, i);
      check(threshold);
      check(std::nextafter(threshold, 0.0f));
      check(std::nextafter(threshold, kInfinity));
    }
    for (uint32_t word = 0; word < 0x7f800000u; word += 9973) check(std::bit_cast<float>(word));
    for (int i = 0; i < 100000; ++i) check(static_cast<float>(i) * 5e-5f);
  }
}

TEST(gpu_warps_of_trellis_find_the_nearest_level_of_each_subset) {
  for (uint32_t bits = 1; bits <= 4; ++bits) {
    const float* levels = gpu::trellis::WarpQuantizer::levels_of(bits);
    const uint32_t thresholds = gpu::trellis::thresholds_of(bits);
    const gpu::trellis::Guess guess = gpu::trellis::guess_of(bits);
    const auto check = [&](float u) {
      uint32_t found = gpu::trellis::cell_of(u, guess) - gpu::rotation::kWhole;
      CHECK(found <= thresholds, bits, " bits, ", u);
      if (u > gpu::trellis::bound_of(levels, thresholds, found)) ++found;
      const uint32_t q = found - 1;
      for (uint32_t j = 0; j < trellis::kSubsets; ++j) {
        const uint32_t m = trellis::nearest(u, levels + j, static_cast<int>(bits));
        CHECK(q + (j - q) % 4 == 4 * m + j, bits, " bits, ", u, ", subset ", j);
      }
    };
    for (uint32_t i = 1; i <= thresholds; ++i) {
      const float threshold = gpu::trellis::bound_of(levels, thresholds, i);
      for (const float to : {-kInfinity, kInfinity}) check(std::nextafter(threshold, to));
      check(threshold);
    }
    for (uint32_t word = 0; word < 0x7f800000u; word += 9973) {
      check(std::bit_cast<float>(word));
      check(std::bit_cast<float>(word | 0x80000000u));
    }
    for (int i = -60000; i < 60000; ++i) check(static_cast<float>(i) * 5e-5f);
  }
}

}  // namespace cgx::native
