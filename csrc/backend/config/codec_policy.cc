#include "backend/config/codec_policy.h"

#include <c10/util/Exception.h>

#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/config/layer_table.h"
#include "base/error.h"
#include "base/log.h"

namespace cgx {

CodecPolicy::CodecPolicy(const OptionFields& options, const GroupConfig& config, bool on_one_host,
                         bool speaks)
    : options_(options),
      config_(config),
      on_one_host_(on_one_host),
      call_codec_(options, config),
      notices_(options, speaks) {}

std::shared_ptr<const Codec> CodecPolicy::codec_for(bool compressed, int64_t numel) const {
  if (!compressed || static_cast<size_t>(numel) < config_.min_size) return raw_codec();
  return allowed_in_group(call_codec_.get());
}

std::string CodecPolicy::why(bool compressed, int64_t numel) const {
  if (config_.log != LogLevel::kDebug) return "";
  if (LayerTable::instance().find(numel)) return "by its registered layers";
  if (!compressed) return "exact: the option collectives leaves it out";
  if (static_cast<size_t>(numel) < config_.min_size) {
    return str_of("exact: fewer values than min_size=", config_.min_size);
  }
  const int64_t bits = bits_in_force(options_);
  if (is_exact(bits)) return str_of("exact: bits=", bits);
  if (exact_on_host()) return "exact: intra_compress=0";
  return str_of("compressed: bits=", bits);
}

std::vector<Layer> CodecPolicy::layers_for(int64_t numel) const {
  const auto registered = LayerTable::instance().find(numel);
  if (!registered) {
    return {Layer{static_cast<size_t>(numel), codec_for(config_.compress_all_reduce, numel)}};
  }
  std::vector<Layer> layers;
  for (const RegisteredLayer& layer : *registered) {
    if (!config_.compress_all_reduce) {
      layers.push_back({static_cast<size_t>(layer.numel), raw_codec()});
      continue;
    }
    OptionFields fields = options_;
    if (layer.bits > 0) fields.set("bits", std::to_string(layer.bits));
    if (layer.bucket_size > 0) fields.set("bucket_size", std::to_string(layer.bucket_size));
    const bool small = static_cast<size_t>(layer.numel) < config_.min_size;
    layers.push_back({static_cast<size_t>(layer.numel),
                      small ? raw_codec() : allowed_in_group(resolve_codec(fields, config_))});
  }
  return layers;
}

void CodecPolicy::notice(const char* what, int64_t numel, size_t bytes,
                         const std::vector<Layer>& layers) {
  if (LayerTable::instance().find(numel)) return Notices::hook();
  const Codec* codec = nullptr;
  for (const Layer& layer : layers) {
    if (layer.codec != raw_codec()) codec = layer.codec.get();
  }
  const bool compressed = codec != nullptr;
  if (compressed && config_.log != LogLevel::kOff) {
    const std::string line =
        notices_.group_wide(static_cast<size_t>(numel), *codec, config_.autotune);
    if (!line.empty()) log_line(line);
  }
  const std::string text = notices_.reduction(what, static_cast<size_t>(numel), bytes, compressed);
  if (!text.empty()) warn_in_python(text);
}

std::string CodecPolicy::describe() const {
  const auto codec = resolve_codec(options_, config_);
  if (codec != raw_codec()) return codec->describe();
  return str_of("exact unless a call or a CGXState says otherwise (bits=", bits_in_force(options_),
                ')');
}

}  // namespace cgx
