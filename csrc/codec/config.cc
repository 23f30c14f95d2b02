#include "codec/config.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "codec/families/list.h"

namespace cgx {
namespace {

// Number of parameters that describe() shows even if they have their defaults.
constexpr size_t kAlwaysTold = 3;

std::vector<std::string> names_of(const Family& family) {
  if (!family.named) return {};
  if (family.variant.empty()) return {family.name};
  return split(family.parameters[family.place_of(family.variant)].choices);
}

void check_setting(const Parameter& own, const Family& other) {
  for (const Parameter& theirs : other.parameters) {
    if (theirs.setting() != own.setting()) continue;
    // `bits` chooses the family: each has its own default.
    const bool chooses = own.setting() == "bits";
    if (theirs.kind == own.kind && theirs.variable == own.variable &&
        (chooses || theirs.fallback == own.fallback)) {
      continue;
    }
    throw ConfigError(str_of("parameter ", own.name, " shares its setting with one of codec ",
                             other.name,
                             ", which has another kind, default or environment variable"));
  }
}

void add_to(std::vector<const Family*>& all, const Family& family) {
  for (const Family* other : all) {
    for (const std::string& name : names_of(family)) {
      const std::vector<std::string> taken = names_of(*other);
      if (std::find(taken.begin(), taken.end(), name) == taken.end()) continue;
      throw ConfigError(str_of("codec '", name, "' is there already"));
    }
    if (other->id == family.id) {
      throw ConfigError(str_of("codec ", family.name, ": number ", int{family.id},
                               " belongs to codec ", other->name));
    }
    for (const Parameter& own : family.parameters) check_setting(own, *other);
  }
  all.push_back(&family);
}

std::vector<const Family*>& list() {
  // Never destroyed: threads may encode while the process ends.
  static auto* all = [] {
    auto* made = new std::vector<const Family*>;
#define CGX_FAMILY(name) add_to(*made, name##_family());
    CGX_FAMILIES(CGX_FAMILY)
#undef CGX_FAMILY
    return made;
  }();
  return *all;
}

}  // namespace

size_t Family::place_of(std::string_view parameter) const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == parameter) return i;
  }
  std::string known;
  for (const Parameter& p : parameters) known += (known.empty() ? "" : ", ") + p.name;
  throw ConfigError(
      str_of("codec ", name, " has no parameter '", parameter, "', allowed: ", known));
}

bool Family::has(std::string_view parameter) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const Parameter& p) { return p.name == parameter; });
}

CodecConfig::CodecConfig(const Family& family) : family_(&family) {
  for (const Parameter& p : family.parameters) numbers_.push_back(number_of(p, p.fallback));
}

std::string CodecConfig::name() const {
  return family_->variant.empty() ? family_->name : text(family_->variant);
}

int64_t CodecConfig::get(std::string_view parameter) const {
  return numbers_[family_->place_of(parameter)];
}

std::string CodecConfig::text(std::string_view parameter) const {
  const size_t place = family_->place_of(parameter);
  return text_of(family_->parameters[place], numbers_[place]);
}

CodecConfig& CodecConfig::set(std::string_view parameter, const std::string& text) {
  const size_t place = family_->place_of(parameter);
  const Parameter& known = family_->parameters[place];
  numbers_[place] =
      number_of(known, canonical(known, str_of("codec ", name(), ": ", known.name), text));
  return *this;
}

CodecConfig& CodecConfig::set(std::string_view parameter, int64_t number) {
  return set(parameter, text_of(family_->parameters[family_->place_of(parameter)], number));
}

std::string CodecConfig::describe() const {
  std::string told = name();
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const Parameter& p = family_->parameters[i];
    const std::string value = text_of(p, numbers_[i]);
    const bool fixed = p.kind == Parameter::Kind::kInteger && p.low == p.high;
    if (fixed || p.name == family_->variant) continue;
    if (i < kAlwaysTold || value != p.fallback) told += str_of(" ", p.name, "=", value);
  }
  return told;
}

uint64_t CodecConfig::hash() const {
  Hasher hasher;
  hasher.add(family_->id);
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const Parameter& p = family_->parameters[i];
    if (p.later && numbers_[i] == number_of(p, p.fallback)) continue;
    hasher.add_text(p.name).add(numbers_[i]);
  }
  return hasher.value();
}

const std::vector<const Family*>& families() { return list(); }

void add_family(const Family& family) { add_to(list(), family); }

const Family* family_of(uint8_t id) {
  for (const Family* family : list()) {
    if (family->id == id) return family;
  }
  return nullptr;
}

std::string codec_names() {
  std::vector<std::string> names;
  for (const Family* family : list()) {
    for (std::string& name : names_of(*family)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

CodecConfig config_named(const std::string& name) {
  for (const Family* family : list()) {
    if (name == family->name) return CodecConfig(*family);
    for (const std::string& variant : names_of(*family)) {
      if (variant != name || family->variant.empty()) continue;
      CodecConfig config(*family);
      return config.set(family->variant, variant);
    }
  }
  throw ConfigError(str_of("codec is '", name, "', allowed: ", codec_names()));
}

CodecConfig config_of_text(const std::string& text) {
  auto word = [&, at = size_t{0}]() mutable {
    const size_t end = std::min(text.find(' ', at), text.size());
    std::string found = text.substr(std::min(at, end), end - std::min(at, end));
    at = end + 1;
    return found;
  };
  CodecConfig config = config_named(word());
  for (std::string setting = word(); !setting.empty(); setting = word()) {
    const size_t equal = setting.find('=');
    if (equal == std::string::npos) {
      throw ConfigError(str_of("codec is '", text, "': '", setting,
                               "' is no parameter with a value, allowed: name=value"));
    }
    config.set(setting.substr(0, equal), setting.substr(equal + 1));
  }
  return config;
}

std::unique_ptr<CodecConfig> config_of_hash(const Family& family, uint32_t hash,
                                            const CodecConfig& near) {
  const CodecConfig start = &near.family() == &family ? near : CodecConfig(family);
  const auto matches = [hash](const CodecConfig& config) {
    return static_cast<uint32_t>(config.hash()) == hash;
  };
  if (matches(start)) return std::make_unique<CodecConfig>(start);
  // Small numbers, and those around powers of two: what people write.
  constexpr int64_t kEach = 1024;
  for (const Parameter& p : family.parameters) {
    const bool integer = p.kind == Parameter::Kind::kInteger;
    const int64_t low = integer ? p.low : 0;
    const int64_t high = integer ? p.high
                         : p.kind == Parameter::Kind::kChoice
                             ? static_cast<int64_t>(split(p.choices).size()) - 1
                             : 1;
    const auto differs = [&](int64_t number) -> std::unique_ptr<CodecConfig> {
      if (integer ? !p.takes(number) : number < low || number > high) return nullptr;
      auto config = std::make_unique<CodecConfig>(start);
      config->set(p.name, number);
      return matches(*config) ? std::move(config) : nullptr;
    };
    for (int64_t number = low; number <= high && number - low <= kEach; ++number) {
      if (auto found = differs(number)) return found;
    }
    for (int exponent = 10; exponent < 63; ++exponent) {
      for (int64_t off : {-1, 0, 1}) {
        if (auto found = differs((int64_t{1} << exponent) + off)) return found;
      }
    }
    if (auto found = differs(high)) return found;
  }
  return nullptr;
}

}  // namespace cgx
