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

Arena::Arena(size_t head, size_t blocks) : reserved_(head + blocks), head_(head), used_(head) {
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
  return at;
}

std::byte* Arena::take_block(size_t bytes) {
  std::byte* at = take(bytes);
  blocks_.emplace_back(at, bytes);
  return at;
}

namespace {

// Blocks up to here are copied under the lock, and compared with the one before: those of equal values.
constexpr size_t kShort = 64;

}  // namespace

void Arena::put(size_t number, std::span<const std::byte> block) {
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> others;  // whose turn has come by this
  std::byte* at = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (number != blocks_.size()) {
      early_.emplace(number, std::vector<std::byte>(block.begin(), block.end()));
      return;
    }
    const auto place = [&](std::span<const std::byte> some) -> std::byte* {
      if (some.size() > kShort) return take_block(some.size());
      const auto before = blocks_.empty() ? std::span<const std::byte>() : blocks_.back();
      if (!blocks_.empty() && std::equal(some.begin(), some.end(), before.begin(), before.end())) {
        blocks_.push_back(before);
      } else {
        std::copy(some.begin(), some.end(), take_block(some.size()));
      }
      return nullptr;
    };
    at = place(block);
    for (auto next = early_.begin(); next != early_.end() && next->first == blocks_.size();
         next = early_.erase(next)) {
      std::byte* const to = place(next->second);
      if (to != nullptr) others.emplace_back(to, std::move(next->second));
    }
  }
  if (at != nullptr) std::copy(block.begin(), block.end(), at);
  for (const auto& [to, bytes] : others) std::copy(bytes.begin(), bytes.end(), to);
}

void Arena::close(std::span<const std::byte> head, size_t padding) {
  if (head.size() > head_) {
    throw ResourceError(
        str_of("an arena has room for a head of ", head_, " bytes, not of ", head.size()));
  }
  begin_ = head_ - head.size();
  std::copy(head.begin(), head.end(), base_ + begin_);
  // Pages of the system are zeros.
  take(padding);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t kept = (used_ + page - 1) / page * page;
  if (kept >= reserved_ || munmap(base_ + kept, reserved_ - kept) != 0) return;
  reserved_ = kept;
}

}  // namespace cgx::bounded
