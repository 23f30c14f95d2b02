// The launcher of the kernels, on the stub driver (tests/device), under CUDA's names and HIP's:
// what one stream writes another one reads behind an event, and a call that the driver refuses is
// an error with its name.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "codec/gpu/device_table.h"
#include "codec/gpu/kernels.h"
#include "device/queue.h"
#include "maxmin_codec.h"
#include "stub.h"

namespace cgx::native {
namespace {

using device::Driver;

// A fake context: the stub takes any pointer.
const device::Context kContext = reinterpret_cast<device::Context>(0x1000);

device::Stream new_stream(const Driver& driver) {
  device::Stream stream = nullptr;
  GPU(driver, create_stream, &stream, 1, 0);
  return stream;
}

device::Event new_event(const Driver& driver) {
  device::Event event = nullptr;
  GPU(driver, create_event, &event, 2);
  return event;
}

void wait(const Driver& driver, device::Event event) {
  while (driver.query_event(event) == device::kNotReady) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// The driver under each vendor's names.
template <typename Test>
void with_each_driver(const Test& test) {
  for (const char* cuda : {"1", "0"}) {
    setenv("CGX_CUDA", cuda, 1);
    const Driver& driver = Driver::get();
    unsetenv("CGX_CUDA");
    test(driver);
  }
}

void on_two_streams(const Driver& driver) {
  const device::InContext in(driver, kContext);
  const gpu::KernelModule kernels(driver, kernel_image(driver));
  const auto codec = make_maxmin({.bits = 4, .bucket_size = 64});
  const size_t n = 10000;
  std::vector<float> values(n), result(n), expected(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i * i % 1013) - 500.0f;
  std::vector<std::byte> payload(codec->encoded_bytes(n, DType::kFloat32));
  codec->encode(values.data(), DType::kFloat32, DType::kFloat32, n, 0, n, {}, 0, payload.data());
  codec->decode(payload.data(), DType::kFloat32, n, 0, n, expected.data(), false);

  gpu::RunTable table;
  table.add(*codec, DType::kFloat32, 0, 0, n, 0, 0, 0);
  const device::Stream first = new_stream(driver), second = new_stream(driver);
  const device::Event encoded = new_event(driver), done = new_event(driver);
  const auto x = device::allocate_device(driver, 4 * n), y = device::allocate_device(driver, 4 * n);
  const auto message = device::allocate_device(driver, payload.size());
  const auto bytes = [](const auto& memory) {
    return reinterpret_cast<unsigned char*>(memory.get());
  };
  GPU(driver, copy_to_device_async, reinterpret_cast<device::Pointer>(x.get()), values.data(),
      4 * n, first);
  const device::Queue queue(driver, first);
  device::Uploads uploads(queue);
  const gpu::DeviceTable on_device(uploads, table);
  const gpu::Type fp32 = gpu::Type::kFloat32;
  kernels.encode(on_device.tables(), {{}, bytes(x), {}, fp32, {bytes(message)}, {}}, first);
  GPU(driver, record_event, encoded, first);
  GPU(driver, stream_wait_event, second, encoded, 0);
  kernels.decode(on_device.tables(), {{}, bytes(y), fp32, 0, {bytes(message)}}, second);
  GPU(driver, copy_to_host_async, result.data(), reinterpret_cast<device::Pointer>(y.get()), 4 * n,
      second);
  GPU(driver, record_event, done, second);
  wait(driver, done);
  CHECK(std::memcmp(message.get(), payload.data(), payload.size()) == 0, "payload");
  CHECK(result == expected, "values");
  for (device::Stream stream : {first, second}) GPU(driver, destroy_stream, stream);
  for (device::Event event : {encoded, done}) GPU(driver, destroy_event, event);
}

void names_the_call_that_failed(const Driver& driver) {
  const device::InContext in(driver, kContext);
  const gpu::KernelModule kernels(driver, kernel_image(driver));
  gpu::RunTable table;
  table.add(*raw_codec(), DType::kFloat32, 0, 0, 8, 0, 0, 0);
  setenv("STUB_DRIVER_FAIL", "cuLaunchKernel", 1);
  const std::string text = error_of<ResourceError>(
      [&] { kernels.encode(table.tables(nullptr), {{}, nullptr, {}, {}, {}, {}}, nullptr); });
  unsetenv("STUB_DRIVER_FAIL");
  const bool cuda = driver.vendor == device::Vendor::kCuda;
  CHECK(contains(text, cuda ? "cuLaunchKernel failed with 719 (CUDA_ERROR_LAUNCH_FAILED"
                            : "hipModuleLaunchKernel failed with 719"),
        text);
}

}  // namespace

TEST(gpu_codec_on_two_streams) { with_each_driver(on_two_streams); }

TEST(gpu_codec_names_the_call_that_failed) { with_each_driver(names_the_call_that_failed); }

TEST(gpu_driver_is_the_one_that_CGX_CUDA_names) {
  std::vector<std::string> libraries;
  with_each_driver([&](const Driver& driver) { libraries.push_back(driver.library); });
  CHECK(libraries == (std::vector<std::string>{"libcuda.so.1", "libamdhip64.so"}), "libraries");
  setenv("CGX_CUDA", "2", 1);
  const std::string text = error_of<ConfigError>([] { Driver::get(); });
  unsetenv("CGX_CUDA");
  CHECK(contains(text, "CGX_CUDA='2' is not allowed; cuda takes 0 or 1"), text);
}

TEST(gpu_codec_needs_a_context) {
  const std::string text = error_of<ResourceError>(
      [] { gpu::KernelModule kernels(Driver::get(), kernel_image(Driver::get())); });
  CHECK(contains(text, "no context"), text);
}

}  // namespace cgx::native
