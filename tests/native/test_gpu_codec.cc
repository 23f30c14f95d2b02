// The launcher of the kernels, on the stub driver (tests/device), under CUDA's names and HIP's:
// what one stream writes another one reads behind an event, and a call that the driver refuses is
// an error with its name.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "codec/gpu/device_table.h"
#include "codec/gpu/kernels.h"
#include "codec/ops/convert.h"
#include "device/queue.h"
#include "maxmin_codec.h"
#include "stub.h"

namespace cgx::native {
namespace {

using device::Driver;

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

/// A tensor whose address is no multiple of a value's size, which torch allows.
void unaligned(const Driver& driver, const std::shared_ptr<const Codec>& codec, DType dtype,
               gpu::Type type) {
  const device::InContext in(driver, kContext);
  const gpu::KernelModule kernels(driver, kernel_image(driver));
  const size_t n = 5000, size = n * size_of(dtype);
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i * i % 1013) - 500.0f;
  std::vector<std::byte> x(size), payload(codec->encoded_bytes(n, dtype));
  from_float(values.data(), dtype, n, x.data());
  codec->encode(x.data(), dtype, dtype, n, 0, n, {}, 0, payload.data());
  std::vector<float> decoded(n);
  codec->decode(payload.data(), dtype, n, 0, n, decoded.data(), false);
  std::vector<std::byte> expected(size), sum(size);
  from_float(decoded.data(), dtype, n, expected.data());
  std::vector<float> own(n);
  to_float(x.data(), dtype, n, own.data());
  for (size_t i = 0; i < n; ++i) own[i] += decoded[i];
  from_float(own.data(), dtype, n, sum.data());

