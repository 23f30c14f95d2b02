// Which codec the values of a call get, from the options in force, the registered layers, and the
// communicator.
#include "backend/config/layer_table.h"
#include "backend/process_group_cgx.h"
#include "backend/python_error.h"

namespace cgx {

std::shared_ptr<const Codec> ProcessGroupCGX::allowed_in_group(
    std::shared_ptr<const Codec> codec) const {
  return on_one_host_ && !config_.intra_compress.value_or(true) ? raw_codec() : codec;
}

std::shared_ptr<const Codec> ProcessGroupCGX::codec_for(bool collective_compresses,
                                                        int64_t numel) const {
  if (!collective_compresses || static_cast<size_t>(numel) < config_.min_size) return raw_codec();
  return allowed_in_group(call_codec_->get());
}

std::string ProcessGroupCGX::why_codec(bool collective_compresses, const at::Tensor& tensor) const {
  if (config_.log != LogLevel::kDebug) return "";
  if (LayerTable::instance().find(tensor.numel())) return "by its registered layers";
  if (!collective_compresses) return "exact: the option collectives leaves it out";
  if (static_cast<size_t>(tensor.numel()) < config_.min_size) {
    return str_of("exact: fewer values than min_size=", config_.min_size);
  }
  const int64_t bits = bits_in_force(options_->fields);
  if (is_exact(bits)) return str_of("exact: bits=", bits);
  if (on_one_host_ && !config_.intra_compress.value_or(true)) return "exact: intra_compress=0";
  return str_of("compressed: bits=", bits);
}

std::vector<Layer> ProcessGroupCGX::layers_for(const at::Tensor& tensor) const {
  const auto registered = LayerTable::instance().find(tensor.numel());
  if (!registered) {
    return {Layer{static_cast<size_t>(tensor.numel()),
                  codec_for(config_.compress_all_reduce, tensor.numel())}};
  }
  std::vector<Layer> layers;
  for (const RegisteredLayer& layer : *registered) {
    if (!config_.compress_all_reduce) {
      layers.push_back({static_cast<size_t>(layer.numel), raw_codec()});
      continue;
    }
    OptionFields fields = options_->fields;
    if (layer.bits > 0) fields.set("bits", std::to_string(layer.bits));
    if (layer.bucket_size > 0) fields.set("bucket_size", std::to_string(layer.bucket_size));
    const bool small = static_cast<size_t>(layer.numel) < config_.min_size;
    layers.push_back({static_cast<size_t>(layer.numel),
                      small ? raw_codec() : allowed_in_group(resolve_codec(fields, config_))});
  }
  return layers;
}

void ProcessGroupCGX::notice(const char* what, const at::Tensor& tensor,
                             const std::vector<Layer>& layers) {
  if (LayerTable::instance().find(tensor.numel())) return Notices::hook();
  bool compressed = false;
  for (const Layer& layer : layers) compressed = compressed || layer.codec != raw_codec();
  const std::string text =
      notices_.reduction(what, static_cast<size_t>(tensor.numel()), tensor.nbytes(), compressed);
  if (!text.empty()) warn_in_python(text);
}

std::vector<Layer> ProcessGroupCGX::layers_of_request(
    const at::Tensor& tensor, const std::vector<LayerRequest>& requests) const {
  std::vector<Layer> layers;
  int64_t total = 0;
  for (const LayerRequest& layer : requests) {
    TORCH_CHECK_VALUE(layer.numel >= 0, "cgx: layers: a layer of ", layer.numel, " values");
    total += layer.numel;
    layers.push_back({static_cast<size_t>(layer.numel),
                      layer.codec ? allowed_in_group(layer.codec) : raw_codec()});
  }
  TORCH_CHECK_VALUE(total == tensor.numel(), "cgx: all_reduce of ", tensor.numel(),
                    " values: the layers have ", total, " values in all");
  return layers;
}

}  // namespace cgx
