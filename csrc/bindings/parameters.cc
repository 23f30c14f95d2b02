#include "bindings/parameters.h"

#include "base/error.h"

namespace py = pybind11;

namespace cgx {
namespace {

using Kind = Parameter::Kind;

// Anything that Python takes for an index: numpy's integers, too.
py::object integer_of(const py::handle& value) {
  if (py::isinstance<py::bool_>(value) || PyIndex_Check(value.ptr()) == 0) return py::none();
  return py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
}

// The text of a number, in any locale; empty: not a float and nothing that Python takes for an index.
std::string real_text_of(const py::handle& value) {
  if (py::isinstance<py::float_>(value)) return shortest_text(value.cast<double>());
  const py::object number = integer_of(value);
  return number.is_none() ? "" : std::string(py::str(number));
}

}  // namespace

std::string canonical_of(const Parameter& parameter, const std::string& where,
                         const py::handle& value) {
  const auto refuse = [&](const char* wanted) {
    const std::string type = py::str(py::type::handle_of(value).attr("__name__"));
    throw py::type_error(str_of(
        where, "=", std::string(py::repr(value)), ": expected ", wanted, ", got ", type,
        "; allowed: ", parameter.kind == Kind::kBoolean ? "True or False" : allowed(parameter)));
  };
  std::string text;
  switch (parameter.kind) {
    case Kind::kInteger: {
      const py::object number = integer_of(value);
      if (number.is_none()) refuse("an int");
      text = py::str(number);
      break;
    }
    case Kind::kBoolean: {
      const py::object number = integer_of(value);
      if (py::isinstance<py::bool_>(value)) {
        text = value.cast<bool>() ? "1" : "0";
      } else if (!number.is_none()) {
        text = py::str(number);
      } else {
        refuse("a bool");
      }
      break;
    }
    case Kind::kReal:
      text = real_text_of(value);
      if (text.empty()) refuse("a float");
      break;
    case Kind::kSwitch:
      if (py::isinstance<py::bool_>(value)) {
        text = value.cast<bool>() ? "1" : "0";
      } else {
        if (!py::isinstance<py::str>(value)) refuse("a bool or 'AUTO'");
        text = py::str(value);
      }
      break;
    case Kind::kList:
      if (py::isinstance<py::str>(value)) {
        text = py::str(value);
      } else {
        if (!py::isinstance<py::sequence>(value)) refuse("a str or a sequence of str");
        for (const py::handle& item : value) {
          text += (text.empty() ? "" : ",") + std::string(py::str(item));
        }
        if (text.empty()) text = "none";
      }
      break;
    case Kind::kChoice:
    case Kind::kText:
      if (!py::isinstance<py::str>(value)) refuse("a str");
      text = py::str(value);
      break;
  }
  return canonical(parameter, where, text);
}

py::object value_of(const Parameter& parameter, const std::string& text) {
  switch (parameter.kind) {
    case Kind::kInteger:
      return py::int_(std::stoll(text));
    case Kind::kReal:
      return py::float_(real_number_of(parameter, number_of(parameter, text)));
    case Kind::kBoolean:
      return py::bool_(text == "1");
    case Kind::kSwitch:
      return text == "AUTO" ? py::object(py::str(text)) : py::object(py::bool_(text == "1"));
    default:
      return py::str(text);
  }
}

py::dict to_dict(const Parameter& parameter) {
  static constexpr const char* kKinds[] = {"integer", "boolean", "switch", "choice",
                                           "list",    "text",    "real"};
  py::dict row;
  row["name"] = parameter.name;
  row["option"] = parameter.setting();
  row["variable"] = parameter.variable;
  row["kind"] = kKinds[static_cast<size_t>(parameter.kind)];
  row["type"] = python_type(parameter);
  row["default"] = parameter.fallback;
  row["value"] = value_of(parameter, parameter.fallback);
  if (parameter.kind == Kind::kReal) {
    row["low"] = parameter.least;
    row["high"] = parameter.greatest;
  } else {
    row["low"] = parameter.low;
    row["high"] = parameter.high;
  }
  row["power_of_two"] = parameter.power_of_two;
  row["choices"] = py::cast(split(parameter.choices));
  row["per_call"] = parameter.per_call;
  row["meaning"] = parameter.meaning;
  row["allowed"] = allowed(parameter);
  return row;
}

}  // namespace cgx
