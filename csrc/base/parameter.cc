#include "base/parameter.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace cgx {
namespace {

using Kind = Parameter::Kind;

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string strip(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

[[noreturn]] void bad_value(const Parameter& parameter, const std::string& where,
                            const std::string& value) {
  throw ConfigError(str_of(where, "='", value, "' is not allowed; ", parameter.name, " takes ",
                           allowed(parameter)));
}

// The choice that equals `value` whatever the case, or empty.
std::string match(const std::string& value, const std::string& choices) {
  for (const std::string& choice : split(choices)) {
    if (upper(choice) == upper(value)) return choice;
  }
  return "";
}

std::optional<int64_t> integer_of(const std::string& value) {
  // A sign that Python's int() takes, too.
  const char* begin = value.data() + (value.size() > 1 && value[0] == '+' && value[1] != '-');
  const char* last = value.data() + value.size();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(begin, last, number);
  if (error != std::errc() || end != last) return std::nullopt;
  return number;
}

std::string canonical_list(const Parameter& parameter, const std::string& where,
                           const std::string& value) {
  if (upper(value) == "NONE") return "none";
  std::vector<std::string> items;
  for (const std::string& item : split(value)) {
    const std::string choice = match(item, parameter.choices);
    if (choice.empty()) bad_value(parameter, where, value);
    items.push_back(choice);
  }
  if (items.empty()) bad_value(parameter, where, value);
  std::sort(items.begin(), items.end());
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

}  // namespace

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string item = strip(text.substr(start, comma - start));
    if (!item.empty()) items.push_back(item);
    start = comma + 1;
  }
  return items;
}

std::string allowed(const Parameter& parameter) {
  switch (parameter.kind) {
    case Kind::kInteger:
      if (parameter.low == parameter.high) return str_of("the integer ", parameter.low);
      return str_of(parameter.power_of_two ? "powers of two" : "integers", " from ", parameter.low,
                    " to ", parameter.high);
    case Kind::kBoolean:
      return "0 or 1";
    case Kind::kSwitch:
      return "0, 1 or AUTO";
    case Kind::kChoice:
      return "one of " + parameter.choices;
    case Kind::kList:
      return "a comma-separated list (or 'none') of " + parameter.choices;
    case Kind::kText:
      break;
  }
  return "any text";
}

std::string canonical(const Parameter& parameter, const std::string& where,
                      const std::string& raw) {
  // The text of an exception would end at a NUL.
  if (raw.find('\0') != std::string::npos) {
    throw ConfigError(str_of(where, " has a NUL character; ", parameter.name, " takes ",
                             allowed(parameter), ", without NUL characters"));
  }
  const std::string value = strip(raw);
  switch (parameter.kind) {
    case Kind::kInteger: {
      const auto number = integer_of(value);
      if (!number || !parameter.takes(*number)) bad_value(parameter, where, raw);
      return std::to_string(*number);
    }
    case Kind::kBoolean:
      if (value != "0" && value != "1") bad_value(parameter, where, raw);
      return value;
    case Kind::kSwitch:
    case Kind::kChoice: {
      const std::string choice =
          match(value, parameter.kind == Kind::kSwitch ? "0,1,AUTO" : parameter.choices);
      if (choice.empty()) bad_value(parameter, where, raw);
      return choice;
    }
    case Kind::kList:
      return canonical_list(parameter, where, value);
    case Kind::kText:
      break;
  }
  return raw;
}

std::optional<std::string> from_environment(const Parameter& parameter) {
  const char* value = std::getenv(parameter.variable.c_str());
  // VAR= in a shell means "unset".
  if (value == nullptr || strip(value).empty()) return std::nullopt;
  return canonical(parameter, parameter.variable, value);
}

int64_t number_of(const Parameter& parameter, const std::string& text) {
  if (parameter.kind != Kind::kChoice) return std::stoll(text);
  const std::vector<std::string> choices = split(parameter.choices);
  return std::find(choices.begin(), choices.end(), text) - choices.begin();
}

std::string text_of(const Parameter& parameter, int64_t number) {
  if (parameter.kind != Kind::kChoice) return std::to_string(number);
  const std::vector<std::string> choices = split(parameter.choices);
  const auto place = static_cast<size_t>(number);
  return place < choices.size() ? choices[place] : str_of("number ", number);
}

const char* python_type(const Parameter& parameter) {
  switch (parameter.kind) {
    case Kind::kInteger:
      return "int";
    case Kind::kBoolean:
      return "bool";
    case Kind::kSwitch:
      return "bool or 'AUTO'";
    case Kind::kList:
      return "str or sequence of str";
    case Kind::kChoice:
    case Kind::kText:
      break;
  }
  return "str";
}

std::string python_default(const Parameter& parameter) {
  switch (parameter.kind) {
    case Kind::kInteger:
      return parameter.fallback;
    case Kind::kBoolean:
      return parameter.fallback == "1" ? "True" : "False";
    default:
      return str_of("'", parameter.fallback, "'");
  }
}

}  // namespace cgx
