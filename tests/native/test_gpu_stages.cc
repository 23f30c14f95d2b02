// What a thread block does, run by a loop over its threads: the bytes and values of the codecs of
// the CPU, for all codecs, types, sizes and borders. Barriers and warps are not tested here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "check.h"
#include "codec/codec.h"
#include "codec/convert.h"
#include "codec/cuda/stages.h"
#include "codec/run_table.h"
#include "data.h"

namespace cgx::native {
namespace {

using gpu::CodecRun;
using gpu::Shared;
using gpu::Tile;

struct HostBlock {
  template <typename Phase>
  void phase(const Phase& run) {
    // Backwards: a phase whose threads depend on each other would show.
    for (uint32_t t = gpu::kThreads; t-- > 0;) run(t);
  }
  void extremes(Shared& shared, const Tile& tile) {
    const auto alone = [](gpu::Extremes&, uint32_t) {};
    for (uint32_t t = 0; t < gpu::kThreads; ++t) {
      gpu::extremes_phase(shared, tile, t, alone, 1, gpu::kThreads);
    }
  }
};

// memcpy() and memcmp() that take null for no bytes.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
bool equal(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

template <typename Call, typename Stage>
void launch(const Call& call, uint64_t n, const Stage& stage) {
  auto shared = std::make_unique<Shared>();
  HostBlock block;
  for (uint64_t i = n; i-- > 0;) stage(block, *shared, call, i);
}

constexpr RandomKey kKey{0x12345678u, 0x9abcdef0u};
constexpr uint64_t kIndex = 0xffffff80u;  // the counter's low word overflows soon

struct Case {
  std::shared_ptr<const Codec> codec;
  DType dtype;
  size_t n;
  std::vector<std::byte> x;

  gpu::Type type() const { return static_cast<gpu::Type>(dtype); }
  size_t bytes() const { return codec->encoded_bytes(n, dtype); }
  gpu::RunTable table() const {
    gpu::RunTable table;
    table.add(*codec, dtype, 0, 0, n, kIndex, 0, 0);
    return table;
  }
};

gpu::Table view(const gpu::RunTable& table) {
  return {table.runs().data(), table.tiles(), table.long_buckets(),
          static_cast<uint32_t>(table.runs().size())};
}

// Memory at an address that is a multiple of 16, as on the device, plus `shift`.
struct Memory {
  explicit Memory(size_t n, size_t shift = 0) : bytes(n + 32), shift(shift) {}
  unsigned char* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes.data());
    return reinterpret_cast<unsigned char*>((at + 15) / 16 * 16 + shift);
  }
  std::vector<unsigned char> bytes;
  size_t shift;
};

std::vector<std::byte> encode_on_cpu(const Case& c, const std::vector<std::byte>& x) {
  std::vector<std::byte> payload(c.bytes());
  c.codec->encode(x.data(), c.dtype, c.dtype, c.n, 0, c.n, kKey, kIndex, payload.data());
  return payload;
}

std::vector<std::byte> encode_on_block(const Case& c, size_t shift) {
  const gpu::RunTable table = c.table();
  Memory x(c.x.size(), shift), message(c.bytes());
  copy(x.data(), c.x.data(), c.x.size());
  const gpu::EncodeCall call{
      view(table), x.data(), {kKey.low, kKey.high}, c.type(), {message.data()}};
  launch(call, table.long_buckets(), gpu::wide_encode_stage<HostBlock>);
  launch(call, table.tiles(), gpu::encode_stage<HostBlock>);
  const auto* at = reinterpret_cast<const std::byte*>(message.data());
  return {at, at + c.bytes()};
}

std::string name_of(const Case& c) {
  return str_of(c.codec->describe(), ", ", cgx::name_of(c.dtype), ", n=", c.n);
}

void check_encode(const Case& c) {
  const auto expected = encode_on_cpu(c, c.x);
  for (size_t shift : {0, 4}) {
    CHECK(encode_on_block(c, shift) == expected, name_of(c), ", shift ", shift);
  }
}

void check_decode(const Case& c) {
  const auto payload = encode_on_cpu(c, c.x);
  Memory message(payload.size());
  copy(message.data(), payload.data(), payload.size());
  const gpu::RunTable table = c.table();
  for (const bool add : {false, true}) {
    std::vector<float> expected(c.n, 0.5f);
    c.codec->decode(payload.data(), c.dtype, c.n, 0, c.n, expected.data(), add);
    Memory y(4 * c.n, add ? 4 : 0);
    for (size_t i = 0; i < c.n; ++i) reinterpret_cast<float*>(y.data())[i] = 0.5f;
    const gpu::DecodeCall call{view(table), y.data(), gpu::Type::kFloat32, add, {message.data()}};
    launch(call, table.tiles(), gpu::decode_stage<HostBlock>);
    CHECK(equal(y.data(), expected.data(), 4 * c.n), name_of(c), ", add ", add);
  }
}

// Three payloads and this rank's own values, third in order.
void check_sum(const Case& c) {
  const uint32_t own = 2, ranks = 4;
  std::vector<std::vector<std::byte>> inputs(ranks, c.x), payloads(ranks);
  std::vector<float> sum(c.n), part(c.n);
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r < c.n) {
      const auto turn = static_cast<ptrdiff_t>(r * size_of(c.dtype));
      std::rotate(inputs[r].begin(), inputs[r].begin() + turn, inputs[r].end());
    }
    payloads[r] = encode_on_cpu(c, inputs[r]);
    if (r == own) {
      to_float(inputs[r].data(), c.dtype, c.n, part.data());
    } else {
      c.codec->decode(payloads[r].data(), c.dtype, c.n, 0, c.n, part.data(), false);
    }
    for (size_t i = 0; i < c.n; ++i) sum[i] = r == 0 ? part[i] : sum[i] + part[i];
  }
  divide(sum.data(), c.n, 4.0f);
  std::vector<std::byte> encoded(c.bytes()), result(c.x.size());
  c.codec->encode(sum.data(), DType::kFloat32, c.dtype, c.n, 0, c.n, kKey, kIndex, encoded.data());
  c.codec->decode(encoded.data(), c.dtype, c.n, 0, c.n, part.data(), false);
  from_float(part.data(), c.dtype, c.n, result.data());

  std::vector<Memory> messages;
  for (uint32_t r = 0; r < ranks; ++r) messages.emplace_back(c.bytes());
  for (uint32_t r = 0; r < ranks; ++r) {
    copy(messages[r].data(), payloads[r].data(), c.bytes());
  }
  Memory x(c.x.size()), y(c.x.size()), out(c.bytes());
  copy(x.data(), inputs[own].data(), c.x.size());
  const gpu::RunTable table = c.table();
  gpu::SumCall call{view(table), x.data(), out.data(), y.data(), {kKey.low, kKey.high},
                    4.0f,        ranks,    c.type(),   c.type(), {}};
  for (uint32_t r = 0; r < ranks; ++r) call.payloads[r] = r == own ? nullptr : messages[r].data();
  launch(call, table.long_buckets(), gpu::wide_sum_stage<HostBlock>);
  launch(call, table.tiles(), gpu::sum_stage<HostBlock>);
  CHECK(equal(out.data(), encoded.data(), c.bytes()), name_of(c), ", payload of the sum");
  CHECK(equal(y.data(), result.data(), c.x.size()), name_of(c), ", sum");
}

