// A new family needs its declaration and one line: here add_family(). Plan, header, settings,
// simulator, ranks, and the conformance suite take it without knowing it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "check.h"
#include "codec/choice.h"
#include "codec/codec.h"
#include "codec/gpu/run_table.h"
#include "data.h"
#include "groups.h"
#include "reduce/plan/header.h"
#include "reduce/simulate.h"

namespace cgx::native {
namespace {

float value_at(const void* x, DType dtype, size_t i) {
  uint32_t word = 0;
  const auto bytes = size_of(dtype);
  std::memcpy(&word, static_cast<const std::byte*>(x) + i * bytes, bytes);
  if (dtype == DType::kFloat16) return half_to_float(static_cast<uint16_t>(word));
  if (dtype == DType::kBFloat16) return bfloat16_to_float(static_cast<uint16_t>(word));
  return from_bits(word);
}

class ToyCodec final : public Codec {
 public:
  explicit ToyCodec(const CodecConfig& config)
      : Codec(config), mask_(0xffffu << config.get("shift") & 0xffffu) {}

  int bits() const override { return 16; }
  size_t granule() const override { return 1; }
  size_t block() const override { return 1; }
  PayloadSize payload_size(DType) const override { return {.bits = 16}; }

  void encode(const void* x, DType x_dtype, DType, size_t count, size_t first, size_t n, RandomKey,
              uint64_t, std::byte* payload) const override {
    check_part(first, n, count);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t word = as_bits(value_at(x, x_dtype, i));
      // A NaN keeps a bit that says so.
      const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
      const auto code = static_cast<uint16_t>(nan ? 0x7fc0u : word >> 16 & mask_);
      std::memcpy(payload + 2 * (first + i), &code, 2);
    }
  }

  void decode(const std::byte* payload, DType, size_t count, size_t first, size_t n, float* y,
              bool add) const override {
    check_part(first, n, count);
    for (size_t i = 0; i < n; ++i) {
      uint16_t code;
      std::memcpy(&code, payload + 2 * (first + i), 2);
      const float value = from_bits(static_cast<uint32_t>(code) << 16);
      y[i] = add ? y[i] + value : value;
    }
  }

 private:
  const uint32_t mask_;
};

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return std::make_shared<ToyCodec>(config);
}

void bound(const CodecConfig& config, DType, const float* x, size_t n, double* limits) {
  const double unit = std::ldexp(1.0, static_cast<int>(config.get("shift")) - 7);
  for (size_t i = 0; i < n; ++i) {
    limits[i] = std::max(unit * std::fabs(static_cast<double>(x[i])), unit * 0x1p-126);
  }
}

const Family& toy_family() {
  static const Family family{
      {.name = "toy",
       .meaning = "Upper bits",
       .parameters = {{.name = "shift",
                       .variable = "CGX_TOY_SHIFT",
                       .kind = Parameter::Kind::kInteger,
                       .fallback = "0",
                       .low = 0,
                       .high = 6,
                       .per_call = true,
                       .meaning = "Bits that are dropped"}},
       .python = "Toy",
       .doc = "The upper 16 bits of each value, less ``shift``."},
      {.id = 250, .make = make, .bound = bound},
  };
  return family;
}

// Before main(), so that all tests of this program have it.
const bool added = [] {
  add_family(toy_family());
  return true;
}();

std::shared_ptr<const Codec> toy(int64_t shift) {
  return make_codec(CodecConfig(toy_family()).set("shift", shift));
}

// The settings of a group in which nothing but these is set.
std::shared_ptr<const Codec> chosen(const std::map<std::string, std::string>& given) {
  return choose_codec([&](const std::string& name) {
    const auto found = given.find(name);
    if (found != given.end()) return found->second;
    for (const Parameter& p : codec_settings()) {
      if (p.name == name) return from_environment(p).value_or(p.fallback);
    }
    throw ConfigError("no such setting: " + name);
  });
}

}  // namespace

TEST(toy_family_is_chosen_by_settings) {
  CHECK(added && contains(codec_names(), "toy"));
  CHECK(chosen({{"codec", "toy"}, {"bits", "4"}})->describe() == "toy shift=0");
  CHECK(chosen({{"codec", "toy"}, {"bits", "4"}, {"shift", "3"}}) == toy(3));
  setenv("CGX_TOY_SHIFT", "5", 1);
  CHECK(chosen({{"codec", "toy"}, {"bits", "1"}}) == toy(5));
  setenv("CGX_TOY_SHIFT", "7", 1);
  const std::string text = error_of<ConfigError>([] { chosen({{"codec", "toy"}, {"bits", "1"}}); });
  unsetenv("CGX_TOY_SHIFT");
  CHECK(text == "CGX_TOY_SHIFT='7' is not allowed; shift takes integers from 0 to 6", text);
  CHECK(chosen({{"codec", "toy"}, {"bits", "32"}}) == raw_codec());
}

