// A declaration: what users may ask of a codec, a cast or a compressor, as data; and one set of values
// of its parameters.
//
// Validation, the text and the hash of a configuration, Python classes and tables derive from the
// declaration, whatever it makes. What it makes stands beside it: a wire codec in codec/config.h, a
// cast in codec/cast.h, a compressor in codec/compressor.h. Only wire codecs have a number on the
// wire, and only their parameters are settings of a group.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/parameter.h"

namespace cgx {

struct Declaration {
  std::string name;                   // "maxmin"
  std::string meaning;                // one line, for tables
  std::vector<Parameter> parameters;  // integers, real numbers, booleans and choices
  /// A choice among the parameters by whose values users name it ("bf16"); empty: they name it by
  /// `name`.
  std::string variant{};
  /// Whether users may name it; they may not name the codec of exact values.
  bool named = true;
  /// Its class in Python, and what the docstring says beside the parameters.
  std::string python{}, doc{};
  /// What it declares, for errors: "codec", "cast" or "compressor". Set by Declared.
  const char* word = "codec";

  /// ConfigError if no parameter has this name.
  size_t place_of(std::string_view parameter) const;
  bool has(std::string_view parameter) const;
  /// What users may call it: its name, or the values of its variant.
  std::vector<std::string> names() const;
};

/// A declaration and what it makes. Maker::kWord: see Declaration::word.
template <typename Maker>
struct Declared : Declaration, Maker {
  Declared(Declaration declaration, Maker maker)
      : Declaration(std::move(declaration)), Maker(std::move(maker)) {
    word = Maker::kWord;
  }
};

/// What a user asks of a declaration: a value for each parameter. Value semantics; the declaration must
/// stay. All errors are ConfigError and name the parameter, the value and what is allowed.
class Config {
 public:
  /// All parameters have their defaults.
  explicit Config(const Declaration& declaration);

  const Declaration& declaration() const { return *declaration_; }
  /// The name for users: "maxmin", "bf16".
  std::string name() const;

  /// The number of a parameter: see number_of() in base/parameter.h. Of an integer, a boolean or a
  /// choice.
  int64_t get(std::string_view parameter) const;
  /// The value of a real number.
  double real(std::string_view parameter) const;
  std::string text(std::string_view parameter) const;

  Config& set(std::string_view parameter, const std::string& text);
  /// Of a real number its value, of others the number that get() returns.
  Config& set(std::string_view parameter, int64_t number);
  Config& set(std::string_view parameter, double number);
  /// Sets what a text says after the name: "bits=4 rounding=nearest", each parameter at most once.
  Config& set_all(std::string_view text);

  /// "maxmin bits=4 bucket_size=512 rounding=nearest": parameters that can have one value only are
  /// left out. The fourth and later parameters are left out if they have their defaults.
  std::string describe() const;

  bool operator==(const Config&) const = default;
  /// By declaration and parameter, in the order of the declaration.
  const std::vector<int64_t>& numbers() const { return numbers_; }

 protected:
  uint64_t hash_after(Hasher beginning) const;

 private:
  const Declaration* declaration_;
  std::vector<int64_t> numbers_;
};

/// A configuration of one kind of declaration.
template <typename Family>
class ConfigOf : public Config {
 public:
  explicit ConfigOf(const Family& family) : Config(family) {}

  const Family& family() const { return static_cast<const Family&>(declaration()); }

  ConfigOf& set(std::string_view parameter, const std::string& text) {
    Config::set(parameter, text);
    return *this;
  }
  template <std::integral Number>
  ConfigOf& set(std::string_view parameter, Number number) {
    Config::set(parameter, static_cast<int64_t>(number));
    return *this;
  }
  ConfigOf& set(std::string_view parameter, double number) {
    Config::set(parameter, number);
    return *this;
  }

  /// Hash of what is declared and of all parameters. Ranks compare the hashes of wire codecs, which begin
  /// with the codec's number.
  uint64_t hash() const {
    Hasher beginning;
    if constexpr (requires { family().id; }) {
      beginning.add(family().id);
    } else {
      beginning.add_text(family().word).add_text(family().name);
    }
    return hash_after(beginning);
  }

  bool operator==(const ConfigOf&) const = default;
};

// Parts of DeclarationList that need no template.
void check_distinct(const Declaration& one, const Declaration& other);
std::string joined_names(const std::vector<const Declaration*>& all);
[[noreturn]] void unknown_name(const char* word, const std::string& name, const std::string& known);

/// All declarations of one kind. Adding is for the start of a process, before threads use the list.
template <typename Family>
class DeclarationList {
 public:
  /// ConfigError: users call another one by the same name.
  void add(const Family& family) {
    for (const Family* other : all_) check_distinct(family, *other);
    all_.push_back(&family);
  }

  const std::vector<const Family*>& all() const { return all_; }

  /// Names that users may give, sorted, comma-separated.
  std::string names() const { return joined_names({all_.begin(), all_.end()}); }

  /// The defaults under such a name, or under the name of a declaration that users may not name.
  /// ConfigError, listing the names that exist: none has this name.
  ConfigOf<Family> named(const std::string& name) const {
    for (const Family* family : all_) {
      if (name == family->name) return ConfigOf<Family>(*family);
      if (family->variant.empty()) continue;
      for (const std::string& variant : family->names()) {
        if (variant == name) return ConfigOf<Family>(*family).set(family->variant, variant);
      }
    }
    unknown_name(Family::kWord, name, names());
  }

  /// The configuration of a text as describe() writes it: a name, then
  /// parameter=value for each parameter that is not at its default, or for more parameters. ConfigError.
  ConfigOf<Family> parse(std::string_view text) const {
    const size_t end = std::min(text.find(' '), text.size());
    ConfigOf<Family> config = named(std::string(text.substr(0, end)));
    config.set_all(text.substr(end));
    return config;
  }

 private:
  std::vector<const Family*> all_;
};

}  // namespace cgx
