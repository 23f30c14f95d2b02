// Kernels of warps for `maxmin`: which values they take, and that they give the CPU's bytes and values.
// check_encode() and the others run each case by thread blocks alone and by warps, with one, two and
// four of them on a tile.
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "../device/host_kernels.h"
#include "check.h"
#include "codec/ops/convert.h"
#include "gpu_block.h"
#include "gpu_launches.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

float wave(size_t i) { return std::sin(static_cast<float>(i * i % 10007)) * 3.0f; }

std::vector<std::byte> waves(DType dtype, size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = wave(i + n);
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  return bytes;
}

// A run of each layer in a tensor where they lie one behind the other, so that most start at odd
// places, and their payloads in a message.
struct Layers {
  explicit Layers(DType dtype) : dtype(dtype) {
    const struct {
      size_t n;
      MaxMinOptions options;
    } layers[] = {{700, {.bits = 4, .bucket_size = 512}},
                  {3, {.bits = 3, .bucket_size = 64}},
                  {2048, {.bits = 8, .bucket_size = 1024}},
                  {5001, {.bits = 3, .bucket_size = 512}},
                  {4096, {.bits = 4, .bucket_size = 100}},
                  {33, {.bits = 1, .bucket_size = 2048}},
                  {6150, {.bits = 5, .bucket_size = 128, .rounding = Rounding::kStochastic}},
                  {9000, {.bits = 2, .bucket_size = 2048}}};
    for (const auto& layer : layers) {
      codecs.push_back(make_maxmin(layer.options));
      places.push_back(values);
      payloads.push_back(bytes);
      table.add(*codecs.back(), dtype, values, values, layer.n, values, bytes, 0);
      values += layer.n;
      bytes += (codecs.back()->encoded_bytes(layer.n, dtype) + 15) / 16 * 16;
    }
    places.push_back(values);
  }
  template <typename Work>
  void each(const Work& work) const {
    for (size_t i = 0; i < codecs.size(); ++i) {
      work(*codecs[i], places[i], places[i + 1] - places[i], payloads[i]);
    }
  }

  DType dtype;
  std::vector<std::shared_ptr<const Codec>> codecs;
  std::vector<size_t> places, payloads;
  size_t values = 0, bytes = 0;
  gpu::RunTable table;
};

struct alignas(16) Block {
  unsigned char bytes[16];
};
std::vector<Block> memory(size_t bytes) { return std::vector<Block>(bytes / 16 + 1); }
unsigned char* data(std::vector<Block>& blocks) { return blocks.front().bytes; }

// Sectors of 32 bytes that the lanes touch in an access of `bytes` to value number `place` of each.
size_t sectors(const std::vector<uint32_t>& places, size_t size, size_t bytes) {
  std::set<size_t> touched;
  for (const uint32_t place : places) {
    for (size_t at = place * size; at < place * size + bytes; ++at) touched.insert(at / 32);
  }
  return touched.size();
}

// A unit of values that say where they are, to registers and back.
template <gpu::Type type, bool halves>
void check_sectors(gpu::maxmin::Layout<halves> layout) {
  using namespace gpu::maxmin;
  constexpr uint32_t kUnit = gpu::kUnitOfWarp, kVector = 16;
  const size_t size = gpu::size_of(type), each = halves ? gpu::kGroup / 2 : gpu::kGroup;
  CHECK(type != gpu::Type::kFloat32 || each * size == kVector, "float32: 16 bytes at a time");
  auto x = memory(size * kUnit), y = memory(size * kUnit);
  // The fourth part of its place: bfloat16 holds no larger whole numbers.
  std::vector<float> numbers(kUnit);
  for (uint32_t i = 0; i < kUnit; ++i) numbers[i] = static_cast<float>(i / 4);
  from_float(numbers.data(), static_cast<DType>(type), kUnit,
             reinterpret_cast<std::byte*>(data(x)));
  std::vector<Groups> lanes;
  for (uint32_t lane = 0; lane < gpu::kLanes; ++lane) {
    lanes.push_back(load_unit<type>(layout, data(x), lane));
    store_unit<type>(layout, data(y), lane, lanes.back());
  }
  CHECK(std::memcmp(data(x), data(y), size * kUnit) == 0, "each value has one lane");
  for (uint32_t row = 0; row < kRows; ++row) {
    for (size_t first = 0; first < gpu::kGroup; first += each) {
      std::vector<uint32_t> places;
      for (const Groups& groups : lanes) {
        places.push_back(4 * static_cast<uint32_t>(groups[row][static_cast<uint32_t>(first)]));
      }
      const size_t touched = sectors(places, size, each * size);
      CHECK(touched * 32 == gpu::kLanes * each * size, "an access of ", each * size,
            " bytes a lane touches ", touched, " sectors");
    }
  }
}

}  // namespace

