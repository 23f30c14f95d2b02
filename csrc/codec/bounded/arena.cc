#include "codec/bounded/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace cgx::bounded {

void prefer_large_pages(void* memory, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

Arena::Arena(size_t head, size_t blocks) : reserved_(head + blocks), used_(head) {
  if (reserved_ == 0) return;
  void* base = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw ResourceError(
        str_of("no room for ", reserved_, " bytes of blocks: ", std::strerror(errno)));
  }
  base_ = static_cast<std::byte*>(base);
  constexpr size_t kWorthIt = size_t{4} << 20;
  if (reserved_ >= kWorthIt) prefer_large_pages(base_, reserved_);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, reserved_);
}

std::byte* Arena::take(size_t bytes) {
  if (bytes > reserved_ - used_) {
    throw ResourceError(
        str_of("an arena of ", reserved_, " bytes has no room for ", bytes, " more"));
  }
  std::byte* at = base_ + used_;
  used_ += bytes;
  blocks_.emplace_back(at, bytes);
  return at;
}

void Arena::put(size_t number, std::span<const std::byte> block) {
  std::byte* at;
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> others;  // whose turn has come by this
  {
    const std::lock_guard lock(mutex_);
    if (number != blocks_.size()) {
      early_.emplace(number, std::vector<std::byte>(block.begin(), block.end()));
      return;
    }
    at = take(block.size());
    for (auto next = early_.begin(); next != early_.end() && next->first == blocks_.size();
         next = early_.erase(next)) {
      others.emplace_back(take(next->second.size()), std::move(next->second));
    }
  }
  std::copy(block.begin(), block.end(), at);
  for (const auto& [place, bytes] : others) std::copy(bytes.begin(), bytes.end(), place);
}

void Arena::close(std::span<const std::byte> head) {
  std::copy(head.begin(), head.end(), base_);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t kept = (used_ + page - 1) / page * page;
  if (kept >= reserved_ || munmap(base_ + kept, reserved_ - kept) != 0) return;
  reserved_ = kept;
}

}  // namespace cgx::bounded
