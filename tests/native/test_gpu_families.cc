// A family with kernels is one struct in a list (codec/families/gpu_list.h): here one of a test, in
// a table of runs beside `maxmin` and values as they are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../device/host_kernels.h"
#include "check.h"
#include "codec/codec.h"
#include "codec/gpu/run_table.h"
#include "maxmin_codec.h"

namespace cgx::native {
namespace {

// The sign of each value, times the largest magnitude of its bucket: bits of signs behind one
// float for each bucket of 8 values.
constexpr uint64_t kBucket = 8;

struct SignTiles : gpu::NoLongBuckets {
  static constexpr uint8_t kFamily = 251;
  static constexpr bool serves(uint8_t family) { return family == kFamily; }
  struct Memory {
    float largest[gpu::kTile / kBucket];
  };

  template <typename Block>
  static void encode(Block& block, gpu::Shared& shared, Memory& memory, const gpu::Tile& tile,
                     RandomKey, unsigned char* message) {
    block.phase([&](uint32_t t) {
      if (t >= tile.buckets) return;
      float largest = 0;
      unsigned char signs = 0;
      for (uint32_t k = 0; k < kBucket && kBucket * t + k < tile.n; ++k) {
        const float x = shared.values[kBucket * t + k];
        largest = std::max(largest, std::fabs(x));
        signs |= static_cast<unsigned char>((x < 0) << k);
      }
      memory.largest[t] = largest;
      shared.codes[t] = signs;
      std::memcpy(message + tile.run.meta + 4 * (tile.bucket + t), &largest, 4);
      message[tile.codes_at() + t] = signs;
    });
  }

  template <typename Block>
  static void decode(Block& block, gpu::Shared& shared, Memory& memory, const gpu::Tile& tile,
                     const unsigned char* message, bool add) {
    block.phase([&](uint32_t t) {
      if (t >= tile.buckets) return;
      std::memcpy(&memory.largest[t], message + tile.run.meta + 4 * (tile.bucket + t), 4);
      shared.codes[t] = message[tile.codes_at() + t];
    });
    values(block, shared, memory, tile, add);
  }

  template <typename Block>
  static void decode_again(Block& block, gpu::Shared& shared, Memory& memory,
                           const gpu::Tile& tile) {
    values(block, shared, memory, tile, false);
  }

 private:
  template <typename Block>
  static void values(Block& block, gpu::Shared& shared, Memory& memory, const gpu::Tile& tile,
                     bool add) {
    block.phase([&](uint32_t t) {
      for (uint32_t i = t; i < tile.n; i += gpu::kThreads) {
        const bool negative = shared.codes[i / kBucket] >> (i % kBucket) & 1;
        const float x = negative ? -memory.largest[i / kBucket] : memory.largest[i / kBucket];
        shared.values[i] = add ? shared.values[i] + x : x;
      }
    });
  }
};

using Families = gpu::FamilyList<gpu::maxmin::Tiles, SignTiles>;

// Does what a family's gpu_runs does. RunTable::add() accepts only families of the product's list.
void add_signs(gpu::RunTable& table, uint64_t places, uint64_t n, uint64_t payload) {
  gpu::CodecRun coded{};
  coded.family = SignTiles::kFamily;
  coded.value = coded.sum = places;
  coded.count = n;
  coded.bucket = kBucket;
  coded.bits = 1;
  coded.meta = payload;
  coded.codes = payload + 4 * ((n + kBucket - 1) / kBucket);
  coded.tile = gpu::kTile;
  table.append(coded);
}

// On the CPU, by the definition.
std::vector<float> signs_of(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); i += kBucket) {
    const size_t end = std::min(x.size(), i + kBucket);
    float largest = 0;
    for (size_t k = i; k < end; ++k) largest = std::max(largest, std::fabs(x[k]));
    for (size_t k = i; k < end; ++k) y[k] = x[k] < 0 ? -largest : largest;
  }
  return y;
}

