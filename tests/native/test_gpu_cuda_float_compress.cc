// The kernels of cuda_float_compress's format, by loops over their threads: the words, values and
// misfits of the CPU. Barriers are not tested here.
#include "../device/host_kernels.h"
#include "bounded_values.h"
#include "codec/compat/cuda_float_compress.h"
#include "codec/compat/gpu/decode.h"
#include "codec/compat/gpu/encode.h"

namespace cgx::native {
namespace {

namespace format = cuda_float_compress;
using namespace format::on_gpu;

constexpr uint32_t kUnwritten = 0x5a5a5a5a;

struct Encoded {
  std::vector<uint32_t> raw;
  size_t misfit;  // n: none
};

Encoded on_cpu(const std::vector<float>& x, float step, double max_error, bool keep_going) {
  Encoded made{std::vector<uint32_t>(format::raw_words(x.size()), kUnwritten), 0};
  const format::Misfits found =
      format::encode(x.data(), x.size(), step, max_error, keep_going, made.raw.data());
  made.misfit = keep_going ? found.range : std::min(found.range, found.bound);
  return made;
}

Encoded on_kernels(const std::vector<float>& x, float step, double max_error, bool keep_going) {
  const size_t words = format::raw_words(x.size());
  Encoded made{std::vector<uint32_t>(words, kUnwritten), x.size()};
  std::vector<int32_t> misfits(words / kPartValues, -1);
  EncodeCall call{};
  call.x = x.data();
  call.raw = made.raw.data();
  call.misfits = misfits.data();
  call.values = x.size();
  call.count = misfits.size();
  call.grid = format::make_grid(step, max_error);
  call.keep_going = keep_going ? 1 : 0;
  device::launch_blocks<EncodeCall, EncodeMemory>(call, encode_stage);
  for (const int32_t misfit : misfits) {
    CHECK(misfit >= 0, misfit);
    if (misfit != kNoMisfit) made.misfit = std::min(made.misfit, static_cast<size_t>(misfit));
  }
  return made;
}

/// Bits of values.
using Bits = std::vector<uint32_t>;

Bits decoded_on_cpu(const std::vector<uint32_t>& raw, size_t n, float step) {
  Bits y(n, kUnwritten);
  format::decode(raw.data(), n, step, reinterpret_cast<float*>(y.data()));
  return y;
}

Bits decoded_on_kernels(const std::vector<uint32_t>& raw, size_t n, float step) {
  Bits y(n, kUnwritten);
  DecodeCall call{};
  call.raw = raw.data();
  call.y = reinterpret_cast<float*>(y.data());
  call.values = n;
  call.count = (n + kPartValues - 1) / kPartValues;
  call.step = step;
  device::launch_blocks<DecodeCall, DecodeMemory>(call, decode_stage);
  return y;
}

struct Count {
  size_t fit = 0, misfit = 0, mended = 0;
};

void check_step(const std::vector<float>& x, float step, double max_error, const std::string& what,
                Count* count) {
  for (const bool keep_going : {false, true}) {
    const Encoded wanted = on_cpu(x, step, max_error, keep_going);
    const Encoded made = on_kernels(x, step, max_error, keep_going);
    CHECK(made.misfit == wanted.misfit, what, ": ", made.misfit, ", on the CPU ", wanted.misfit);
    if (wanted.misfit < x.size()) {
      ++count->misfit;
      continue;
    }
    ++count->fit;
    CHECK(made.raw == wanted.raw, what);
    CHECK(
        decoded_on_kernels(made.raw, x.size(), step) == decoded_on_cpu(wanted.raw, x.size(), step),
        what);
    // With a bound that is never broken, quotients are the original's.
    if (on_cpu(x, step, 0x1p127, true).raw != wanted.raw) ++count->mended;
  }
}

void check(const std::vector<float>& x, double max_error, const std::string& what, Count* count) {
  const auto step = static_cast<float>(2 * max_error);
  check_step(x, step, max_error, str_of(what, ", bound ", max_error), count);
  float largest = 0;
  if (format::first_out_of_range(x.data(), x.size(), step, &largest) < x.size()) return;
  check_step(x, format::exact_step(max_error, largest), max_error,
             str_of(what, ", bound ", max_error, ", exact step"), count);
}

std::vector<float> hard(int pattern, size_t n, double bound) {
  const Block bytes =
      hard_values(DType::kFloat32, pattern, n, bound, n * 64 + static_cast<size_t>(pattern));
  std::vector<float> x(n);
  if (n > 0) std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

constexpr double kLeastBound = 0x1p-127, kMostBound = 0x1.fffffep126;

}  // namespace

TEST(gpu_cuda_float_compress_every_size) {
  Count count;
  for (size_t n = 0; n <= 400; ++n) {
    check(hard(static_cast<int>(n % 3 == 0 ? 3 : 0), n, 1e-3), 1e-3, str_of("n ", n), &count);
  }
  for (const size_t at : {8192, 16384, 32768, 65536, 98304}) {
    for (const size_t n : {at - 129, at - 128, at - 32, at - 1, at, at + 1, at + 128, at + 129}) {
      check(hard(0, n, 1e-4), 1e-4, str_of("n ", n), &count);
    }
  }
  CHECK(count.fit > 1500, count.fit, " ", count.misfit);
}

TEST(gpu_cuda_float_compress_every_pattern_and_bound) {
  Count count;
  for (int pattern = 0; pattern < kFloatPatterns; ++pattern) {
    // The finest are those of float32 near 1. Of the greatest the inverse is a subnormal number, and
    // values around the least are.
    for (const double bound :
         {3.0, 0.3, 1e-4, 0x1p-10, 1e-7, 5e-8, 0x1p-25, 0x1p-40, kLeastBound, 1e30, kMostBound}) {
      check(hard(pattern, 1500, bound), bound, str_of("pattern ", pattern), &count);
    }
  }
  CHECK(count.fit > 150 && count.misfit > 150 && count.mended > 10, count.fit, " ", count.misfit,
        " ", count.mended);
}

TEST(gpu_cuda_float_compress_ties_zeros_and_subnormal_numbers) {
  Count count;
  std::vector<float> x;
  for (int i = -300; i <= 300; ++i) {
    const float tie = (static_cast<float>(i) + 0.5f) * 0.5f;
    for (const float value : {tie, std::nextafter(tie, 1e9f), std::nextafter(tie, -1e9f)}) {
      x.push_back(value);
    }
    x.push_back(i % 2 == 0 ? 0.0f : -0.0f);
    x.push_back(std::ldexp(static_cast<float>(i), -149));
    x.push_back(std::ldexp(static_cast<float>(i), -130));
  }
  for (const double bound : {0.25, kLeastBound, 0x1p-120}) check(x, bound, "ties", &count);
  CHECK(count.fit > 0 && count.misfit > 0, count.fit, " ", count.misfit);
}

TEST(gpu_cuda_float_compress_misfits_at_every_place) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Count count;
  const std::vector<float> good = hard(0, 70'000, 1e-4);
  size_t round = 0;
  for (const size_t at :
       {0, 1, 31, 32, 33, 127, 128, 511, 512, 8191, 8192, 32767, 32768, 65537, 69999}) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity, 430000.0f, -3e38f}) {
      std::vector<float> x = good;
      x[at] = bad;
      // A later one, and one that the grid holds but not within the bound, before or behind.
      x[std::min(at + 1 + round * 37 % 900, x.size() - 1)] = bad;
      if (round % 3 == 0) x[round * 997 % x.size()] = 300000.123f;
      check_step(x, 2e-4f, 1e-4, str_of("place ", at, ", value ", bad), &count);
      ++round;
    }
    std::vector<float> x = good;
    x[at] = x.back() = 300000.123f;
    check_step(x, 2e-4f, 1e-4, str_of("place ", at, ", out of the bound"), &count);
  }
  CHECK(count.fit == 15 && count.mended == 15, count.fit, " ", count.mended);
}

// A payload may hold any words.
TEST(gpu_cuda_float_compress_any_words) {
  Random random(3);
  for (const size_t n : {1, 127, 128, 129, 5000, 8193, 40'000}) {
    std::vector<uint32_t> raw(format::raw_words(n));
    for (uint32_t& word : raw) word = static_cast<uint32_t>(random());
    for (const float step : {1.0f, 2e-4f, 0x1p-126f, 0x1p-149f, 0x1p127f}) {
      CHECK(decoded_on_kernels(raw, n, step) == decoded_on_cpu(raw, n, step), n, ", step ", step);
    }
  }
}

}  // namespace cgx::native
