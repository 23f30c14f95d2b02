// The GPU's stages on the host: the bytes and values of the CPU, for widths, types, sizes and
// borders.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "../device/host_kernels.h"
#include "check.h"
#include "codec/families/gpu_list.h"
#include "codec/ops/convert.h"
#include "data.h"
#include "gpu_block.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

std::vector<std::byte> values(DType dtype, size_t n, uint64_t seed) {
  std::vector<float> x = ordinary(n, seed);
  for (size_t i = seed % 601; i < n; i += 1201) x[i] = __builtin_nanf("");
  for (size_t i = seed % 701; i < n; i += 1301) x[i] = -__builtin_inff();
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  return bytes;
}

void check_codec(const std::shared_ptr<const Codec>& codec, size_t n) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    BlockCase c{codec, dtype, n, values(dtype, n, n + 7)};
    check_encode(c);
    check_decode(c);
    check_sum(c);
    check_feedback(c);
  }
}

void check_all(const MaxMinOptions& options, size_t n) { check_codec(make_maxmin(options), n); }

}  // namespace

TEST(gpu_stages_over_small_sizes) {
  for (size_t n = 0; n <= 400; n += n < 70 ? 1 : 23) {
    const int bits = static_cast<int>(n % 8) + 1;
    for (const int64_t bucket : {1, 5, 8, 64, 100, 512}) {
      check_all({.bits = bits, .bucket_size = bucket}, n);
    }
  }
}

TEST(gpu_stages_at_every_width) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const size_t n : {511u, 2047u, 2049u, 5000u}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        check_all({.bits = bits, .bucket_size = 512, .rounding = rounding}, n);
        check_all({.bits = bits,
                   .bucket_size = 100,
                   .rounding = rounding,
                   .skip_incomplete_buckets = true},
                  n);
      }
    }
  }
}

TEST(gpu_stages_with_buckets_around_a_tile) {
  for (const int64_t bucket : {9, 257, 1000, 1023, 2047, 2048, 2049, 4097, 1 << 20}) {
    for (const size_t n : {100u, 2048u, 4096u, 9001u}) {
      check_all({.bits = 3, .bucket_size = bucket}, n);
      check_all({.bits = 4, .bucket_size = bucket, .rounding = Rounding::kStochastic}, n);
    }
  }
}

TEST(gpu_stages_of_raw_values) {
  for (const char* name : {"bf16", "fp16"}) {
    for (const size_t n : {0u, 1u, 17u, 2048u, 5001u}) check_codec(make_codec(name), n);
  }
  for (const size_t n : {1u, 4000u}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      BlockCase c{raw_codec(), dtype, n, values(dtype, n, n)};
      check_encode(c);
      check_decode(c);
      check_sum(c);
      check_feedback(c);
    }
  }
}

TEST(gpu_stages_find_values_that_are_not_finite) {
  const size_t n = 5001;
  for (const char* name : {"maxmin", "bf16", "fp16"}) {
    for (const float bad : {1.0f, __builtin_nanf(""), __builtin_inff(), 65520.0f, 3.4e38f}) {
      for (const size_t place : {size_t{0}, size_t{2047}, n - 1}) {
        std::vector<float> x(n, -2.5f);
        x[place] = bad;
        BlockCase c{make_codec(name), DType::kFloat32, n, {}};
        c.x.resize(4 * n);
        std::memcpy(c.x.data(), x.data(), c.x.size());
        std::vector<float> there(n);
        const auto payload = encode_on_cpu(c, c.x);
        c.codec->decode(payload.data(), c.dtype, n, 0, n, there.data(), false);
        CHECK(finite_on_block(c) == std::isfinite(there[place]), name_of(c), ", value ", bad);
      }
    }
  }
}

TEST(gpu_stages_find_the_bucket_of_every_group) {
  for (uint64_t bucket = gpu::kGroup; bucket <= gpu::kTile + 2; ++bucket) {
    gpu::RunTable table;
    table.add(*make_maxmin({.bits = 4, .bucket_size = static_cast<int64_t>(bucket)}),
              DType::kFloat32, 0, 0, 3 * bucket, 0, 0, 0);
    const device::View view(table);
    for (uint64_t number = 0; number < view.all().tiles; ++number) {
      const gpu::Tile tile = gpu::tile_of(view.all(), number);
      for (uint32_t i = 0; i < tile.n; i += gpu::kGroup) {
        const auto place = gpu::maxmin::place_of_group(tile, i);
        const uint64_t at = tile.first + i, left = bucket - at % bucket;
        CHECK(tile.bucket + place.bucket == at / bucket &&
                  std::min<uint64_t>(place.left, 8) == std::min<uint64_t>(left, 8),
              "bucket ", bucket, ", place ", at);
      }
    }
  }
}

TEST(gpu_stages_with_groups_in_buckets_of_any_step) {
  // Steps that are divided by, and steps whose reciprocal is used.
  for (const int64_t bucket : {8, 24, 40, 64, 200, 256, 512, 1000, 1024, 2048, 4096, 5000}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const size_t n = 9000 + static_cast<size_t>(bits);
      for (const float scale : {1.0f, 1e-30f, 1e30f, 0x1.000002p0f}) {
        BlockCase c{make_maxmin({.bits = bits, .bucket_size = bucket}), DType::kFloat32, n, {}};
        c.x = values(DType::kFloat32, n, n + static_cast<size_t>(bucket));
        auto* x = reinterpret_cast<float*>(c.x.data());
        for (size_t i = 0; i < n; ++i) x[i] *= scale;
        for (size_t i = 0; i + 1 < n; i += static_cast<size_t>(bucket)) {
          x[i] = 0.0f;  // so that the step is nearly the scale
          x[i + 1] = scale * static_cast<float>((1 << bits) - 1);
        }
        check_encode(c);
        check_decode(c);
      }
    }
  }
}

}  // namespace cgx::native