// Runs of three families in one message, one behind the other.
struct Mixed {
  explicit Mixed(size_t n, int64_t bucket_size)
      : n(n), maxmin(make_maxmin({.bits = 3, .bucket_size = bucket_size})) {
    add(*maxmin);
    add_signs(table, places, n, bytes);
    places += n;
    bytes += ((n + 7) / 8 * 5 + 3) / 4 * 4;
    add(*raw_codec());
    x.resize(3 * n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i + 1));
    message.resize((bytes + 3) / 4 * 4);
  }

  void add(const Codec& codec) {
    table.add(codec, DType::kFloat32, places, places, n, 0, bytes, 0);
    places += n;
    bytes += (codec.encoded_bytes(n, DType::kFloat32) + 3) / 4 * 4;
  }

  // What decoding gives, by the codecs of the CPU.
  std::vector<float> expected() const {
    std::vector<float> y(n);
    std::vector<std::byte> payload(maxmin->encoded_bytes(n, DType::kFloat32));
    maxmin->encode(x.data(), DType::kFloat32, DType::kFloat32, n, 0, n, {}, 0, payload.data());
    maxmin->decode(payload.data(), DType::kFloat32, n, 0, n, y.data(), false);
    const auto middle = signs_of(
        {x.begin() + static_cast<ptrdiff_t>(n), x.begin() + static_cast<ptrdiff_t>(2 * n)});
    y.insert(y.end(), middle.begin(), middle.end());
    y.insert(y.end(), x.begin() + static_cast<ptrdiff_t>(2 * n), x.end());
    return y;
  }

  size_t n, places = 0, bytes = 0;
  std::shared_ptr<const Codec> maxmin;
  gpu::RunTable table;
  std::vector<float> x;
  std::vector<unsigned char> message;
};

unsigned char* bytes_of(std::vector<float>& x) {
  return reinterpret_cast<unsigned char*>(x.data());
}

}  // namespace

TEST(gpu_families_each_code_their_own_runs_of_a_table) {
  for (const size_t n : {1u, 8u, 17u, 2048u, 2049u, 5000u}) {
    for (const int64_t bucket : {64, 4096}) {
      Mixed m(n, bucket);
      const device::View view(m.table);
      const gpu::EncodeCall encode{
          view.all(), bytes_of(m.x), {}, gpu::Type::kFloat32, {m.message.data()}};
      device::launch<Families>(encode, m.table.all().long_buckets(), gpu::long_encode_stage);
      device::launch<Families>(encode, m.table.all().tiles(), gpu::encode_stage);
      std::vector<float> y(m.x.size(), 2.0f);
      gpu::DecodeCall decode{view.all(), bytes_of(y), gpu::Type::kFloat32, 0, {m.message.data()}};
      device::launch<Families>(decode, m.table.all().tiles(), gpu::decode_stage);
      CHECK(y == m.expected(), "n=", n, ", bucket ", bucket);

      decode.add = 1;
      device::launch<Families>(decode, m.table.all().tiles(), gpu::decode_stage);
      std::vector<float> twice = m.expected();
      for (float& v : twice) v += v;
      CHECK(y == twice, "added, n=", n, ", bucket ", bucket);
    }
  }
}

TEST(gpu_families_each_sum_their_own_runs_of_a_table) {
  for (const size_t n : {8u, 2049u, 5000u}) {
    for (const int64_t bucket : {64, 4096}) {
      Mixed m(n, bucket);
      const device::View view(m.table);
      std::vector<float> y(m.x.size());
      // The own values only, so that the sum is known: encoded, and as it was encoded.
      const gpu::SumCall sum{
          view.all(), bytes_of(m.x),       m.message.data(),    bytes_of(y), {}, 1.0f,
          1,          gpu::Type::kFloat32, gpu::Type::kFloat32, {nullptr}};
      device::launch<Families>(sum, m.table.all().long_buckets(), gpu::long_sum_stage);
      device::launch<Families>(sum, m.table.all().tiles(), gpu::sum_stage);
      CHECK(y == m.expected(), "n=", n, ", bucket ", bucket);
      std::vector<float> again(y.size());
      const gpu::DecodeCall decode{
          view.all(), bytes_of(again), gpu::Type::kFloat32, 0, {m.message.data()}};
      device::launch<Families>(decode, m.table.all().tiles(), gpu::decode_stage);
      CHECK(again == y, "message of the sum, n=", n, ", bucket ", bucket);
    }
  }
}

TEST(gpu_families_have_the_numbers_of_their_declarations) {
  for (const Family* family : families()) {
    if (family->gpu_runs == nullptr) continue;
    gpu::RunTable table;
    table.add(*make_codec(CodecConfig(*family)), DType::kFloat32, 0, 0, 1, 0, 0, 0);
    const uint8_t number = table.all().runs().front().family;
    CHECK(number == gpu::kRaw || gpu::KernelFamilies::has(number), family->name);
  }
}

}  // namespace cgx::native
