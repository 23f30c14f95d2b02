#include "tensors/codec_text.h"

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace cgx {
namespace {

struct Hash : std::hash<std::string_view> {
  using is_transparent = void;
};
using Codecs = std::unordered_map<std::string, std::shared_ptr<const Codec>, Hash, std::equal_to<>>;

// Texts that are remembered; a program with more of them parses again.
constexpr size_t kMost = 1024;

}  // namespace

std::shared_ptr<const Codec> codec_of_text(std::string_view text) {
  // The latest of each thread, before the lock: most threads use one codec many times.
  thread_local std::pair<std::string, std::shared_ptr<const Codec>> latest;
  if (latest.second && latest.first == text) return latest.second;
  static std::mutex mutex;
  static auto* known = new Codecs;  // never destroyed: threads may encode while the process ends
  const std::lock_guard lock(mutex);
  auto found = known->find(text);
  if (found == known->end()) {
    std::string own(text);
    auto codec = make_codec(config_of_text(own));
    if (known->size() >= kMost) known->clear();
    found = known->emplace(std::move(own), std::move(codec)).first;
  }
  latest = *found;
  return latest.second;
}

}  // namespace cgx
