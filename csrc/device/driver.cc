#include "device/driver.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace cgx::device {
namespace {

struct Names {
  const char* call;
  const char* of[2];  // by Vendor
};

// clang-format off
constexpr Names kNames[] = {
#define CGX_NAME(name, cuda, hip, arguments) {#name, {cuda, hip}},
    CGX_DRIVER_CALLS(CGX_NAME)
#undef CGX_NAME
};
// clang-format on

const char* name_of(const char* call, Vendor vendor) {
  for (const Names& names : kNames) {
    if (std::strcmp(names.call, call) == 0) return names.of[static_cast<int>(vendor)];
  }
  return call;
}

Vendor vendor_wanted() {
  const Parameter& variable = cuda_variable();
  const std::string text = from_environment(variable).value_or(variable.fallback);
  return text == "1" ? Vendor::kCuda : Vendor::kHip;
}

struct Library {
  std::vector<const char*> files;  // the first that opens
  const char* remedy;
};

Library library_of(Vendor vendor) {
  if (vendor == Vendor::kCuda) {
    return {{"libcuda.so.1"},
            "it comes with NVIDIA's driver, not with CUDA or torch; in a container it takes the "
            "NVIDIA container toolkit (docker run --gpus all)"};
  }
  // Only ROCm's development files have the name without a number. torch brings a copy of its own.
  return {{"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
          "it comes with ROCm"};
}

/// Sets `file` to the name that opened. One that the process has is taken before any other: two
/// of them would not know each other's streams.
void* open(const Library& library, std::string& file) {
  std::string why;
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const char* name : library.files) {
      file = name;
      if (void* handle = dlopen(name, flags)) return handle;
      const char* error = dlerror();
      if (name == library.files.front() && error != nullptr) why = error;
    }
  }
  throw ResourceError(str_of("tensors on a GPU need ", library.files.front(),
                             ", which cannot be opened (", why, "): ", library.remedy));
}

template <typename F>
void find(void* handle, const std::string& file, const char* symbol, F& function) {
  void* found = dlsym(handle, symbol);
  if (found == nullptr) {
    throw ResourceError(str_of(file, " has no ", symbol, ": this driver is too old for torch_cgx"));
  }
  function = reinterpret_cast<F>(found);
}

std::string text_of(const Driver& driver, int result) {
  void* handle = dlopen(driver.library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return "";
  std::string text;
  if (driver.vendor == Vendor::kCuda) {
    using GetText = int (*)(int, const char**);
    for (const char* symbol : {"cuGetErrorName", "cuGetErrorString"}) {
      const char* part = nullptr;
      auto get = reinterpret_cast<GetText>(dlsym(handle, symbol));
      if (get == nullptr || get(result, &part) != kSuccess || part == nullptr) continue;
      text += str_of(text.empty() ? "" : ": ", part);
    }
  } else {
    using GetText = const char* (*)(int);
    for (const char* symbol : {"hipGetErrorName", "hipGetErrorString"}) {
      auto get = reinterpret_cast<GetText>(dlsym(handle, symbol));
      if (get != nullptr) text += str_of(text.empty() ? "" : ": ", get(result));
    }
  }
  dlclose(handle);
  return text;
}

Driver open_driver(Vendor vendor) {
  Driver driver;
  driver.vendor = vendor;
  void* handle = open(library_of(vendor), driver.library);
  const int which = static_cast<int>(vendor);
  const Names* names = kNames;
#define CGX_FIND(name, cuda, hip, arguments) \
  find(handle, driver.library, (names++)->of[which], driver.name);
  CGX_DRIVER_CALLS(CGX_FIND)
#undef CGX_FIND
  GPU(driver, init, 0);
  int devices = 0;
  GPU(driver, device_count, &devices);
  if (devices == 0) throw ResourceError(str_of(driver.library, " sees no device"));
  return driver;
}

}  // namespace

const Parameter& cuda_variable() {
  static const auto* variable =
      new Parameter{.name = "cuda",
                    .variable = "CGX_CUDA",
                    .kind = Parameter::Kind::kBoolean,
                    .fallback = "1",
                    .meaning = "Driver of the GPUs: 1 is libcuda, 0 is AMD's libamdhip64"};
  return *variable;
}

const Driver& Driver::get() {
  static std::mutex mutex;
  static const Driver* opened[2] = {};  // never closed: code of the library may run until the end
  const Vendor vendor = vendor_wanted();
  std::lock_guard<std::mutex> lock(mutex);
  const Driver*& driver = opened[static_cast<int>(vendor)];
  if (driver == nullptr) driver = new Driver(open_driver(vendor));
  return *driver;
}

void Driver::check(int result, const char* call) const {
  if (result == kSuccess) return;
  const std::string text = text_of(*this, result);
  throw ResourceError(str_of(name_of(call, vendor), " failed with ", result,
                             text.empty() ? "" : " (", text, text.empty() ? "" : ")"));
}

InContext::InContext(const Driver& driver, Context context) : driver_(driver) {
  GPU(driver, push_context, context);
}

InContext::~InContext() {
  Context popped = nullptr;
  driver_.pop_context(&popped);  // fails only where push_context() has
}

}  // namespace cgx::device
