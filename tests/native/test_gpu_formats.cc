// The GPU's stages of the codecs `float` and `block` on the host: the bytes and values of the CPU, for values
// of every kind.
#include <cmath>
#include <cstring>
#include <iterator>

#include "check.h"
#include "codec/cast.h"
#include "codec/formats/gpu/packed.h"
#include "codec/formats/presets.h"
#include "codec/ops/convert.h"
#include "data.h"
#include "gpu_block.h"

namespace cgx::native {
namespace {

// Any bits, and magnitudes from one end of float32 to the other, near each other within 64 values; among them
// both zeros, ties, NaNs and infinities.
std::vector<std::byte> values_of_every_kind(DType dtype, size_t n) {
  Random random(n + 1);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const auto exponent = static_cast<uint32_t>((i / 64 * 5 + 120 + random(6)) % 255);
    x[i] =
        from_bits(i / 256 % 5 == 4 && i % 29 == 0 ? bits : (bits & 0x807fffffu) | exponent << 23);
    if (i % 31 == 3) x[i] = i % 2 != 0 ? -0.0f : 0.0f;
    if (i / 64 % 4 == 1)
      x[i] = std::ldexp(static_cast<float>(random(64)) - 32.0f, -4);  // many ties
  }
  if (n > 40) x[n / 3] = -INFINITY, x[n / 2] = from_bits(0xff800001u);
  std::vector<std::byte> bytes(n * size_of(dtype));
  from_float(x.data(), dtype, n, bytes.data());
  return bytes;
}

// Small sizes meet one type each, in turn.
void check_stages(const std::string& text, const std::vector<size_t>& sizes) {
  size_t turn = 0;
  for (const size_t n : sizes) {
    ++turn;
    for (size_t type = 0; type < std::size(kDTypes); ++type) {
      const DType dtype = kDTypes[type];
      if (n < 70 && turn % std::size(kDTypes) != type) continue;
      const BlockCase c{make_codec(config_of_text(text)), dtype, n, values_of_every_kind(dtype, n)};
      check_encode(c);
      check_decode(c);
      check_sum(c);
      check_feedback(c, {.shift = turn % 3 * 4, .plus = turn % 2 == 0});
    }
  }
}

std::vector<size_t> border_sizes() {
  std::vector<size_t> sizes = {127, 128, 129, 2047, 2048, 2049, 4101};
  for (size_t n = 0; n < 70; n += n < 20 ? 1 : 7) sizes.push_back(n);
  return sizes;
}

}  // namespace

TEST(gpu_formats_float_has_the_bytes_of_the_cpu) {
  for (const char* text : {"float",
                           "float exponent=5 mantissa=2 rounding=stochastic seed=3",
                           "float exponent=3 mantissa=2",
                           "float exponent=2 mantissa=1 rounding=stochastic",
                           "float exponent=1 mantissa=0 variant=fnuz",
                           "float exponent=1 mantissa=1 variant=fn",
                           "float exponent=2 mantissa=2 rounding=zero",
                           "float exponent=3 mantissa=3 subnormals=0",
                           "float exponent=4 mantissa=1 overflow=saturate",
                           "float exponent=7 mantissa=0",
                           "float variant=fn",
                           "float variant=fn overflow=nan rounding=stochastic random_bits=8",
                           "float variant=fnuz",
                           "float exponent=5 mantissa=2 variant=fnuz overflow=saturate",
                           "float variant=p3109",
                           "float exponent=3 mantissa=4 variant=p3109 rounding=stochastic",
                           "float exponent=6 mantissa=9",
                           "float exponent=6 mantissa=9 rounding=stochastic",
                           "float exponent=8 mantissa=7 rounding=stochastic random_bits=16",
                           "float exponent=5 mantissa=10 variant=fnuz",
                           "float exponent=5 mantissa=10",
                           "float exponent=8 mantissa=7"}) {
    check_stages(text, border_sizes());
  }
}

TEST(gpu_formats_block_has_the_bytes_of_the_cpu) {
  const CodecConfig defaults = config_named("block");
  const size_t place = defaults.family().place_of("format");
  size_t turn = 0;
  for (const std::string& format : split(defaults.family().parameters[place].choices)) {
    for (const char* rounding : {"nearest", "zero", "stochastic"}) {
      // Only e8m0 has a choice of the scale's rounding.
      const char* scales[] = {"floor", "ceil", "even", "rceil"};
      const char* scale = format == "fp8_block128" ? "floor" : scales[turn++ % 4];
      check_stages(
          str_of("block format=", format, " rounding=", rounding, " scale_rounding=", scale),
          border_sizes());
    }
  }
}

TEST(gpu_formats_runs_hold_how_values_become_numbers) {
  using gpu::coding::Packed;
  for (int number = 0; number < 8 * 24; ++number) {
    for (int choice = 0; choice < 7 * 3 * 3 * 2; ++choice) {
      Packed packed;
      packed.casting = {{1 + number % 8, number / 8, static_cast<formats::Variant>(choice % 7)},
                        static_cast<formats::Rounding>(choice / 7 % 3),
                        1 + number % 24,
                        choice / 63 != 0,
                        static_cast<formats::Overflow>(choice / 21 % 3)};
      packed.scale = static_cast<formats::Scale>(choice % 3);
      packed.scale_rounding = static_cast<formats::ScaleRounding>(number % 4);
      gpu::CodecRun run{};
      gpu::coding::pack(packed, run);
      const Packed back = gpu::coding::unpack(run);
      CHECK(back.casting == packed.casting && back.scale == packed.scale &&
                back.scale_rounding == packed.scale_rounding,
            "format ", number, ", choice ", choice);
    }
  }
}

}  // namespace cgx::native
