#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "codec/builtin.h"
#include "codec/codec.h"

namespace cgx {
namespace {

using Key = std::tuple<std::string, int, int64_t, Rounding, bool, uint64_t>;

Key key_of(const CodecSpec& s) {
  return {s.name, s.bits, s.bucket_size, s.rounding, s.skip_incomplete_buckets, s.seed};
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, CodecFactory> factories{
      {"maxmin", make_maxmin}, {"bf16", make_half}, {"fp16", make_half}};
  std::map<Key, std::weak_ptr<const Codec>> codecs;
  // Keeps what was asked for lately, so that a caller that drops its codec between calls does not
  // remake it.
  std::shared_ptr<const Codec> recent[16];
  size_t next = 0;

  std::string names() const {
    std::string text;
    for (const auto& [name, factory] : factories) text += (text.empty() ? "" : ",") + name;
    return text;
  }
};

Registry& registry() {
  static Registry* instance =
      new Registry;  // never destroyed: threads may encode while the process ends
  return *instance;
}

}  // namespace

std::shared_ptr<const Codec> make_codec(const CodecSpec& spec) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  const Key key = key_of(spec);
  const auto known = r.codecs.find(key);
  if (known != r.codecs.end()) {
    if (auto codec = known->second.lock()) return codec;
  }
  const auto factory = r.factories.find(spec.name);
  if (factory == r.factories.end()) {
    throw ConfigError(str_of("codec is '", spec.name, "', allowed: ", r.names()));
  }
  std::shared_ptr<const Codec> codec = factory->second(spec);
  std::erase_if(r.codecs, [](const auto& entry) { return entry.second.expired(); });
  r.codecs[key] = codec;
  r.recent[r.next++ % std::size(r.recent)] = codec;
  return codec;
}

void register_codec(const std::string& name, CodecFactory factory) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (name.empty() || factory == nullptr) {
    throw ConfigError(str_of("codec name is '", name, "', allowed: a name, with a factory"));
  }
  if (!r.factories.emplace(name, factory).second) {
    throw ConfigError(str_of("codec name '", name, "' is taken, allowed: none of ", r.names()));
  }
}

std::string codec_names() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  return r.names();
}

}  // namespace cgx
