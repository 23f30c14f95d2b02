// The kernels of the error-bounded compressor, by loops over their threads: the bytes and values of the
// CPU, for every type, bound and pattern. Barriers are not tested here.
#include "bounded_forged.h"

namespace cgx::native {
namespace {

using bounded::Encoder;
using Encoded = OnKernel;

constexpr size_t kBlockValues = bounded::kBlockValues;

Encoded finish(Encoder& encoder, const std::byte* values, size_t n) {
  Encoded made;
  made.content.assign(encoder.content().begin(), encoder.content().end());
  if (encoder.is_raw(0)) encoder.encode(values, n);  // as its values are
  const auto block = encoder.finish({});
  made.block.assign(block.begin(), block.end());
  return made;
}

struct OnKernels {
  std::vector<Encoded> blocks;
  size_t by_values = 0;  // blocks that were encoded by their values
};

OnKernels encode_on_kernels(const MapsOf& maps, std::span<const std::byte> x) {
  const size_t bytes = size_of(maps->element());
  Slab slab(maps, x.size() / bytes);
  const Block looked = look_on_kernels(slab, x);
  Encoder encoder(maps);
  for (size_t i = 0; i < slab.blocks(); ++i) {
    slab.choose_form(encoder, i, looked.data() + i * slab.look_bytes());
  }
  Block parts = fresh(slab.lay_out());
  const std::vector<std::byte> image = slab.image();
  bounded::on_gpu::BlocksCall call = slab.blocks_call(image.data());
  call.x = address(x);
  call.parts = address(parts);
  run_encode(call, slab.wide());
  OnKernels made;
  for (size_t i = 0; i < slab.blocks(); ++i) {
    const std::byte* values = x.data() + i * kBlockValues * bytes;
    if (!slab.adopt(encoder, i, parts.data())) {
      encoder.encode(values, slab.values_of(i));
      ++made.by_values;
    }
    made.blocks.push_back(finish(encoder, values, slab.values_of(i)));
  }
  return made;
}

std::vector<Encoded> encode_on_cpu(const MapsOf& maps, std::span<const std::byte> x) {
  const size_t bytes = size_of(maps->element()), values = x.size() / bytes;
  std::vector<Encoded> made;
  Encoder encoder(maps);
  for (size_t first = 0; first < values; first += kBlockValues) {
    const size_t n = std::min(kBlockValues, values - first);
    encoder.encode(x.data() + first * bytes, n);
    made.push_back(finish(encoder, x.data() + first * bytes, n));
  }
  return made;
}

struct Count {
  size_t blocks = 0, by_values = 0;
  size_t maps[static_cast<size_t>(Map::kBytes) + 1] = {},
                                                 predictors[bounded::kLastPredictor + 1] = {};
};

void check_values(DType element, const Promise& promise, const Block& x, const std::string& what,
                  Count* count) {
  const auto maps = std::make_shared<const bounded::Maps>(element, promise.kind, promise.bound);
  const size_t bytes = size_of(element), n = x.size() / bytes;
  const std::vector<Encoded> wanted = encode_on_cpu(maps, x);
  const OnKernels made = encode_on_kernels(maps, x);
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(made.blocks[i] == wanted[i], what, ", block ", i);
  }
  Block y(x.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const size_t begin = i * kBlockValues, values = std::min(kBlockValues, n - begin);
    const Block block = decode_block(maps, wanted[i].block, wanted[i].content, values);
    std::copy(block.begin(), block.end(), y.begin() + static_cast<std::ptrdiff_t>(begin * bytes));
  }
  std::vector<uint32_t> faults;
  CHECK(decode_on_kernels(maps, wanted, n, 0, n, &faults) == y, what);
  const size_t from = n / 3, to = n - n / 5;
  const Block part = decode_on_kernels(maps, wanted, n, from, to, &faults);
  CHECK(std::equal(part.begin(), part.end(), y.begin() + static_cast<std::ptrdiff_t>(from * bytes)),
        what);
  for (const uint32_t fault : faults) CHECK(fault == 0, what);
  if (count == nullptr) return;
  count->blocks += wanted.size();
  count->by_values += made.by_values;
  for (const Encoded& one : wanted) {
    if (one.block.empty()) continue;
    const auto map = static_cast<size_t>(one.block[0]);
    ++count->maps[map];
    if (map > 1 && map <= bounded::kLastOnDevice)
      ++count->predictors[static_cast<size_t>(one.block[1])];
  }
}

void check(DType element, const Promise& promise, int pattern, size_t n, Count* count = nullptr) {
  const double step = promise.bound == 0 ? 1e-3 : promise.bound;
  const Block x = hard_values(element, pattern, n, step, n * 64 + static_cast<size_t>(pattern));
  check_values(
      element, promise, x,
      str_of("element ", static_cast<int>(element), ", kind ", static_cast<int>(promise.kind),
             ", bound ", promise.bound, ", pattern ", pattern, ", n ", n),
      count);
}

int patterns_of(DType element) { return is_floating(element) ? kFloatPatterns : kWholePatterns; }

}  // namespace

