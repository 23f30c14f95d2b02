// The stub driver refuses what the driver refuses, under CUDA's names and HIP's. Tests of the engine
// would otherwise pass with calls that fail on a GPU.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "check.h"
#include "device/driver.h"
#include "stub.h"

namespace cgx::native {
namespace {

using device::Driver;

// An ELF file for a machine, as far as its header.
std::string elf(unsigned char machine) {
  std::string header(64, '\0');
  std::memcpy(header.data(),
              "\x7f"
              "ELF\2",
              5);
  header[18] = static_cast<char>(machine);
  return header;
}

// Memory and an event that another process could open.
struct Shown {
  explicit Shown(const Driver& driver) {
    GPU(driver, allocate, &memory, 1000);
    GPU(driver, create_event, &event, 6);
    GPU(driver, get_ipc_memory, &memory_handle, memory);
    GPU(driver, get_ipc_event, &event_handle, event);
  }
  device::Pointer memory = 0;
  device::Event event = nullptr;
  device::IpcMemory memory_handle{};
  device::IpcEvent event_handle{};
};

// Without the abort that the other tests run with; what the stub writes to stderr is kept.
class Lenient {
 public:
  Lenient() : stderr_(dup(2)), said_(std::tmpfile()) {
    unsetenv("STUB_DRIVER_STRICT");
    dup2(fileno(said_), 2);
  }
  ~Lenient() {
    dup2(stderr_, 2);
    close(stderr_);
    std::fclose(said_);
    setenv("STUB_DRIVER_STRICT", "1", 1);
  }
  std::string said() const {
    std::string text(4096, '\0');
    const ssize_t bytes = pread(fileno(said_), text.data(), text.size(), 0);
    text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
    return text;
  }

 private:
  const int stderr_;
  FILE* const said_;
};

}  // namespace

TEST(gpu_stub_refuses_images_of_the_wrong_kind) {
  with_each_driver([](const Driver& driver) {
    const device::InContext in(driver, kContext);
    const bool cuda = driver.vendor == device::Vendor::kCuda;
    const std::string fatbin("\x50\xed\x55\xba\1\0", 6), bundle = "__CLANG_OFFLOAD_BUNDLE__";
    const std::pair<std::string, int> images[] = {{fatbin, cuda ? 0 : 200},
                                                  {elf(190), cuda ? 0 : 200},
                                                  {"//\n.version 7.0", cuda ? 0 : 200},
                                                  {".version 7.0", cuda ? 0 : 200},
                                                  {elf(224), cuda ? 200 : 0},
                                                  {bundle, cuda ? 200 : 0},
                                                  {elf(62), 200},
                                                  {"image", 200},
                                                  {"", 200}};
    for (const auto& [image, expected] : images) {
      device::Module module = nullptr;
      const int found = driver.load_module(&module, image.c_str());
      CHECK(found == expected, driver.library, " gave ", found, " for '", image, "'");
    }
  });
}

TEST(gpu_stub_refuses_handles_of_the_same_process) {
  with_each_driver([](const Driver& driver) {
    const device::InContext in(driver, kContext);
    const Shown shown(driver);
    const auto open = [&](int process) {
      stub_function<void(int)>(driver, "stub_set_process")(process);
      device::Pointer memory = 0;
      device::Event event = nullptr;
      const int first = driver.open_ipc_memory(&memory, shown.memory_handle, 1);
      const int second = driver.open_ipc_event(&event, shown.event_handle);
      CHECK(first == second, "memory ", first, ", event ", second);
      if (first == 0) {
        GPU(driver, close_ipc_memory, memory);
        GPU(driver, destroy_event, event);
      }
      stub_function<void(int)>(driver, "stub_set_process")(0);
      return first;
    };
    CHECK(open(0) == 201, "its own");
    CHECK(open(7) == 0, "of another process");
    // The number is the thread's alone.
    int elsewhere = 0;
    stub_function<void(int)>(driver, "stub_set_process")(7);
    std::thread([&] { elsewhere = open(0); }).join();
    stub_function<void(int)>(driver, "stub_set_process")(0);
    CHECK(elsewhere == 201, "in another thread");
    GPU(driver, free_memory, shown.memory);
    GPU(driver, destroy_event, shown.event);
  });
}

TEST(gpu_stub_reports_what_is_freed_while_a_process_has_it_open) {
  const Lenient lenient;
  with_each_driver([](const Driver& driver) {
    const device::InContext in(driver, kContext);
    const Shown shown(driver);
    device::Pointer memory = 0;
    device::Event event = nullptr;
    const auto set_process = stub_function<void(int)>(driver, "stub_set_process");
    set_process(3);
    GPU(driver, open_ipc_memory, &memory, shown.memory_handle, 1);
    GPU(driver, open_ipc_event, &event, shown.event_handle);
    set_process(0);
    CHECK(driver.free_memory(shown.memory) == 719, "memory");
    CHECK(driver.destroy_event(shown.event) == 719, "event");
    CHECK(driver.free_memory(memory) != 0, "memory that was opened is closed, not freed");
    CHECK(driver.close_ipc_memory(shown.memory) != 0, "memory that was not opened");
    GPU(driver, close_ipc_memory, memory);
    GPU(driver, destroy_event, event);
    GPU(driver, free_memory, shown.memory);
    GPU(driver, destroy_event, shown.event);
  });
  const std::string has_open =
      str_of(" of something that process ", getpid(), " (stub_set_process: 3) has open");
  for (const char* call : {"cuMemFree", "cuEventDestroy"}) {
    CHECK(contains(lenient.said(), call + has_open), lenient.said());
  }
}

}  // namespace cgx::native
