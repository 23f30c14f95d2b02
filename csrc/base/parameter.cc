#include "base/parameter.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

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

// Of the whole text, in any locale. A "+" is a sign that Python takes, too.
template <typename Number>
std::optional<Number> parsed(const std::string& value) {
  const char* begin = value.data() + (value.size() > 1 && value[0] == '+' && value[1] != '-');
  const char* last = value.data() + value.size();
  Number number{};
  const auto [end, error] = std::from_chars(begin, last, number);
  if (error != std::errc() || end != last) return std::nullopt;
  return number;
}

// An end that all finite numbers keep is left out.
std::string range_text(const Parameter& p) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const bool from = p.least > -kMost, to = p.greatest < kMost;
  if (from && to && !p.open_least && !p.open_greatest) {
    return str_of("numbers from ", shortest_text(p.least), " to ", shortest_text(p.greatest));
  }
  std::string text = "finite numbers";
  if (from) text += (p.open_least ? " above " : " from ") + shortest_text(p.least);
  if (from && to) text += " and";
  if (to) text += (p.open_greatest ? " below " : " up to ") + shortest_text(p.greatest);
  return text;
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

bool Parameter::takes_real(double value) const {
  return std::isfinite(value) && (open_least ? value > least : value >= least) &&
         (open_greatest ? value < greatest : value <= greatest);
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
    case Kind::kReal:
      return range_text(parameter);
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
      const auto number = parsed<int64_t>(value);
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
    case Kind::kReal: {
      const auto number = parsed<double>(value);
      if (!number || !parameter.takes_real(*number)) bad_value(parameter, where, raw);
      return shortest_text(*number + 0.0);  // -0 is 0
    }
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
  if (parameter.kind == Kind::kReal) return std::bit_cast<int64_t>(parsed<double>(text).value());
  if (parameter.kind != Kind::kChoice) return std::stoll(text);
  const std::vector<std::string> choices = split(parameter.choices);
  return std::find(choices.begin(), choices.end(), text) - choices.begin();
}

std::string text_of(const Parameter& parameter, int64_t number) {
  if (parameter.kind == Kind::kReal) return shortest_text(std::bit_cast<double>(number));
  if (parameter.kind != Kind::kChoice) return std::to_string(number);
  const std::vector<std::string> choices = split(parameter.choices);
  const auto place = static_cast<size_t>(number);
  return place < choices.size() ? choices[place] : str_of("number ", number);
}

double real_number_of(const Parameter& parameter, int64_t number) {
  if (parameter.kind != Kind::kReal) {
    throw ConfigError(
        str_of("parameter ", parameter.name, " is no real number; it takes ", allowed(parameter)));
  }
  return std::bit_cast<double>(number);
}

std::string shortest_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

const char* python_type(const Parameter& parameter) {
  switch (parameter.kind) {
    case Kind::kInteger:
      return "int";
    case Kind::kReal:
      return "float";
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
    case Kind::kReal:
      // Python reads "1" as an int.
      return parameter.fallback.find_first_of(".e") == std::string::npos ? parameter.fallback + ".0"
                                                                         : parameter.fallback;
    case Kind::kBoolean:
      return parameter.fallback == "1" ? "True" : "False";
    default:
      return str_of("'", parameter.fallback, "'");
  }
}

}  // namespace cgx
