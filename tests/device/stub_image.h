// What the stub driver takes for an image of kernels: what the driver takes, by its first bytes. In
// an unnamed namespace, as stub_device.h.
#pragma once

#include <cstring>

namespace {

// A 64-bit ELF file for this machine, by the number in its header.
bool is_elf(const unsigned char* image, unsigned machine) {
  constexpr unsigned char kElf[] = {0x7f, 'E', 'L', 'F', 2};
  for (size_t i = 0; i < sizeof kElf; ++i) {
    if (image[i] != kElf[i]) return false;
  }
  return image[18] + 256u * image[19] == machine;
}

bool begins(const unsigned char* image, const char* text) {
  return std::strncmp(reinterpret_cast<const char*>(image), text, std::strlen(text)) == 0;
}

// No more bytes are read than are known to be there: images have no length.
bool is_image(const void* bytes) {
  const auto* image = static_cast<const unsigned char*>(bytes);
#ifdef STUB_HIP
  constexpr unsigned kAmdGpu = 224;
  return is_elf(image, kAmdGpu) || begins(image, "__CLANG_OFFLOAD_BUNDLE__");
#else
  constexpr unsigned kCuda = 190;
  const bool fatbin = begins(image, "\x50\xed\x55\xba");
  return fatbin || is_elf(image, kCuda) || begins(image, "//") || begins(image, ".version");
#endif
}

}  // namespace