TEST(gpu_bounded_every_pattern_and_bound) {
  Count count;
  for (size_t k = 0; k < kElements; ++k) {
    const DType element = element_number(k);
    for (const Promise& promise : promises_of(element)) {
      for (int pattern = 0; pattern < patterns_of(element); ++pattern) {
        check(element, promise, pattern, 2900 + k, &count);
      }
      for (const int byte : {0, 1}) {  // all values are the same
        const Block x(70'000 * size_of(element), static_cast<std::byte>(byte));
        check_values(element, promise, x, str_of("bytes of ", byte), &count);
      }
    }
  }
  for (size_t map = 0; map <= bounded::kLastOnDevice; ++map) CHECK(count.maps[map] > 0, map);
  for (size_t k = 0; k < std::size(count.predictors); ++k) CHECK(count.predictors[k] > 0, k);
  // Some patterns have few values, also within a bound.
  CHECK(count.by_values > 0 && count.by_values * 3 < count.blocks, count.by_values);
}

TEST(gpu_bounded_every_size) {
  for (size_t n = 1; n <= 400; n += n < 20 ? 1 : 19) {
    for (size_t k = 0; k < kElements; ++k) {
      const DType element = element_number(k);
      const std::vector<Promise> promises = promises_of(element);
      check(element, promises[n % promises.size()], static_cast<int>(n % 16), n);
    }
  }
  for (const size_t n : {1023, 1024, 1025, 1279, 1281, 2047, 2049, 65535, 65536, 65537, 131073}) {
    for (const int pattern : {0, 5, 8}) {
      check(DType::kFloat32, {BoundKind::kAbsolute, 1e-4}, pattern, n);
      check(DType::kFloat64, {BoundKind::kAbsolute, 1e-4}, pattern, n);
      check(DType::kFloat16, {BoundKind::kPointwise, 1e-2}, pattern, n);
    }
  }
}

// What the host needs to see of a block, by its definition.
TEST(gpu_bounded_look) {
  Random random(11);
  for (const size_t n : {1, 2, 31, 255, 256, 257, 511, 513, 1023, 1024, 1025, 1279, 1281, 1535,
                         1800, 2047, 2049, 3333, 67'000}) {
    for (size_t k = 0; k < kElements; ++k) {
      const DType element = element_number(k);
      const size_t bytes = size_of(element);
      const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
      const bool floating = is_floating(element);
      const uint64_t infinity = floating ? bits_of_float(element, INFINITY) : 0;
      for (const Promise& promise : promises_of(element)) {
        if (promise.kind != BoundKind::kLossless && promise.bound != 1e-2 && promise.bound != 3) {
          continue;  // a look depends on the map alone
        }
        const auto maps =
            std::make_shared<const bounded::Maps>(element, promise.kind, promise.bound);
        const Slab slab(maps, n);
        const Block x = hard_values(element, static_cast<int>(random(16)), n, 1e-3, random());
        const Block looked = look_on_kernels(slab, x);
        for (size_t block = 0; block < slab.blocks(); ++block) {
          const std::string what = str_of("element ", k + 1, ", n ", n, ", block ", block);
          const std::byte* values = x.data() + block * kBlockValues * bytes;
          const auto bits = [&](size_t i) { return raw_bits(element, values + i * bytes); };
          const size_t count = slab.values_of(block);
          bounded::on_gpu::LookedAt wanted{0, 0, 0, infinity};
          for (size_t i = 0; i < count; ++i) {
            wanted.differ |= bits(i) ^ bits(0);
            wanted.any |= bits(i);
            const double value = floating ? std::fabs(float_value(element, bits(i))) : INFINITY;
            if (!std::isfinite(value)) continue;
            const uint64_t magnitude = bits(i) & (sign - 1);
            wanted.greatest = std::max(wanted.greatest, magnitude);
            if (value == 0 || is_subnormal(element, value)) continue;
            wanted.least = std::min(wanted.least, magnitude);
          }
          const std::byte* at = looked.data() + block * slab.look_bytes();
          CHECK(std::memcmp(at, &wanted, sizeof wanted) == 0, what);
          const std::byte* sample = at + sizeof wanted;
          for (uint32_t i = 0; i < std::min<size_t>(count, bounded::kSampled); ++i) {
            const size_t from =
                count <= bounded::kSampled
                    ? i
                    : bounded::start_of_run(static_cast<uint32_t>(count), i / bounded::kRun) +
                          i % bounded::kRun;
            CHECK(raw_bits(element, sample + i * bytes) == bits(from), what, ", place ", i);
          }
          if (maps->bounded() != Map::kGrid || count < bounded::kLeastForCurve) continue;
          const std::byte* tried = sample + bounded::kSampled * bytes;
          for (uint32_t i = 0; i < bounded::kTried * bounded::kCurveRun; ++i) {
            const size_t from =
                bounded::start_of_tried(static_cast<uint32_t>(count), i / bounded::kCurveRun) +
                i % bounded::kCurveRun;
            CHECK(raw_bits(element, tried + i * bytes) == bits(from), what, ", tried ", i);
          }
        }
      }
    }
  }
}

// What a decoder of the CPU refuses, the kernel calls a fault, and writes nothing elsewhere.
TEST(gpu_bounded_faults) {
  size_t refused = 0;
  for (const auto& [element, promise, pattern] :
       {std::tuple{DType::kFloat32, Promise{BoundKind::kAbsolute, 1e-3}, 8},
        std::tuple{DType::kFloat32, Promise{BoundKind::kAbsolute, 1e-3}, 10},
        std::tuple{DType::kFloat32, Promise{BoundKind::kPointwise, 1e-2}, 2},
        std::tuple{DType::kBFloat16, Promise{BoundKind::kAbsolute, 1e-2}, 0},
        std::tuple{DType::kBool, Promise{BoundKind::kLossless, 0}, 0}}) {
    const auto maps = std::make_shared<const bounded::Maps>(element, promise.kind, promise.bound);
    constexpr size_t kValues = 1500;
    const Block x = hard_values(element, pattern, kValues, 1e-3, 7);
    const std::vector<Encoded> good = encode_on_cpu(maps, x);
    Random random(static_cast<uint64_t>(pattern));
    for (int round = 0; round < 300; ++round) {
      std::vector<Encoded> bad = good;
      Block& block = bad[0].block;
      // In the content, which stands in the block as it is, or in the counts of lists.
      const size_t at = round % 3 == 0 ? 24 + random(8) : 36 + random(block.size() - 40);
      block[at] = static_cast<std::byte>(random(256));
      seal(block);
      Block wanted;
      bool refuses = false;
      try {
        bad[0].content.assign(block.begin() + 36,
                              block.end() - static_cast<std::ptrdiff_t>(bounded::kCrcBytes));
        bounded::Decoder decoder(maps);
        bad[0].content.resize(decoder.open(block, kValues).content);
      } catch (const ConfigError&) {
        continue;  // refused before any kernel
      }
      try {
        wanted = decode_block(maps, block, bad[0].content, kValues);
      } catch (const ConfigError&) {
        refuses = true;
      }
      std::vector<uint32_t> faults(1);
      Block y;
      try {
        y = decode_on_kernels(maps, bad, kValues, 0, kValues, &faults);
      } catch (const ConfigError&) {
        CHECK(refuses, round);
        ++refused;
        continue;
      }
      CHECK((faults[0] != 0) == refuses, "element ", static_cast<int>(element), ", round ", round);
      CHECK(refuses || y == wanted, "element ", static_cast<int>(element), ", round ", round);
      refused += refuses ? 1 : 0;
    }
  }
  CHECK(refused > 50, refused);
}

}  // namespace cgx::native