std::vector<std::byte> values(DType dtype, size_t n, uint64_t seed) {
  std::vector<float> x(n);
  uint64_t state = seed;
  for (float& v : x) {
    state = splitmix64(state);
    v = static_cast<float>(static_cast<int64_t>(state)) * 0x1p-62f;
    if (state % 97 == 0) v = 0.0f;
    if (state % 1201 == 0) v = __builtin_nanf("");
    if (state % 1301 == 0) v = -__builtin_inff();
  }
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  return bytes;
}

bool finite_on_block(const Case& c) {
  Memory x(c.x.size());
  copy(x.data(), c.x.data(), c.x.size());
  const gpu::RunTable table = c.table();
  uint32_t met = 0;
  launch(gpu::FiniteCall{view(table), x.data(), &met, c.type()}, table.tiles(),
         gpu::finite_stage<HostBlock>);
  return met == 0;
}

void check_all(const CodecSpec& spec, size_t n) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Case c{make_codec(spec), dtype, n, values(dtype, n, n + 7)};
    check_encode(c);
    check_decode(c);
    check_sum(c);
  }
}

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
  for (const int64_t bucket : {1000, 2047, 2048, 2049, 4097, 1 << 20}) {
    for (const size_t n : {100u, 2048u, 4096u, 9001u}) {
      check_all({.bits = 3, .bucket_size = bucket}, n);
      check_all({.bits = 4, .bucket_size = bucket, .rounding = Rounding::kStochastic}, n);
    }
  }
}

TEST(gpu_stages_of_raw_values) {
  for (const char* name : {"bf16", "fp16"}) {
    for (const size_t n : {0u, 1u, 17u, 2048u, 5001u}) check_all({.name = name, .bits = 16}, n);
  }
  for (const size_t n : {1u, 4000u}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      Case c{raw_codec(), dtype, n, values(dtype, n, n)};
      check_encode(c);
      check_decode(c);
      check_sum(c);
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
        Case c{make_codec({.name = name, .bits = name[0] == 'm' ? 4 : 16}), DType::kFloat32, n, {}};
        c.x.resize(4 * n);
        copy(c.x.data(), x.data(), c.x.size());
        std::vector<float> there(n);
        const auto payload = encode_on_cpu(c, c.x);
        c.codec->decode(payload.data(), c.dtype, n, 0, n, there.data(), false);
        CHECK(finite_on_block(c) == std::isfinite(there[place]), name_of(c), ", value ", bad);
      }
    }
  }
}

TEST(gpu_stages_find_the_bucket_of_every_group) {
  for (uint64_t bucket = gpu::kGroup; bucket <= gpu::kTile; bucket += gpu::kGroup) {
    gpu::RunTable table;
    table.add(*make_codec({.bits = 4, .bucket_size = static_cast<int64_t>(bucket)}),
              DType::kFloat32, 0, 0, 3 * bucket, 0, 0, 0);
    const CodecRun& run = table.runs().front();
    const Tile tile = gpu::tile_of(&run, 1, 0);
    for (uint32_t i = 0; i < run.tile; i += gpu::kGroup) {
      CHECK(gpu::bucket_of_group(tile, i) == i / bucket, "bucket ", bucket, ", place ", i);
    }
  }
}

TEST(gpu_stages_with_groups_in_buckets_of_any_step) {
  // Steps that are divided by, and steps whose reciprocal is used.
  for (const int64_t bucket : {8, 24, 40, 200, 1000, 1024, 2048, 4096, 5000}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const size_t n = 9000 + static_cast<size_t>(bits);
      for (const float scale : {1.0f, 1e-30f, 1e30f, 0x1.000002p0f}) {
        Case c{make_codec({.bits = bits, .bucket_size = bucket}), DType::kFloat32, n, {}};
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