  gpu::RunTable table;
  table.add(*codec, dtype, 0, 0, n, 0, 0, 0);
  const gpu::Tables tables = table.tables(nullptr);
  CHECK(tables.warps.size() == 1, "warps take some of it");
  const device::Stream stream = new_stream(driver);
  const device::Queue queue(driver, stream);
  const auto message = device::allocate_device(driver, payload.size());
  const auto from = device::allocate_device(driver, size + 1),
             to = device::allocate_device(driver, size + 1);
  const auto bytes = [](const auto& memory) {
    return reinterpret_cast<unsigned char*>(memory.get());
  };
  const auto check = [&](const void* got, const std::vector<std::byte>& wanted, const char* what) {
    queue.synchronize(what, Deadline::after(std::chrono::seconds(20)));
    CHECK(std::memcmp(got, wanted.data(), wanted.size()) == 0, what, " of ", name_of(dtype));
  };
  std::memcpy(bytes(from) + 1, x.data(), size);
  kernels.encode(tables, {{}, bytes(from) + 1, {}, type, {bytes(message)}, {}}, stream);
  check(bytes(message), payload, "encode");
  kernels.decode(tables, {{}, bytes(to) + 1, type, 0, {bytes(message)}}, stream);
  check(bytes(to) + 1, expected, "decode");
  // Either of the two alone is enough for warps to leave it.
  for (const auto& [at_x, at_y] : {std::pair{1, 0}, {0, 1}, {1, 1}}) {
    std::memcpy(bytes(from) + at_x, x.data(), size);
    kernels.sum(tables,
                {.x = bytes(from) + at_x,
                 .y = bytes(to) + at_y,
                 .divisor = 1.0f,
                 .ranks = 2,
                 .own = type,
                 .type = type,
                 .payloads = {nullptr, bytes(message)}},
                stream);
    check(bytes(to) + at_y, sum, "sum");
  }
  GPU(driver, destroy_stream, stream);
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

TEST(gpu_codec_takes_values_at_any_byte) {
  for (const char* name : {"maxmin", "rotated", "trellis"}) {
    CodecConfig config = config_named(name);
    config.set("bits", int64_t{4});
    const auto codec = make_codec(config);
    for (const auto& [dtype, type] : {std::pair{DType::kFloat32, gpu::Type::kFloat32},
                                      {DType::kFloat16, gpu::Type::kFloat16},
                                      {DType::kBFloat16, gpu::Type::kBFloat16}}) {
      with_each_driver([&](const Driver& driver) { unaligned(driver, codec, dtype, type); });
    }
  }
}

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

TEST(gpu_uploads_take_what_the_caller_changes_at_once) {
  with_each_driver([](const Driver& driver) {
    const device::InContext in(driver, kContext);
    const device::Stream stream = new_stream(driver);
    {
      const device::Queue queue(driver, stream);
      device::Uploads uploads(queue);
      CHECK(uploads.upload(nullptr, 0) == nullptr, "nothing takes no memory");
      // More than the pinned memory holds at a time, so that it is used again; and an upload for which
      // it has to grow.
      std::vector<std::shared_ptr<std::byte>> there;
      std::vector<size_t> sizes(40, 5000);
      sizes.push_back(300'000);
      sizes.insert(sizes.end(), 5, 77);
      for (size_t i = 0; i < sizes.size(); ++i) {
        std::vector<unsigned char> bytes(sizes[i], static_cast<unsigned char>(i + 1));
        there.push_back(uploads.upload(bytes.data(), bytes.size()));
        std::fill(bytes.begin(), bytes.end(), 0);
      }
      queue.synchronize("the copies", Deadline::after(std::chrono::seconds(20)));
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(there[i].get());
        const auto wrong = [&](unsigned char byte) { return byte != i + 1; };
        CHECK(std::none_of(bytes, bytes + sizes[i], wrong), "upload ", i);
      }
    }
    GPU(driver, destroy_stream, stream);
  });
}

// A stream over NCCL may stand still until a late peer makes its call.
TEST(gpu_uploads_do_not_wait_for_the_stream) {
  const Driver& driver = Driver::get();
  const device::InContext in(driver, kContext);
  const device::Stream stream = new_stream(driver), other = new_stream(driver);
  const device::Event late = new_event(driver);
  {
    const device::Queue queue(driver, stream);
    device::Uploads uploads(queue);
    const std::vector<unsigned char> bytes(40'000, 5);
    std::vector<std::shared_ptr<std::byte>> there = {uploads.upload(bytes.data(), bytes.size())};
    const auto set_delay = stub_function<void(int)>(driver, "stub_set_delay_us");
    set_delay(500'000);  // of the task that the event comes from, and of all that follow
    GPU(driver, record_event, late, other);
    GPU(driver, stream_wait_event, stream, late, 0);
    for (int i = 0; i < 4; ++i) there.push_back(uploads.upload(bytes.data(), bytes.size()));
    const bool waited = driver.query_event(late) != device::kNotReady;
    set_delay(200);
    CHECK(!waited, "uploads return while the stream stands still");
    queue.synchronize("the copies", Deadline::after(std::chrono::seconds(20)));
    for (const auto& memory : there) {
      CHECK(std::memcmp(memory.get(), bytes.data(), bytes.size()) == 0, "what has been uploaded");
    }
  }
  GPU(driver, destroy_event, late);
  for (device::Stream one : {stream, other}) GPU(driver, destroy_stream, one);
}

TEST(gpu_tables_of_one_run_need_no_memory_of_the_device) {
  const auto codec = make_maxmin({.bits = 4, .bucket_size = 512});
  gpu::RunTable table;
  table.add(*codec, DType::kFloat32, 0, 0, 5000, 0, 0, 0);  // units for warps, and what is left
  CHECK(table.image().empty(), "a single run travels with the launch");
  const gpu::Tables alone = table.tables(nullptr);
  CHECK(alone.all.n_runs == 1 && alone.rest.n_runs == 1 && alone.warps.size() == 1, "lists");
  table.add(*codec, DType::kFloat32, 5000, 0, 600, 0, 4096, 0);
  const std::vector<std::byte> image = table.image();
  const gpu::Tables two = table.tables(image.data());
  CHECK(two.all.n_runs == 2 && two.all.tiles == 4, "tiles of all: ", two.all.tiles);
  for (uint64_t tile = 0; tile < two.all.tiles; ++tile) {
    CHECK(two.all.run_of_tile[tile] == (tile < 3 ? 0 : 1), "run of tile ", tile);
  }
}

TEST(gpu_codec_needs_a_context) {
  const std::string text = error_of<ResourceError>(
      [] { gpu::KernelModule kernels(Driver::get(), kernel_image(Driver::get())); });
  CHECK(contains(text, "no context"), text);
}

}  // namespace cgx::native
