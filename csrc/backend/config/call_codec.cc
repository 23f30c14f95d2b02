#include "backend/config/call_codec.h"

#include <cstdlib>
#include <utility>

namespace cgx {

CallCodec::CallCodec(const OptionFields& options, const GroupConfig& group)
    : options_(options), group_(group) {
  for (const Setting& setting : settings()) {
    if (setting.per_call && !options.get(setting.name)) {
      variables_.push_back({setting.variable, std::nullopt});
    }
  }
}

std::shared_ptr<const Codec> CallCodec::get() {
  std::lock_guard<std::mutex> lock(mutex_);
  bool changed = codec_ == nullptr;
  for (Variable& variable : variables_) {
    const char* now = std::getenv(variable.name.c_str());
    if (now == nullptr ? !variable.value : variable.value && *variable.value == now) continue;
    changed = true;
    codec_ = nullptr;  // stays so if the look-up throws
    variable.value = now == nullptr ? std::nullopt : std::optional<std::string>(now);
  }
  if (changed) codec_ = resolve_codec(options_, group_);
  return codec_;
}

}  // namespace cgx