TEST(gpu_warps_touch_whole_sectors) {
  using namespace gpu::maxmin;
  using gpu::Type;
  check_sectors<Type::kFloat32>(LayoutOf<Type::kFloat32>{});
  check_sectors<Type::kFloat16>(LayoutOf<Type::kFloat16>{});
  check_sectors<Type::kBFloat16>(LayoutOf<Type::kBFloat16>{});
  check_sectors<Type::kFloat32>(LayoutOfSum{});
  check_sectors<Type::kFloat16>(LayoutOfSum{});
  check_sectors<Type::kBFloat16>(LayoutOfSum{});
  // Eight neighbours a lane in float32 are two accesses, each of which touches all sectors.
  std::vector<uint32_t> neighbours;
  for (uint32_t lane = 0; lane < gpu::kLanes; ++lane) neighbours.push_back(gpu::kGroup * lane);
  CHECK(sectors(neighbours, 4, 16) == 32, "twice as many as their bytes need");
}

TEST(gpu_warps_take_whole_units_and_leave_the_rest) {
  const struct {
    int64_t bucket;
    size_t n, by_warps;
  } cases[] = {{512, 511, 0},      {512, 512, 512},    {512, 5000, 4608},  {64, 5000, 4608},
               {1024, 1600, 1024}, {2048, 2047, 0},    {2048, 6000, 4096}, {100, 5000, 0},
               {32, 5000, 0},      {4096, 100'000, 0}, {4096, 512, 512}};
  for (const auto& c : cases) {
    gpu::RunTable table;
    table.add(*make_maxmin({.bits = 4, .bucket_size = c.bucket}), DType::kFloat32, 0, 0, c.n, 0, 0,
              0);
    size_t by_warps = 0, left = 0;
    for (const gpu::CodecRun& run : table.by_warps(kMaxMinFamily).runs()) by_warps += run.count;
    for (const gpu::CodecRun& run : table.rest().runs()) left += run.count - run.start;
    CHECK(by_warps == c.by_warps, "bucket ", c.bucket, ", n ", c.n, ": ", by_warps);
    CHECK(left == c.n - c.by_warps, "bucket ", c.bucket, ", n ", c.n, ": ", left, " left");
    CHECK(table.all().runs().size() == 1, "one run for thread blocks alone");
  }
}

TEST(gpu_warps_at_every_width_and_bucket) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int64_t bucket : {64, 128, 256, 512, 1024, 2048}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        const auto codec = make_maxmin({.bits = bits, .bucket_size = bucket, .rounding = rounding});
        const size_t n = 4096 + 512 * (static_cast<size_t>(bits) % 3) + static_cast<size_t>(bits);
        const DType dtype = kTypes[static_cast<size_t>(bits + bucket / 64) % 3];
        const BlockCase c{codec, dtype, n, waves(dtype, n)};
        check_encode(c);
        check_decode(c);
        check_sum(c);
      }
    }
  }
}

TEST(gpu_warps_around_units) {
  for (const size_t n :
       {511u, 512u, 513u, 1023u, 1024u, 1536u, 2047u, 2048u, 2049u, 2560u, 4095u}) {
    for (const DType dtype : kTypes) {
      for (const int64_t bucket : {64, 512, 1024}) {
        const auto codec = make_maxmin({.bits = 4, .bucket_size = bucket});
        const BlockCase c{codec, dtype, n, waves(dtype, n)};
        check_encode(c);
        check_decode(c);
        check_sum(c);
      }
    }
  }
}

TEST(gpu_warps_with_buckets_out_of_the_ordinary) {
  // Each bucket has one kind of value: constant, huge, tiny, not finite, of a step that is not
  // multiplied by.
  const size_t n = 16 * 512;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const float v = wave(i);
    const float kinds[] = {v,
                           1.25f,
                           v * 0x1p126f,
                           v * 0x1p-126f,
                           v * 0x1p-148f,
                           i % 512 == 77 ? __builtin_nanf("") : v,
                           i % 512 == 0 ? __builtin_inff() : v,
                           i % 512 == 511 ? -__builtin_inff() : v,
                           -0.0f,
                           0x1p60f + v,
                           v * 0x1p-52f,
                           i % 2 == 0 ? 3.4e38f : -3.4e38f,
                           static_cast<float>(i % 16),
                           static_cast<float>(i % 16) * 0x1.000002p0f,
                           i % 512 == 3 ? 1e30f : v,
                           -v};
    x[i] = kinds[i / 512];
  }
  for (const int64_t bucket : {64, 512, 1024, 2048}) {
    for (const int bits : {1, 4, 7}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        BlockCase c{make_maxmin({.bits = bits, .bucket_size = bucket, .rounding = rounding}),
                    DType::kFloat32,
                    n,
                    {}};
        c.x.resize(4 * n);
        std::memcpy(c.x.data(), x.data(), c.x.size());
        check_encode(c);
        check_decode(c);
      }
    }
  }
}

