// What native tests ask of the stub driver (tests/device/stub_driver.cc) beyond the driver's own
// functions.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "check.h"
#include "device/driver.h"

namespace cgx::native {

/// A fake context: the stub takes any pointer.
inline const device::Context kContext = reinterpret_cast<device::Context>(0x1000);

inline device::Stream new_stream(const device::Driver& driver) {
  device::Stream stream = nullptr;
  GPU(driver, create_stream, &stream, 1, 0);
  return stream;
}

/// Calls test(driver) with the driver under each vendor's names.
template <typename Test>
void with_each_driver(const Test& test) {
  for (const char* cuda : {"1", "0"}) {
    setenv("CGX_CUDA", cuda, 1);
    const device::Driver& driver = device::Driver::get();
    unsetenv("CGX_CUDA");
    test(driver);
  }
}

/// An image of kernels that the stub takes, and the vendor's driver would take for one.
inline const void* kernel_image(const device::Driver& driver) {
  const bool cuda = driver.vendor == device::Vendor::kCuda;
  return cuda ? "// the stub's own\n.version 7.0\n" : "__CLANG_OFFLOAD_BUNDLE__";
}

/// A function that only the stub has: stub_function<void(int)>(driver, "stub_set_process").
template <typename F>
F* stub_function(const device::Driver& driver, const char* name) {
  void* library = dlopen(driver.library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  CHECK(found != nullptr, driver.library, " has no ", name, ": it is not the stub driver");
  dlclose(library);
  return reinterpret_cast<F*>(found);
}

/// In a scope, the calling thread is a process of its own to the stub. Ranks that are threads may
/// then open each other's memory, and no rank its own. `number`: from 1 on.
class AsProcess {
 public:
  explicit AsProcess(int number)
      : set_(stub_function<void(int)>(device::Driver::get(), "stub_set_process")) {
    set_(number);
  }
  ~AsProcess() { set_(0); }
  AsProcess(const AsProcess&) = delete;
  AsProcess& operator=(const AsProcess&) = delete;

 private:
  void (*const set_)(int);
};

/// Bytes of device memory that were allocated and not freed.
inline long long own_bytes() {
  return stub_function<long long()>(device::Driver::get(), "stub_own_bytes")();
}

/// Blocks of memory of other processes that are open.
inline int opened_blocks() { return stub_function<int()>(device::Driver::get(), "stub_opened")(); }

}  // namespace cgx::native
