#include "codec/bounded/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace cgx::bounded {

void prefer_large_pages(void* memory, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

Arena::Arena(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw ResourceError(str_of("no room for ", bytes, " bytes of blocks: ", std::strerror(errno)));
  }
  base_ = static_cast<std::byte*>(base);
  constexpr size_t kWorthIt = size_t{4} << 20;
  if (bytes >= kWorthIt) prefer_large_pages(base_, bytes);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

std::byte* Arena::take(size_t bytes) {
  const size_t at = used_.fetch_add(bytes);
  if (bytes > bytes_ || at > bytes_ - bytes) {
    throw ResourceError(str_of("an arena of ", bytes_, " bytes has no room for ", bytes, " more"));
  }
  return base_ + at;
}

}  // namespace cgx::bounded
