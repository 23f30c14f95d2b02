// A parameter as data: a setting of a group or a parameter of a codec, with its allowed values.
// Every value, from the environment, from Python or from a peer, goes through canonical(), the only
// validator.
//
// Values are texts in canonical form: "4", "1", "nearest", "all_gather,all_reduce". A real number's is
// the shortest text that stands for it: "0.5", "1e-05"; it does not depend on the locale.
// Thread-safety: pure functions, except for from_environment(), which races with setenv() of other
// threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cgx {

struct Parameter {
  enum class Kind : uint8_t {
    kInteger,
    kBoolean,
    kSwitch,  // 0, 1, AUTO
    kChoice,
    kList,
    kText,
    kReal,
  };

  std::string name;
  std::string variable;  // environment variable
  Kind kind = Kind::kText;
  std::string fallback{};     // default, in canonical form
  int64_t low = 0, high = 0;  // kInteger
  bool power_of_two = false;  // kInteger: of the range, only powers of two
  /// kReal: the range, of finite numbers. An end that is open is not allowed itself.
  double least = 0, greatest = 0;
  bool open_least = false, open_greatest = false;
  std::string choices{};  // comma-separated; kChoice and kList
  bool per_call = false;  // read at each call; else when the group is made
  /// Younger than version 1 of the wire format: it counts in a configuration's hash only where it
  /// does not have its default, so that all other configurations keep their hashes.
  bool later = false;
  std::string meaning{};  // for tables and docstrings, without a full stop
  /// The option of torch_cgx.Options that sets it; empty: `name`.
  std::string option{};

  const std::string& setting() const { return option.empty() ? name : option; }

  /// True if an integer parameter may have this number.
  bool takes(int64_t number) const {
    return number >= low && number <= high && (!power_of_two || (number & (number - 1)) == 0);
  }
  /// True if a real parameter may have this value; NaN and infinities are no values.
  bool takes_real(double value) const;
};

/// "integers from 1 to 32", "finite numbers above 0", "one of nearest,stochastic".
std::string allowed(const Parameter& parameter);

/// The canonical text of a value. Choices match whatever their case. `where`: the option or the
/// variable that holds the value. ConfigError: names `where`, the value and what is allowed.
std::string canonical(const Parameter& parameter, const std::string& where,
                      const std::string& value);

/// Canonical text of the environment variable; nothing where it is unset or empty. ConfigError.
std::optional<std::string> from_environment(const Parameter& parameter);

/// The number that stands for a canonical text: of an integer its value, of a boolean 0 or 1, of a
/// choice its place among the choices, of a real number the bits of the double. Only of these kinds.
int64_t number_of(const Parameter& parameter, const std::string& text);
std::string text_of(const Parameter& parameter, int64_t number);
/// The value of a real parameter with that number. ConfigError: of another kind.
double real_number_of(const Parameter& parameter, int64_t number);
/// The shortest text that from_chars() reads as this number: "0.5", "1e-05", "nan".
std::string shortest_text(double value);

/// "int", "float", "bool", "str": the type of the value in Python.
const char* python_type(const Parameter& parameter);
/// "512", "True", "'nearest'": the default as Python writes it.
std::string python_default(const Parameter& parameter);

/// The items between commas, without blanks around them, and without empty ones.
std::vector<std::string> split(const std::string& text);

}  // namespace cgx
