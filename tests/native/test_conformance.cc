// What every family of codecs has to keep, over its parameters, types, sizes and SIMD levels. A
// family is here because it is in the list.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "at_level.h"
#include "check.h"
#include "codec/codec.h"
#include "codec/ops/level.h"
#include "data.h"
#include "gpu_block.h"
#include "samples.h"

namespace cgx::native {
namespace {

// Whether the family takes these parameters together.
bool is_allowed(const CodecConfig& config) {
  try {
    make_codec(config);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

template <typename Body>
void for_each_codec(const Body& body) {
  for (const Family* family : families()) {
    for (const CodecConfig& config : sample_configs(*family, family->id, is_allowed)) {
      body(*family, *make_codec(config));
    }
  }
}

struct Run {
  const Codec& codec;
  DType dtype;
  std::vector<std::byte> tensor;
  size_t n;

  std::string name() const {
    return str_of(codec.describe(), ", ", name_of(dtype), ", n=", n, ", level ", cpu_level());
  }
};

const RandomKey kRunKey = random_key(3, 5, 1, 0);
constexpr uint64_t kRunIndex = 0xfffffff0u;  // the counter's low word overflows soon

std::vector<std::byte> encode(const Run& run) {
  std::vector<std::byte> payload(run.codec.encoded_bytes(run.n, run.dtype));
  run.codec.encode(run.tensor.data(), run.dtype, run.dtype, run.n, 0, run.n, kRunKey, kRunIndex,
                   payload.data());
  return payload;
}

std::vector<float> decode(const Run& run, const std::vector<std::byte>& payload, bool add) {
  std::vector<float> y(run.n, 0.5f);
  run.codec.decode(payload.data(), run.dtype, run.n, 0, run.n, y.data(), add);
  return y;
}

bool same_bits(float a, float b) { return as_bits(a) == as_bits(b); }
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return same_bits(x, y); });
}

// Without a limit a value may also become NaN.
bool within(double error, double limit) { return error <= limit || std::isinf(limit); }

constexpr size_t kEach = 400;
// Borders of bytes, SIMD registers and groups of codes.
constexpr size_t kBorders[] = {0,  1,  2,  7,  8,   9,   15,  16,  17,  31,  32,  33,
                               63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 399, 400};
// Longer granules and blocks than this have no borders here: the largest bucket is 2^40 values,
// more than memory holds. A run is then a part of one.
constexpr size_t kLongest = 8192;

// Each size from 0 to kEach, or the borders among them; the borders of granules and blocks, and one
// run of several tiles and loops of every level.
std::set<size_t> sizes(const Codec& codec, bool each) {
  std::set<size_t> all(std::begin(kBorders), std::end(kBorders));
  for (size_t n = 0; each && n <= kEach; ++n) all.insert(n);
  for (size_t unit : {codec.granule(), codec.block()}) {
    if (unit > kLongest) continue;
    for (size_t n : {unit - 1, unit, unit + 1, 3 * unit - 1, 3 * unit}) all.insert(n);
  }
  all.insert(2503);
  return all;
}

// Whether the codec has its defaults, under one of its names, or differs from them in one parameter
// only: a choice, a number of a short range, or one that makes granules which sizes up to kEach
// cross.
bool near_defaults(const Codec& codec) {
  const CodecConfig& config = codec.config();
  const CodecConfig defaults = config_named(config.name());
  const bool crossed =
      codec.granule() != make_codec(defaults)->granule() && codec.granule() <= kEach;
  int differences = 0;
  for (size_t i = 0; i < config.numbers().size(); ++i) {
    if (config.numbers()[i] == defaults.numbers()[i]) continue;
    const Parameter& p = config.family().parameters[i];
    const bool is_long = p.kind == Parameter::Kind::kInteger && p.high - p.low >= kShortRange;
    if (is_long && !crossed) return false;
    ++differences;
  }
  return differences <= 1;
}

// Codecs near the defaults meet each size in each type, all others the borders in each type. The
// level is that of the program, which runs once on each. The patterns of values take turns: `seed`
// differs from one test to the next.
template <typename Body>
void for_each_run(uint64_t seed, const Body& body) {
  for_each_codec([&](const Family& family, const Codec& codec) {
    for (size_t n : sizes(codec, near_defaults(codec))) {
      for (DType dtype : kDTypes) {
        ++seed;
        const auto x = values(n, static_cast<int>(seed % kPatterns), seed);
        body(family, Run{codec, dtype, tensor_of(x, dtype), n});
      }
      ++seed;  // so that a type meets all patterns
    }
  });
}

}  // namespace

