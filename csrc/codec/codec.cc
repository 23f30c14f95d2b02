#include "codec/codec.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

struct Registry {
  using Key = std::pair<const Family*, std::vector<int64_t>>;

  std::mutex mutex;
  std::map<Key, std::weak_ptr<const Codec>> codecs;
  // Keeps the latest codecs, so that a caller that drops its codec between calls does not remake
  // it.
  std::shared_ptr<const Codec> recent[16];
  size_t next = 0;
};

Registry& registry() {
  // Never destroyed: threads may encode while the process ends.
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace

void Codec::check_part(size_t first, size_t n, size_t count, size_t unit) {
  const bool inside = first <= count && n <= count - first;
  if (!inside || first % unit != 0 || (n % unit != 0 && first + n != count)) {
    throw ConfigError(str_of("part of a run is first=", first, ", n=", n, ", allowed with count=",
                             count, ": multiples of ", unit, " up to the end of the run"));
  }
}

std::shared_ptr<const Codec> make_codec(const CodecConfig& config) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const Registry::Key key{&config.family(), config.numbers()};
  const auto known = r.codecs.find(key);
  if (known != r.codecs.end()) {
    if (auto codec = known->second.lock()) return codec;
  }
  std::shared_ptr<const Codec> codec = config.family().make(config);
  std::erase_if(r.codecs, [](const auto& entry) { return entry.second.expired(); });
  r.codecs[key] = codec;
  r.recent[r.next++ % std::size(r.recent)] = codec;
  return codec;
}

std::shared_ptr<const Codec> make_codec(const std::string& name) {
  return make_codec(config_named(name));
}

const std::shared_ptr<const Codec>& raw_codec() {
  static const auto* codec = new std::shared_ptr<const Codec>(make_codec("raw"));
  return *codec;
}

size_t largest_count(const Codec& codec, size_t bytes, DType dtype) {
  const auto size = [&](size_t count) { return codec.encoded_bytes(count, dtype); };
  // The largest k below `end` with size(base + unit k) <= bytes; sizes must not fall with k.
  const auto last = [&](size_t base, size_t unit, size_t end) {
    size_t low = 0;
    while (end - low > 1) {
      const size_t middle = low + (end - low) / 2;
      (size(base + unit * middle) <= bytes ? low : end) = middle;
    }
    return low;
  };
  // The size never falls with the number of whole granules, nor with the number of values within
  // one granule. A partial last granule that is sent in another way may take more bytes than a
  // whole one, so fewer granules with a longer rest may have the same size.
  const size_t unit = codec.granule();
  for (size_t granules = last(0, unit, bytes * 8 / unit + 2);; --granules) {
    const size_t whole = unit * granules;
    const size_t count = whole + last(whole, 1, unit);
    if (size(count) == bytes) return count;
    if (granules == 0 || size(whole - 1) < bytes) break;
  }
  throw ConfigError(str_of("payload has ", bytes, " bytes, which no number of ", name_of(dtype),
                           " values encodes to with ", codec.describe()));
}

}  // namespace cgx
