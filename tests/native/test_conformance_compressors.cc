// What every compressor has to keep, over its parameters, element types, sizes and values. A compressor
// is here because it is in the list.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>

#include "bounded_values.h"
#include "check.h"
#include "codec/compressor.h"
#include "declarations.h"
#include "toy_entropy.h"

namespace cgx::native {
namespace {

using Payload = std::vector<std::byte>;
using CompressorPtr = std::shared_ptr<const Compressor>;

constexpr size_t kEach = 400, kGuard = 24;
constexpr std::byte kCanary{0xa5};

CompressorPtr made(const CompressorConfig& config) {
  static const auto entropy = std::make_shared<const ToyEntropy>();
  return make_compressor(config, entropy);
}

bool is_allowed(const CompressorConfig& config) {
  try {
    made(config);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

template <typename Body>
void for_each_compressor(const Body& body) {
  for (const CompressorFamily* family : compressors().all()) {
    for (const auto& config : sample_configs(*family, family->name.size(), is_allowed)) {
      body(*made(config));
    }
  }
}

std::vector<DType> types_of(const Compressor& compressor) {
  std::vector<DType> all;
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (compressor.dtypes().has(dtype)) all.push_back(dtype);
  }
  return all;
}

bool is_complex(DType dtype) { return kind_of(dtype) == DTypeKind::kComplex; }
size_t reals_in(size_t n, DType dtype) { return is_complex(dtype) ? 2 * n : n; }

// n aligned elements, with a guard on both sides.
class Elements {
 public:
  explicit Elements(size_t bytes)
      : bytes_(bytes), memory_((bytes + 2 * kGuard + 7) / 8 * 8, kCanary) {}
  std::byte* data() { return memory_.data() + kGuard; }
  bool guards_are_whole() const {
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    const auto end = memory_.begin() + static_cast<ptrdiff_t>(kGuard + bytes_);
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_canary) &&
           std::all_of(end, memory_.end(), is_canary);
  }

 private:
  static_assert(kGuard % 8 == 0);
  size_t bytes_;
  std::vector<std::byte> memory_;
};

struct Run {
  const Compressor& compressor;
  DType dtype;
  size_t n;
  Block x;

