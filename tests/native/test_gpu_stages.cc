// The GPU's stages on the host: the bytes and values of the CPU, for widths, types, sizes and
// borders.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "../device/host_kernels.h"
#include "check.h"
#include "codec/families/gpu_list.h"
#include "codec/ops/convert.h"
#include "data.h"
#include "gpu_block.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

// Neighbours of both infinities are in one sum where ranks' values are shifted by one.
std::vector<std::byte> values(DType dtype, size_t n, uint64_t seed) {
  std::vector<float> x = ordinary(n, seed);
  for (size_t i = seed % 701; i < n; i += 1301) x[i] = -__builtin_inff();
  for (size_t i = seed % 701 + 1; i < n; i += 1301) x[i] = __builtin_inff();
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  const std::vector<uint32_t> kinds = nans_of(dtype);
  for (size_t i = seed % 601, k = seed; i < n; i += 1201, ++k) {
    std::memcpy(&bytes[i * size_of(dtype)], &kinds[k % kinds.size()], size_of(dtype));
  }
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

// Values of all kinds in three long buckets and a part of one: of many magnitudes down to subnormal
// ones, such that overflow in float32 and are infinite in float16, NaN and infinities, equal ones.
std::vector<std::byte> values_of_long_buckets(DType dtype, size_t n, size_t bucket) {
  std::vector<float> x = ordinary(n, n + bucket);
  for (size_t i = 0; i < bucket / 2 && i < n; ++i)
    x[i] = std::ldexp(x[i], -static_cast<int>(i % 140));
  for (size_t i = bucket; i < n && i < bucket + 20; ++i) x[i] = i % 2 == 0 ? 3.3e38f : -3.3e38f;
  for (size_t i = 3 * bucket; i < n; ++i) x[i] = 1.25f;
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  const std::vector<uint32_t> kinds = nans_of(dtype);
  for (size_t i = 2 * bucket, k = 0; i < n && k < kinds.size(); i += 37, ++k) {
    std::memcpy(&bytes[i * size_of(dtype)], &kinds[k], size_of(dtype));
  }
  return bytes;
}

// Of buckets that do not fit a tile: with groups of eight values in one bucket, and without.
TEST(gpu_stages_with_feedback_of_long_buckets) {
  constexpr size_t kShifts[] = {0, 4, 1, 12, 2, 6, 8, 3};
  size_t turn = 0;
  for (const int64_t bucket : {2056, 2049}) {
    const size_t n = 3 * static_cast<size_t>(bucket) + 500;
    for (int bits = 1; bits <= 8; ++bits) {
      for (const bool own_first : {false, true}) {
        const DType dtype = kDTypes[turn % 2 * 2];  // of those in which a bucket can overflow
        const FeedbackWay way{.shift = kShifts[turn % 8],
                              .plus = turn % 4 < 2,
                              .divisor = turn % 5 == 0 ? 1.0f : 3.0f,
                              .own_first = own_first};
        const Rounding rounding = turn % 7 == 0 ? Rounding::kStochastic : Rounding::kNearest;
        ++turn;
        check_feedback({make_maxmin({.bits = bits, .bucket_size = bucket, .rounding = rounding}),
                        dtype, n, values_of_long_buckets(dtype, n, static_cast<size_t>(bucket))},
                       way);
      }
    }
  }
  for (const DType dtype :
       kDTypes) {  // every type at every alignment, with the residual and without
    for (const size_t shift : {0u, 4u, 1u}) {
      for (const bool plus : {false, true}) {
        const size_t n = 2 * 2056 + 100 + 3;
        check_feedback({make_maxmin({.bits = 4, .bucket_size = 2056}), dtype, n,
                        values_of_long_buckets(dtype, n, 1000)},
                       {.shift = shift, .plus = plus, .own_first = plus});
      }
    }
  }
}

// Each finds its run by its number.
TEST(gpu_stages_with_feedback_of_several_runs_of_long_buckets) {
  constexpr size_t kCounts[] = {2500, 5000, 3, 4200, 2049};
  const auto codec = make_maxmin({.bits = 5, .bucket_size = 2049});
  std::vector<float> x = ordinary(20000, 9);
  size_t n = 0, bytes = 0;
  gpu::RunTable table;
  std::vector<size_t> payloads;
  for (const size_t count : kCounts) {
    table.add(*codec, DType::kFloat32, n, n, count, n, bytes, 0);
    payloads.push_back(bytes);
    n += count;
    bytes += (codec->encoded_bytes(count, DType::kFloat32) + 15) / 16 * 16;
  }
  std::vector<std::byte> wanted(bytes), averaged(bytes);
  std::vector<float> twice(n), residual(n), owed(n), sum(n);
  for (size_t i = 0; i < n; ++i) twice[i] = x[i] + x[i], residual[i] = x[i];
  for (size_t i = 0, at = 0; i < std::size(kCounts); at += kCounts[i++]) {
    const size_t count = kCounts[i];
    codec->encode(&twice[at], DType::kFloat32, DType::kFloat32, count, 0, count, kKey, at,
                  &wanted[payloads[i]]);
    codec->decode(&wanted[payloads[i]], DType::kFloat32, count, 0, count, &sum[at], false);
  }
  for (size_t i = 0; i < n; ++i) owed[i] = twice[i] - sum[i], sum[i] += x[i] + owed[i];
  for (size_t i = 0, at = 0; i < std::size(kCounts); at += kCounts[i++]) {
    codec->encode(&sum[at], DType::kFloat32, DType::kFloat32, kCounts[i], 0, kCounts[i], kKey, at,
                  &averaged[payloads[i]]);
  }
  const device::View view(table);
  const auto bytes_of = [](auto& all) { return reinterpret_cast<unsigned char*>(all.data()); };
  std::vector<std::byte> message(bytes), out(bytes);
  gpu::EncodeCall encode{view.all(),          bytes_of(x),         kKey,
                         gpu::Type::kFloat32, {bytes_of(message)}, {}};
  encode.feedback = {bytes_of(residual), gpu::Type::kFloat32, gpu::Type::kFloat32, 1,
                     gpu::Feedback::Keep::kSet};
  device::launch(encode, encode.table.long_buckets, gpu::long_encode_feedback_stage);
  device::launch(encode, encode.table.tiles, gpu::encode_feedback_stage);
  CHECK(message == wanted && residual == owed);
  gpu::SumCall call{
      view.all(),          bytes_of(x),         bytes_of(out),       nullptr, kKey, 1, 2,
      gpu::Type::kFloat32, gpu::Type::kFloat32, {bytes_of(message)}, {}};
  call.feedback = encode.feedback;
  device::launch(call, call.table.long_buckets, gpu::long_sum_feedback_stage);
  device::launch(call, call.table.tiles, gpu::sum_feedback_stage);
  CHECK(out == averaged);
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

TEST(gpu_stages_write_one_nan) {
  for (const DType dtype : kDTypes) {
    const std::vector<uint32_t> kinds = nans_of(dtype);
    const size_t n = 3000, size = size_of(dtype);
    std::vector<float> x = ordinary(n, 5);
    for (size_t i = 0; i < n; i += 500) x[i] = (i / 500 % 2 == 0 ? 1.0f : -1.0f) * __builtin_inff();
    std::vector<std::byte> bytes(n * size);
    from_float(x.data(), dtype, n, bytes.data());
    for (size_t i = 0; i < kinds.size(); ++i) {
      for (const size_t at : {7 + 9 * i, 2991 + i}) std::memcpy(&bytes[at * size], &kinds[i], size);
    }
    CHECK(!has_one_nan(bytes.data(), dtype, n), cgx::name_of(dtype));
    for (const char* name : {"raw", "bf16", "fp16", "maxmin", "rotated", "trellis"}) {
      const BlockCase c{std::strcmp(name, "raw") == 0 ? raw_codec() : make_codec(name), dtype, n,
                        bytes};
      const std::vector<std::byte> payload = encode_on_cpu(c, c.x);
      std::vector<float> decoded(n);
      c.codec->decode(payload.data(), dtype, n, 0, n, decoded.data(), false);
      CHECK(std::isnan(decoded[7]) && has_one_nan(decoded.data(), DType::kFloat32, n), name_of(c));
      check_encode(c);
      check_decode(c);
      check_sum(c);
      check_feedback(c);
    }
  }
}

TEST(gpu_stages_find_values_that_are_not_finite) {
  const size_t n = 5001;
  // The last ones become 256 or saturate: 272 is a tie. Where rounding is stochastic, some of them stay finite.
  const float values[] = {1.0f,   NAN,    INFINITY, 65520.0f,     3.4e38f,
                          272.0f, 271.9f, 250.0f,   3.4028235e38f};
  for (const char* text :
       {"maxmin", "bf16", "fp16", "float", "float overflow=saturate", "float rounding=zero",
        "float variant=fn overflow=nan", "float variant=fnuz rounding=stochastic seed=3",
        "float exponent=2 mantissa=1", "float exponent=5 mantissa=2 rounding=stochastic", "block",
        "block format=mxfp4 scale_rounding=ceil", "block format=fp8_block128"}) {
    for (const float bad : values) {
      for (const size_t place : {size_t{0}, size_t{2047}, n - 1}) {
        std::vector<float> x(n, -2.5f);
        x[place] = bad;
        BlockCase c{make_codec(config_of_text(text)), DType::kFloat32, n, {}};
        c.x.resize(4 * n);
        std::memcpy(c.x.data(), x.data(), c.x.size());
        std::vector<float> there(n);
        const auto payload = encode_on_cpu(c, c.x);
        c.codec->decode(payload.data(), c.dtype, n, 0, n, there.data(), false);
        const bool finite =
            std::all_of(there.begin(), there.end(), [](float v) { return std::isfinite(v); });
        CHECK(finite_on_block(c) == finite, name_of(c), ", value ", bad);
        CHECK(values_finite_on_block(c) == std::isfinite(bad), name_of(c), ", value ", bad);
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
