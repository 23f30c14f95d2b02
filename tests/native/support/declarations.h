// What every kind of declaration has to keep: its list, and its configurations as text and hash.
#pragma once

#include <set>
#include <string>

#include "check.h"
#include "codec/choice.h"
#include "samples.h"

namespace cgx::native {

/// For declarations that are no wire codecs.
template <typename Family>
void check_declarations(const DeclarationList<Family>& list) {
  std::set<uint64_t> hashes;
  for (const Family* family : list.all()) {
    CHECK(!family->meaning.empty() && std::string(family->word) == Family::kWord, family->name);
    const ConfigOf<Family> defaults = list.named(family->names().at(0));
    CHECK(hashes.insert(defaults.hash()).second, family->name);
    CHECK(list.parse(family->names()[0]) == defaults, family->name);
    for (const Parameter& p : family->parameters) {
      CHECK(!p.meaning.empty() && p.variable.empty(), family->name, " ", p.name);
      for (const Parameter& setting : codec_settings()) {
        CHECK(setting.meaning != p.meaning, family->name, ": ", p.name, " is a group's option");
      }
      for (int64_t number : samples(p)) {
        ConfigOf<Family> config(*family);
        config.set(p.name, text_of(p, number));
        CHECK(config.text(p.name) == text_of(p, number), config.describe());
        CHECK((config == defaults) == (config.hash() == defaults.hash()), config.describe());
        CHECK(list.parse(config.describe()) == config, config.describe());
      }
      const std::string text =
          error_of<ConfigError>([&] { ConfigOf<Family>(*family).set(p.name, std::string("x-1")); });
      CHECK(contains(text, p.name) && contains(text, "'x-1'") && contains(text, allowed(p)), text);
      const std::string twice = str_of(family->names()[0], " ", p.name, "=", p.fallback);
      CHECK(contains(
          error_of<ConfigError>([&] { list.parse(twice + " " + p.name + "=" + p.fallback); }),
          "given twice"));
    }
    const std::string text =
        error_of<ConfigError>([&] { list.parse(family->names()[0] + " nothing=1"); });
    CHECK(contains(text, "'nothing'") && contains(text, Family::kWord), text);
    error_of<ConfigError>([&] { list.parse(family->names()[0] + " nothing"); });
  }
  const std::string text = error_of<ConfigError>([&] { list.parse("nobody"); });
  CHECK(contains(text, str_of(Family::kWord, " is 'nobody', allowed: ", list.names())), text);
}

}  // namespace cgx::native