TEST(conformance_sizes_say_how_many_values) {
  for_each_codec([](const Family&, const Codec& codec) {
    CHECK(codec.block() % codec.granule() == 0, codec.describe());
    for (DType dtype : kDTypes) {
      for (size_t n = 0; n <= kEach; ++n) {
        const size_t bytes = codec.encoded_bytes(n, dtype);
        const size_t most = largest_count(codec, bytes, dtype);
        CHECK(most >= n && codec.encoded_bytes(most, dtype) == bytes, codec.describe(), " ",
              name_of(dtype), " n=", n, " most=", most);
      }
    }
  });
}

TEST(conformance_levels_give_the_bytes_of_scalar) {
  for_each_run(0, [](const Family&, const Run& run) {
    const auto payload = encode(run);
    const auto decoded = decode(run, payload, false), added = decode(run, payload, true);
    for (size_t i = 0; i < run.n; ++i) CHECK(same_bits(added[i], 0.5f + decoded[i]), run.name());
    // Sums are float32, whatever the tensor's type: values that the type holds give the same bytes.
    const std::vector<float> x = values_of(run.tensor, run.dtype);
    std::vector<std::byte> of_sums(payload.size());
    run.codec.encode(x.data(), DType::kFloat32, run.dtype, run.n, 0, run.n, kRunKey, kRunIndex,
                     of_sums.data());
    CHECK(of_sums == payload, "float32 input of the same values: ", run.name());
    const std::string level = cpu_level();
    if (level == "scalar") return;
    AtLevel scalar("scalar");
    CHECK(encode(run) == payload, level, " differs from ", run.name());
    CHECK(same_bits(decode(run, payload, false), decoded), level, " differs from ", run.name());
    CHECK(same_bits(decode(run, payload, true), added), level, " differs from ", run.name());
  });
}

TEST(conformance_bound_holds) {
  for_each_run(1, [](const Family& family, const Run& run) {
    const std::vector<float> x = values_of(run.tensor, run.dtype);
    std::vector<double> limits(run.n, -1);
    family.bound(run.codec.config(), run.dtype, x.data(), run.n, limits.data());
    const auto payload = encode(run);
    const std::vector<float> y = decode(run, payload, false);
    for (size_t i = 0; i < run.n; ++i) {
      const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
      CHECK(within(error, limits[i]), run.name(), ": value ", i, ", ", x[i], " became ", y[i],
            ", allowed ", limits[i]);
    }
    const bool finite = std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); });
    CHECK(run.codec.holds_finite(payload.data(), run.dtype, run.n) == finite, run.name());
  });
}

TEST(conformance_bound_holds_at_the_ends_of_float32) {
  const float hard[] = {3.4028235e38f, -3.4028235e38f, 1e38f, 0, -0.0f, -1, 1e-45f, 1.1754944e-38f};
  for_each_codec([&](const Family& family, const Codec& codec) {
    std::vector<float> x;
    for (size_t i = 0; i < 700; ++i) x.push_back(hard[(i * 5 + i / 8) % std::size(hard)]);
    std::vector<double> limits(x.size());
    family.bound(codec.config(), DType::kFloat32, x.data(), x.size(), limits.data());
    const Run run{codec, DType::kFloat32, tensor_of(x, DType::kFloat32), x.size()};
    const std::vector<float> y = decode(run, encode(run), false);
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
      CHECK(within(error, limits[i]), run.name(), ": value ", i, ", ", x[i], " became ", y[i],
            ", allowed ", limits[i]);
    }
  });
}

TEST(conformance_parts_equal_the_whole) {
  for_each_codec([](const Family&, const Codec& codec) {
    // Of a block that memory does not hold there is one part.
    const bool held = codec.block() <= kLongest;
    const size_t block = codec.block(), n = held ? 2 * block + block / 2 + 1 : 2503;
    const std::vector<size_t> parts =
        held ? std::vector{size_t{0}, block, 2 * block} : std::vector{size_t{0}};
    for (DType dtype : kDTypes) {
      const Run run{codec, dtype, tensor_of(values(n, 0, n), dtype), n};
      const auto whole = encode(run);
      const auto expected = decode(run, whole, false);
      std::vector<std::byte> payload(whole.size());
      std::vector<float> y(n);
      // In any order: the last one first, then from the second one on.
      codec.begin(kRunKey, kRunIndex, n, payload.data());
      for (size_t k = parts.size(); k-- > 0;) {
        const size_t first = parts[k], some = std::min(block, n - first);
        codec.encode(run.tensor.data() + first * size_of(dtype), dtype, dtype, n, first, some,
                     kRunKey, kRunIndex, payload.data());
        codec.decode(payload.data(), dtype, n, first, some, y.data() + first, false);
        CHECK(std::equal(y.begin() + static_cast<ptrdiff_t>(first),
                         y.begin() + static_cast<ptrdiff_t>(first + some),
                         expected.begin() + static_cast<ptrdiff_t>(first),
                         [](float a, float b) { return same_bits(a, b); }),
              "a part, before the others are encoded: ", run.name());
      }
      for (size_t k = 0; k < parts.size(); ++k) {
        const size_t first = parts[(k + 1) % parts.size()];
        codec.decode(payload.data(), dtype, n, first, std::min(block, n - first), y.data() + first,
                     false);
      }
      CHECK(payload == whole, run.name());
      CHECK(same_bits(y, expected), run.name());
      error_of<ConfigError>([&] { codec.decode(payload.data(), dtype, n, n, 1, y.data(), false); });
    }
  });
}