  std::string name() const {
    return str_of(compressor.describe(), ", ", name_of(dtype), ", n=", n, ", level ", cpu_level());
  }
};

Run run_of(const Compressor& compressor, DType dtype, size_t n, uint64_t seed) {
  const int pattern = static_cast<int>(seed % kFloatPatterns);
  return {compressor, dtype, n,
          hard_values(real_of(dtype), pattern, reals_in(n, dtype), 0.001, seed)};
}

// Nothing: the values are some that the format does not take.
std::optional<Payload> compress(const Run& run) {
  const size_t most = run.compressor.most_bytes(run.n, run.dtype);
  Payload out(most + 2 * kGuard + 1, kCanary);
  std::byte* const begin = out.data() + kGuard + run.n % 2;  // of any alignment
  size_t bytes = 0;
  try {
    bytes = run.compressor.compress(run.x.data(), run.n, run.dtype, {begin, most});
  } catch (const ConfigError& error) {
    CHECK(!run.compressor.config().family().takes_all, run.name(), ": ", error.what());
    CHECK(contains(error.what(), "value"), error.what());
    return std::nullopt;
  }
  CHECK(bytes <= most, run.name(), ": ", bytes, " bytes, at most ", most);
  for (const std::byte* at = out.data(); at != out.data() + out.size(); ++at) {
    CHECK((at >= begin && at < begin + most) || *at == kCanary, run.name());
  }
  return Payload(begin, begin + bytes);
}

// About Gaussian values, or zeros where these are too large for the bound.
Run taken_run(const Compressor& compressor, DType dtype, size_t n, uint64_t seed) {
  Run run = run_of(compressor, dtype, n, kFloatPatterns * seed);
  if (!compress(run)) std::fill(run.x.begin(), run.x.end(), std::byte{0});
  return run;
}

Block decompress(const Run& run, const Payload& payload, const Compressor& by) {
  Elements y(run.n * size_of(run.dtype));
  const ExactBytes in(payload, payload.size() % 5);
  by.decompress(in.span(), y.data(), run.n, run.dtype);
  CHECK(y.guards_are_whole(), run.name());
  return Block(y.data(), y.data() + run.n * size_of(run.dtype));
}

double number_at(DType real, const Block& x, size_t i) {
  const uint64_t bits = raw_bits(real, x.data() + i * size_of(real));
  if (is_floating(real)) return float_value(real, bits);
  return real == DType::kInt32 ? static_cast<double>(static_cast<int32_t>(bits))
                               : static_cast<double>(bits);
}

void check_bound(const Run& run, const PayloadInfo& info, const Block& y) {
  if (info.kind == "lossless") {
    CHECK(y == run.x, run.name());
    return;
  }
  const size_t reals = reals_in(run.n, run.dtype);
  std::vector<double> limits(reals, -1);
  run.compressor.bound(run.x.data(), run.n, run.dtype, limits.data());
  for (size_t i = 0; i < reals; ++i) {
    const DType real = real_of(run.dtype);
    const double a = number_at(real, run.x, i), b = number_at(real, y, i);
    const bool exact = !std::isfinite(a) || limits[i] == 0;
    const bool same = a == b || (std::isnan(a) && std::isnan(b));
    CHECK(exact ? same : std::fabs(a - b) <= limits[i], run.name(), ": value ", i, ", ", a,
          " became ", b, ", allowed ", limits[i]);
  }
}

// Each size, and around the borders of blocks of all formats.
std::vector<size_t> sizes(bool each) {
  std::set<size_t> all{0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 399, 400, 4097};
  for (size_t n = 0; each && n <= kEach; ++n) all.insert(n);
  if (each) all.insert({1023, 1024, 1025, 32767, 32768, 32769, 65535, 65536, 65537, 131073});
  return {all.begin(), all.end()};
}

std::string error_or_none(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(conformance_compressors_round_trip_within_their_bounds) {
  uint64_t seed = 0;
  for_each_compressor([&](const Compressor& compressor) {
    const bool defaults = compressor.config() == CompressorConfig(compressor.config().family());
    const CompressorPtr other = made(CompressorConfig(compressor.config().family()));
    size_t taken = 0;
    const auto types = types_of(compressor);
    for (const size_t n : sizes(defaults)) {
      for (size_t k = 0; k < types.size(); ++k) {
        // Long runs and configurations far from the defaults meet the types in turn.
        if ((!defaults || n > kEach) && (k + n) % types.size() > 1) continue;
        const Run run = run_of(compressor, types[k], n, ++seed);
        const auto payload = compress(run);
        if (!payload) continue;
        ++taken;
        const PayloadInfo info = compressor.info(*payload);
        CHECK(info.dtype == run.dtype && info.count == n && info.bytes == payload->size() &&
                  info.shape == std::vector<uint64_t>{n},
              run.name());
        const Block y = decompress(run, *payload, compressor);
        check_bound(run, info, y);
        CHECK(decompress(run, *payload, *other) == y, "by the defaults: ", run.name());
        if (cpu_level() == "scalar") continue;
        AtSimdLevel scalar("scalar");
        CHECK(compress(run) == payload && decompress(run, *payload, compressor) == y, run.name());
      }
      ++seed;  // so that a type meets all patterns
    }
    CHECK(taken > 0, compressor.describe(), " takes no values");
  });
}

TEST(conformance_compressors_name_what_they_do_not_take) {
  for_each_compressor([&](const Compressor& compressor) {
    const DType other =
        compressor.dtypes().has(DType::kFloat8E5M2) ? DType::kFloat64 : DType::kFloat8E5M2;
    const std::string type =
        error_of<ConfigError>([&] { static_cast<void>(compressor.most_bytes(1, other)); });
    CHECK(
        contains(type, str_of("torch.", name_of(other), ", allowed: ", compressor.dtypes().text())),
        type);
    const DType dtype = types_of(compressor)[0];
    const Run run = taken_run(compressor, dtype, 33, 0);
    const auto payload = compress(run);
    CHECK(payload, run.name());
    std::vector<std::byte> out(compressor.most_bytes(33, dtype) - 1);
    const std::string room =
        error_of<ConfigError>([&] { compressor.compress(run.x.data(), 33, dtype, out); });
    CHECK(contains(room, str_of(out.size(), " bytes")) && contains(room, str_of(out.size() + 1)),
          room);
    for (const size_t n : {32, 34}) {
      Elements y(34 * 16);
      const std::string text =
          error_of<ConfigError>([&] { compressor.decompress(*payload, y.data(), n, dtype); });
      CHECK(contains(text, str_of("y has ", n)) && contains(text, "holds 33"), text);
    }
  });
}

TEST(conformance_compressors_refuse_damaged_payloads) {
  uint64_t seed = 0;
  for_each_compressor([&](const Compressor& compressor) {
    const bool detects = compressor.config().family().detects_changes;
    const auto types = types_of(compressor);
    for (const size_t n : {0, 1, 37, 300}) {
      ++seed;
      const Run run = taken_run(compressor, types[seed % types.size()], n, seed);
      const auto whole = compress(run);
      CHECK(whole, run.name());
      Elements y(n * size_of(run.dtype));
      const auto damage = [&](const Payload& payload) {
        const ExactBytes in(payload, payload.size() % 3);
        const std::string text =
            error_or_none([&] { compressor.decompress(in.span(), y.data(), n, run.dtype); });
        CHECK(y.guards_are_whole(), run.name());
        return text;
      };
      const size_t step = std::max<size_t>(whole->size() / 100, 1);
      for (size_t bytes = 0; bytes < whole->size(); bytes += step) {
        const Payload cut(whole->begin(), whole->begin() + static_cast<ptrdiff_t>(bytes));
        CHECK(!damage(cut).empty(), run.name(), ": cut to ", bytes, " bytes of ", whole->size());
      }
      Payload longer = *whole;
      longer.push_back(std::byte{0});
      CHECK(!damage(longer).empty(), run.name(), ": a byte follows");
      for (size_t at = 0; at < whole->size(); at += at < 64 ? 1 : step) {
        Payload altered = *whole;
        altered[at] ^= std::byte{1} << (seed + at) % 8;
        const std::string text = damage(altered);
        CHECK(!detects || !text.empty(), run.name(), ": byte ", at, " of ", whole->size());
      }
    }
  });
}

TEST(conformance_compressors_as_text_and_hash) { check_declarations(compressors()); }

TEST(compressors_that_need_an_entropy_coder_say_so) {
  const CompressorConfig config = compressors().named("cuda_float_compress");
  const std::string text = error_of<ConfigError>([&] { make_compressor(config, nullptr); });
  CHECK(contains(text, "cuda_float_compress needs an entropy coder"), text);
  // Blocks that are stored without a frame can be read by anybody; frames need the coder.
  const CompressorConfig bounded = compressors().parse("bounded bound=0.01");
  const CompressorPtr with = made(bounded), without = make_compressor(bounded, nullptr);
  // Levels that last for 7 values each: most symbols are those beside them.
  constexpr size_t kValues = 5000, kLasts = 7;
  Block x(kValues * sizeof(float));
  Random random(5);
  float level = 0;
  for (size_t i = 0; i < kValues; ++i) {
    if (i % kLasts == 0) level = 8 * static_cast<float>(random.signed_unit());
    std::memcpy(x.data() + i * sizeof level, &level, sizeof level);
  }
  const Run run{*with, DType::kFloat32, kValues, x}, plain{*without, run.dtype, kValues, x};
  const auto framed = compress(run), stored = compress(plain);
  CHECK(decompress(run, *stored, *with) == decompress(plain, *stored, *without));
  CHECK(framed->size() < stored->size(), framed->size(), " and ", stored->size());
  const std::string needs = error_of<ConfigError>([&] { decompress(plain, *framed, *without); });
  CHECK(contains(needs, "needs an entropy coder"), needs);
}

}  // namespace cgx::native
