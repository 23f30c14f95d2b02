#include "backend/config/layer_table.h"

#include <string>

#include "backend/config/settings.h"
#include "base/error.h"

namespace cgx {
namespace {

// Checks `bits` or `bucket_size`; 0 and less: the group's setting applies.
void check(const char* name, int64_t value) {
  if (value > 0) canonical(setting(name), name, std::to_string(value));
}

}  // namespace

LayerTable& LayerTable::instance() {
  static LayerTable table;
  return table;
}

void LayerTable::add(int64_t bucket_idx, int64_t layer_idx, int64_t numel, int64_t bits,
                     int64_t bucket_size) {
  if (bucket_idx < 0) throw ConfigError(str_of("bucket_idx=", bucket_idx, " must not be negative"));
  if (numel < 0) throw ConfigError(str_of("numel=", numel, " must not be negative"));
  check("bits", bits);
  check("bucket_size", bucket_size);
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RegisteredLayer>& layers = buckets_[bucket_idx];
  const auto known = static_cast<int64_t>(layers.size());
  if (layer_idx < 0 || layer_idx > known) {
    throw ConfigError(str_of("layer_idx=", layer_idx, " of bucket ", bucket_idx,
                             ": the next layer to register is ", known));
  }
  if (layer_idx == known) layers.emplace_back();
  layers[static_cast<size_t>(layer_idx)] = {numel, bits > 0 ? bits : 0,
                                            bucket_size > 0 ? bucket_size : 0};
}

RegisteredLayer& LayerTable::at(int64_t bucket_idx, int64_t layer_idx) {
  auto found = buckets_.find(bucket_idx);
  if (found == buckets_.end() || layer_idx < 0 ||
      layer_idx >= static_cast<int64_t>(found->second.size())) {
    throw ConfigError(str_of("layer ", layer_idx, " of bucket ", bucket_idx,
                             " is not registered; call register_layer first"));
  }
  return found->second[static_cast<size_t>(layer_idx)];
}

void LayerTable::set_bits(int64_t bucket_idx, int64_t layer_idx, int64_t bits) {
  check("bits", bits);
  std::lock_guard<std::mutex> lock(mutex_);
  at(bucket_idx, layer_idx).bits = bits > 0 ? bits : 0;
}

void LayerTable::set_bucket_size(int64_t bucket_idx, int64_t layer_idx, int64_t bucket_size) {
  check("bucket_size", bucket_size);
  std::lock_guard<std::mutex> lock(mutex_);
  at(bucket_idx, layer_idx).bucket_size = bucket_size > 0 ? bucket_size : 0;
}

void LayerTable::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  buckets_.clear();
}

std::optional<std::vector<RegisteredLayer>> LayerTable::find(int64_t numel) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<RegisteredLayer>* match = nullptr;
  int64_t match_idx = 0;
  for (const auto& [bucket_idx, layers] : buckets_) {
    int64_t total = 0;
    for (const RegisteredLayer& layer : layers) total += layer.numel;
    if (total != numel) continue;
    if (match != nullptr && *match != layers) {
      throw ConfigError(str_of("all_reduce of ", numel, " values: registered buckets ", match_idx,
                               " and ", bucket_idx, " both have this size but different layers; ",
                               "pass layers= to torch_cgx.all_reduce, or use cgx_utils.cgx_hook"));
    }
    match = &layers;
    match_idx = bucket_idx;
  }
  if (match == nullptr) return std::nullopt;
  return *match;
}

}  // namespace cgx