// A NaN or Inf shows in its own granule, and touches no other one.
TEST(conformance_nonfinite_values_stay_in_their_granule) {
  const float bad[] = {std::nanf(""), INFINITY, -INFINITY};
  uint64_t seed = 0;
  for_each_codec([&](const Family&, const Codec& codec) {
    // Of a granule that memory does not hold: the bad value shows, and there is no other granule.
    const size_t n = codec.granule() > kLongest ? 2503 : 3 * codec.granule() + 5;
    for (DType dtype : kDTypes) {
      auto x = values(n, 0, ++seed);
      const Run clean{codec, dtype, tensor_of(x, dtype), n};
      const auto before = decode(clean, encode(clean), false);
      const size_t at = seed * 7919 % n, granule = at / codec.granule();
      x[at] = bad[seed % 3];
      const Run run{codec, dtype, tensor_of(x, dtype), n};
      const auto after = decode(run, encode(run), false);
      CHECK(!std::isfinite(after[at]), run.name(), ", value ", at);
      for (size_t i = 0; i < n; ++i) {
        if (i / codec.granule() == granule) continue;
        CHECK(same_bits(after[i], before[i]), run.name(), ": value ", i, ", bad one at ", at);
      }
    }
  });
}

TEST(conformance_gpu_stages_give_the_bytes_of_the_cpu) {
  uint64_t seed = 0;
  for_each_codec([&](const Family& family, const Codec& codec) {
    if (family.gpu_runs == nullptr) return;
    for (size_t n : {0, 1, 63, 400, 2049, 4500}) {
      for (DType dtype : kDTypes) {
        ++seed;
        auto x = values(n, static_cast<int>(seed % kPatterns), seed);
        if (n > 70) x[seed % n] = seed % 2 ? std::nanf("") : INFINITY;
        const BlockCase c{make_codec(codec.config()), dtype, n, tensor_of(x, dtype)};
        check_encode(c);
        check_decode(c);
        check_sum(c);
      }
      ++seed;  // so that a type meets all patterns
    }
  });
}

TEST(conformance_configurations_as_text_and_hash) {
  std::set<uint64_t> hashes;
  std::set<std::string> ids;
  for (const Family* family : families()) {
    CHECK(family_of(family->id) == family && ids.insert(std::to_string(family->id)).second);
    CHECK(!family->meaning.empty(), family->name);
    CHECK(family->named == !family->python.empty(), family->name, " has no class for Python");
    const CodecConfig defaults(*family);
    CHECK(hashes.insert(defaults.hash()).second, family->name);
    for (const Parameter& p : family->parameters) {
      CHECK(!p.variable.empty() && !p.meaning.empty(), family->name, " ", p.name);
      for (int64_t number : samples(p)) {
        CodecConfig config(*family);
        config.set(p.name, text_of(p, number));
        CHECK(config.get(p.name) == number && config.text(p.name) == text_of(p, number));
        CHECK((config == defaults) == (config.hash() == defaults.hash()), config.describe());
        if (is_allowed(config)) {
          CHECK(make_codec(config)->config() == config, config.describe());
          CHECK(make_codec(config) == make_codec(config), config.describe());
        }
        // A fixed number stays out of the text, and so does what the name says.
        CHECK(config_of_text(config.describe()) == config, config.describe());
        const auto found = config_of_hash(*family, static_cast<uint32_t>(config.hash()), defaults);
        CHECK(found == nullptr || *found == config, config.describe());
      }
      const std::string text =
          error_of<ConfigError>([&] { CodecConfig(*family).set(p.name, std::string("-17")); });
      CHECK(contains(text, p.name) && contains(text, "'-17'") && contains(text, allowed(p)), text);
    }
    CHECK(contains(error_of<ConfigError>([&] { defaults.get("nothing"); }), "'nothing'"));
  }
}

}  // namespace cgx::native
