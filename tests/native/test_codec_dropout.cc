// dropout() at the level in force: what a model of a few lines has, the scalar level's bytes, nothing
// written outside, and the kernels' bytes.
#include <cmath>
#include <cstring>

#include "../device/host_kernels.h"
#include "at_level.h"
#include "base/error.h"
#include "check.h"
#include "codec/activations/dropout/dropout.h"
#include "codec/activations/dropout/gpu/stage.h"
#include "data.h"

namespace cgx::native {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64};
constexpr RandomKey kKey{0x12345678u, 0x9abcdef0u};
constexpr size_t kAround = 64;

std::vector<std::byte> bytes_as(const std::vector<float>& x, DType type) {
  if (type != DType::kFloat64) return tensor_of(x, type);
  std::vector<double> wide(x.begin(), x.end());
  std::vector<std::byte> bytes(8 * x.size());
  if (!x.empty()) std::memcpy(bytes.data(), wide.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> dropped(const std::vector<std::byte>& x, DType type, double p,
                               uint64_t index, size_t shift) {
  std::vector<std::byte> memory(x.size() + 2 * kAround + shift, std::byte{0xa5});
  std::byte* y = memory.data() + kAround + shift;
  std::copy(x.begin(), x.end(), y);
  dropout(y, type, x.size() / size_of(type), p, kKey, index, y);
  for (size_t i = 0; i < kAround; ++i) {
    CHECK(memory[i] == std::byte{0xa5} && memory[memory.size() - 1 - i] == std::byte{0xa5});
  }
  return {y, y + x.size()};
}

std::vector<std::byte> model(const std::vector<float>& x, DType type, double p, uint64_t index) {
  if (type == DType::kFloat64) {
    std::vector<std::byte> y(8 * x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const bool stays = random_of(kKey, index + i) < static_cast<float>(1 - p);
      const double value = static_cast<double>(x[i]) * (stays ? 1 / (1 - p) : 0.0);
      std::memcpy(y.data() + 8 * i, &value, 8);
    }
    return y;
  }
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool stays = random_of(kKey, index + i) < static_cast<float>(1 - p);
    const auto bits = tensor_of({x[i]}, type);
    y.push_back(load_value(bits.data(), type) * (stays ? static_cast<float>(1 / (1 - p)) : 0.0f));
  }
  return tensor_of(y, type);
}

std::vector<std::byte> on_kernels(const std::vector<std::byte>& x, DType type, double p) {
  using namespace dropping::on_gpu;
  std::vector<std::byte> y(x.size(), std::byte{0xa5});
  Call call{};
  call.x = reinterpret_cast<const unsigned char*>(x.data());
  call.y = reinterpret_cast<unsigned char*>(y.data());
  call.values = x.size() / size_of(type);
  call.count = (call.values + gpu::kPartValues - 1) / gpu::kPartValues;
  call.keep = static_cast<float>(1 - p);
  call.scale = 1 / (1 - p);
  call.key = kKey;
  call.type = static_cast<uint8_t>(type);
  device::launch_blocks<Call, gpu::NoMemory>(call, stage);
  return y;
}

void check(size_t n, DType type, double p, uint64_t index) {
  const std::vector<float> x = values(n, 0, n);
  const auto in = bytes_as(x, type);
  const auto found = dropped(in, type, p, index, n % 8);
  CHECK(found == model(x, type, p, index), n, " values of ", name_of(type), ", p ", p);
  if (index == 0) CHECK(found == on_kernels(in, type, p), n, " values of ", name_of(type));
  AtLevel scalar("scalar");
  CHECK(dropped(in, type, p, index, 0) == found, n, " values of ", name_of(type));
}

}  // namespace

TEST(codec_dropout_of_every_small_size) {
  for (size_t n = 0; n <= 400; ++n) check(n, kTypes[n % 4], n % 3 == 0 ? 0.1 : 0.5, 0);
  for (const DType type : kTypes) check(5000, type, 0.25, 0);
}

TEST(codec_dropout_across_the_high_word_of_element_numbers) {
  for (const DType type : kTypes) check(300, type, 0.3, (uint64_t{1} << 32) - 150);
}

TEST(codec_dropout_at_the_ends_of_p) {
  const std::vector<float> x = values(1000, 0, 1);
  const auto in = bytes_as(x, DType::kFloat32);
  CHECK(dropped(in, DType::kFloat32, 0.0, 0, 0) == in);
  for (const std::byte byte : dropped(in, DType::kFloat32, 1.0, 0, 0)) {
    CHECK((byte & std::byte{0x7f}) == std::byte{0});  // zeros, of either sign
  }
  for (const double p : {-0.1, 1.1, std::nan("")}) {
    bool refused = false;
    try {
      dropped(in, DType::kFloat32, p, 0, 0);
    } catch (const ConfigError&) {
      refused = true;
    }
    CHECK(refused, p);
  }
}
}  // namespace cgx::native