TEST(toy_family_in_plans_and_headers) {
  const PlanSpace space{Topology::one_host(2), {60000, 60000}, {0, 0}, true};
  const auto plan = [&](int64_t shift) {
    return plan_all_reduce({{100, toy(shift)}, {3, raw_codec()}}, DType::kFloat32,
                           Algorithm::kOneShot, space);
  };
  const auto mine = plan(1), same = plan(1), other = plan(2);
  CHECK(mine->hash == same->hash && mine->hash != other->hash);
  std::vector<std::byte> message(sizeof(MessageHeader));
  write_header(message.data(), {same.get(), 0, false, 1}, 0, 0, 0);
  const Message beginning{message.data(), message.size()};
  check_call(beginning, {mine.get(), 0, false, 0}, 0, 1);
  const std::string text =
      error_of<MismatchError>([&] { check_call(beginning, {other.get(), 0, false, 0}, 0, 1); });
  CHECK(
      contains(text, "rank 0 runs all_reduce SUM of 103 float32 values, 16 bits, toy shift=2") &&
          contains(text, "rank 1 runs all_reduce SUM of 103 float32 values, 16 bits, toy shift=1"),
      text);
}

// Two ranks on communicators, and the same call in the simulator: equal bits, inside the bound.
TEST(toy_family_among_ranks) {
  for (const DType dtype : kDTypes) {
    const size_t n = 1000;
    const std::vector<Layer> layers = {{n - 7, toy(2)}, {7, raw_codec()}};
    const EngineOptions options =
        options_of(Reduction::kScatterReduceAllGather, 4096, 4096, 1 << 20);
    std::vector<std::vector<float>> exact;
    std::vector<std::vector<std::byte>> real, simulated;
    for (uint64_t rank = 0; rank < 2; ++rank) {
      exact.push_back(values(n, 0, rank));
      real.push_back(tensor_of(exact.back(), dtype));
      exact.back() = values_of(real.back(), dtype);
    }
    simulated = real;
    EngineGroup group =
        make_engines({"a", "a"}, options, CommunicatorKind::kInProcess, CommunicatorKind::kRelay);
    run_ranks(2, [&](int rank) {
      auto& data = real[static_cast<size_t>(rank)];
      Engine& engine = *group.ranks[static_cast<size_t>(rank)];
      const auto plan = engine.plan_all_reduce(layers, dtype);
      engine.run(*plan, data.data(), data.data(), false, patience());
    });
    simulate_all_reduce({Topology::one_host(2), options, 0},
                        {simulated[0].data(), simulated[1].data()}, dtype, layers, false);
    CHECK(real[0] == real[1] && real == simulated);
    const std::vector<float> sums = values_of(real[0], dtype);
    for (size_t i = 0; i < n; ++i) {
      const double a = exact[0][i], b = exact[1][i];
      // Two roundings of 2^-5, and that of the tensor's type.
      const double limit = i < n - 7 ? 0.07 * (std::fabs(a) + std::fabs(b)) + 1e-5
                                     : 0.01 * (std::fabs(a) + std::fabs(b)) + 1e-5;
      CHECK(std::fabs(sums[i] - (a + b)) <= limit, "value ", i, ": ", sums[i], " for ", a + b);
    }
  }
}

TEST(toy_family_has_no_kernels) {
  gpu::RunTable table;
  const std::string text =
      error_of<ConfigError>([&] { table.add(*toy(0), DType::kFloat32, 0, 0, 10, 0, 0, 0); });
  CHECK(contains(text, "codec toy has no kernels"), text);
}

TEST(families_that_clash_are_refused) {
  CHECK(contains(error_of<ConfigError>([] { add_family(toy_family()); }), "'toy'"));
  Family other = toy_family();
  other.name = "other";
  CHECK(contains(error_of<ConfigError>([&] { add_family(other); }), "number 250"));
  other.id = 251;
  other.parameters[0].variable = "CGX_OTHER";
  CHECK(contains(error_of<ConfigError>([&] { add_family(other); }), "shift"));
  other.parameters[0] = toy_family().parameters[0];
  other.parameters[0].fallback = "1";
  CHECK(contains(error_of<ConfigError>([&] { add_family(other); }), "another kind, default"));
}

}  // namespace cgx::native
