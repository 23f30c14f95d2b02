#include "codec/declaration.h"

#include "base/error.h"

namespace cgx {
namespace {

// Number of parameters that describe() shows even if they have their defaults.
constexpr size_t kAlwaysTold = 3;

std::string place_text(const Config& config, const Parameter& parameter) {
  return str_of(config.declaration().word, " ", config.name(), ": ", parameter.name);
}

}  // namespace

size_t Declaration::place_of(std::string_view parameter) const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == parameter) return i;
  }
  std::string known;
  for (const Parameter& p : parameters) known += (known.empty() ? "" : ", ") + p.name;
  throw ConfigError(
      str_of(word, " ", name, " has no parameter '", parameter, "', allowed: ", known));
}

bool Declaration::has(std::string_view parameter) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const Parameter& p) { return p.name == parameter; });
}

std::vector<std::string> Declaration::names() const {
  if (!named) return {};
  if (variant.empty()) return {name};
  return split(parameters[place_of(variant)].choices);
}

Config::Config(const Declaration& declaration) : declaration_(&declaration) {
  for (const Parameter& p : declaration.parameters) numbers_.push_back(number_of(p, p.fallback));
}

std::string Config::name() const {
  return declaration_->variant.empty() ? declaration_->name : text(declaration_->variant);
}

int64_t Config::get(std::string_view parameter) const {
  const size_t place = declaration_->place_of(parameter);
  if (declaration_->parameters[place].kind == Parameter::Kind::kReal) {
    throw ConfigError(str_of(place_text(*this, declaration_->parameters[place]),
                             " is a real number: read it by real()"));
  }
  return numbers_[place];
}

double Config::real(std::string_view parameter) const {
  const size_t place = declaration_->place_of(parameter);
  return real_number_of(declaration_->parameters[place], numbers_[place]);
}

std::string Config::text(std::string_view parameter) const {
  const size_t place = declaration_->place_of(parameter);
  return text_of(declaration_->parameters[place], numbers_[place]);
}

Config& Config::set(std::string_view parameter, const std::string& text) {
  const size_t place = declaration_->place_of(parameter);
  const Parameter& known = declaration_->parameters[place];
  numbers_[place] = number_of(known, canonical(known, place_text(*this, known), text));
  return *this;
}

Config& Config::set(std::string_view parameter, int64_t number) {
  const Parameter& known = declaration_->parameters[declaration_->place_of(parameter)];
  if (known.kind == Parameter::Kind::kReal) return set(parameter, std::to_string(number));
  return set(parameter, text_of(known, number));
}

Config& Config::set(std::string_view parameter, double number) {
  return set(parameter, shortest_text(number));
}

Config& Config::set_all(std::string_view text) {
  std::vector<bool> given(numbers_.size());
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return *this;
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(end);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw ConfigError(str_of(declaration_->word, " ", name(), ": '", item,
                               "' is not allowed; its text goes on with parameter=value"));
    }
    const std::string_view parameter = item.substr(0, equals);
    const size_t place = declaration_->place_of(parameter);
    if (given[place]) {
      throw ConfigError(
          str_of(declaration_->word, " ", name(), ": ", parameter, " is given twice"));
    }
    given[place] = true;
    set(parameter, std::string(item.substr(equals + 1)));
  }
}

std::string Config::describe() const {
  std::string told = name();
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const Parameter& p = declaration_->parameters[i];
    const std::string value = text_of(p, numbers_[i]);
    const bool fixed = p.kind == Parameter::Kind::kInteger && p.low == p.high;
    if (fixed || p.name == declaration_->variant) continue;
    if (i < kAlwaysTold || value != p.fallback) told += str_of(" ", p.name, "=", value);
  }
  return told;
}

uint64_t Config::hash_after(Hasher beginning) const {
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const Parameter& p = declaration_->parameters[i];
    if (p.later && numbers_[i] == number_of(p, p.fallback)) continue;
    beginning.add_text(p.name).add(numbers_[i]);
  }
  return beginning.value();
}

void check_distinct(const Declaration& one, const Declaration& other) {
  for (const std::string& name : one.names()) {
    const std::vector<std::string> taken = other.names();
    if (std::find(taken.begin(), taken.end(), name) == taken.end()) continue;
    throw ConfigError(str_of(one.word, " '", name, "' is there already"));
  }
}

std::string joined_names(const std::vector<const Declaration*>& all) {
  std::vector<std::string> names;
  for (const Declaration* one : all) {
    for (std::string& name : one->names()) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

void unknown_name(const char* word, const std::string& name, const std::string& known) {
  throw ConfigError(str_of(word, " is '", name, "', allowed: ", known));
}

}  // namespace cgx
