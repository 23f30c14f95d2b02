#include "codec/config.h"

#include <algorithm>

#include "base/error.h"
#include "codec/families/list.h"

namespace cgx {
namespace {

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

void add_to(DeclarationList<Family>& all, const Family& family) {
  for (const Family* other : all.all()) {
    check_distinct(family, *other);
    if (other->id == family.id) {
      throw ConfigError(str_of("codec ", family.name, ": number ", int{family.id},
                               " belongs to codec ", other->name));
    }
    for (const Parameter& own : family.parameters) check_setting(own, *other);
  }
  all.add(family);
}

DeclarationList<Family>& list() {
  // Never destroyed: threads may encode while the process ends.
  static auto* all = [] {
    auto* made = new DeclarationList<Family>;
#define CGX_FAMILY(name) add_to(*made, name##_family());
    CGX_FAMILIES(CGX_FAMILY)
#undef CGX_FAMILY
    return made;
  }();
  return *all;
}

}  // namespace

const std::vector<const Family*>& families() { return list().all(); }

void add_family(const Family& family) { add_to(list(), family); }

const Family* family_of(uint8_t id) {
  for (const Family* family : families()) {
    if (family->id == id) return family;
  }
  return nullptr;
}

CodecConfig config_of_text(const std::string& text) { return list().parse(text); }

std::string codec_names() { return list().names(); }

CodecConfig config_named(const std::string& name) { return list().named(name); }

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
    if (p.kind == Parameter::Kind::kReal) continue;  // not found by trying
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