TEST(gpu_warps_code_the_runs_of_a_table) {
  for (const DType dtype : kTypes) {
    const Layers layers(dtype);
    const device::View view(layers.table);
    CHECK(view.tables().warps.size() == 1 && view.tables().warps[0].table.n_runs > 2, "lists");
    const auto x = waves(dtype, layers.values);
    std::vector<std::byte> payload(layers.bytes);
    std::vector<float> wanted(layers.values);
    layers.each([&](const Codec& codec, size_t place, size_t n, size_t at) {
      codec.encode(x.data() + place * size_of(dtype), dtype, dtype, n, 0, n, kKey, place,
                   payload.data() + at);
      codec.decode(payload.data() + at, dtype, n, 0, n, wanted.data() + place, false);
    });
    for (const uint32_t split : {0u, 1u, 2u}) {
      auto from = memory(x.size()), message = memory(layers.bytes), to = memory(4 * layers.values);
      std::memcpy(data(from), x.data(), x.size());
      const gpu::Type type = gpu::type_of(dtype);
      encode_all(view.tables(), {{}, data(from), kKey, type, {data(message)}, {}}, split);
      layers.each([&](const Codec& codec, size_t, size_t n, size_t at) {
        CHECK(std::memcmp(data(message) + at, payload.data() + at, codec.encoded_bytes(n, dtype)) ==
                  0,
              codec.describe(), ", ", name_of(dtype), ", n=", n, ", split ", split);
      });
      decode_all(view.tables(), {{}, data(to), gpu::Type::kFloat32, 0, {data(message)}}, split);
      CHECK(std::memcmp(data(to), wanted.data(), 4 * layers.values) == 0, name_of(dtype),
            ", values, split ", split);
    }
  }
}

TEST(gpu_warps_sum_any_number_of_ranks) {
  const size_t n = 3000;
  const auto codec = make_maxmin({.bits = 4, .bucket_size = 512});
  const size_t bytes = codec->encoded_bytes(n, DType::kFloat32);
  gpu::RunTable table;
  table.add(*codec, DType::kFloat32, 0, 0, n, 0, 0, 0);
  const device::View view(table);
  for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
    for (uint32_t own = 0; own <= ranks; own += 2) {  // of `ranks`: none of them
      std::vector<std::vector<Block>> messages;
      std::vector<float> sum(n), part(n), got(n);
      auto mine = memory(4 * n), out = memory(bytes), y = memory(4 * n);
      gpu::SumCall call{};
      call.x = own < ranks ? data(mine) : nullptr;
      call.encoded = data(out);
      call.y = data(y);
      call.key = kKey;
      call.divisor = static_cast<float>(ranks);
      call.ranks = ranks;
      for (uint32_t r = 0; r < ranks; ++r) {
        for (size_t i = 0; i < n; ++i) part[i] = wave(i + 31 * r);
        messages.push_back(memory(bytes));
        if (r == own) {
          std::memcpy(data(mine), part.data(), 4 * n);
        } else {
          auto* to = reinterpret_cast<std::byte*>(data(messages[r]));
          codec->encode(reinterpret_cast<const std::byte*>(part.data()), DType::kFloat32,
                        DType::kFloat32, n, 0, n, {}, 0, to);
          codec->decode(to, DType::kFloat32, n, 0, n, part.data(), false);
          call.payloads[r] = data(messages[r]);
        }
        for (size_t i = 0; i < n; ++i) sum[i] = r == 0 ? part[i] : sum[i] + part[i];
      }
      for (float& v : sum) v /= static_cast<float>(ranks);
      std::vector<std::byte> wanted(bytes);
      codec->encode(reinterpret_cast<const std::byte*>(sum.data()), DType::kFloat32,
                    DType::kFloat32, n, 0, n, kKey, 0, wanted.data());
      codec->decode(wanted.data(), DType::kFloat32, n, 0, n, got.data(), false);
      sum_all(view.tables(), call);
      CHECK(std::memcmp(data(out), wanted.data(), bytes) == 0, ranks, " ranks, own ", own);
      CHECK(std::memcmp(data(y), got.data(), 4 * n) == 0, "values of ", ranks, " ranks, own ", own);
    }
  }
}

}  // namespace cgx::native
