#include "bindings/engine.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/config/handshake.h"
#include "backend/config/layer_table.h"
#include "backend/config/process_variables.h"
#include "backend/config/settings.h"
#include "backend/version.h"
#include "bindings/parameters.h"

namespace py = pybind11;

namespace cgx {
namespace {

py::list settings_py() {
  py::list table;
  for (const Setting& s : settings()) {
    py::dict row = to_dict(static_cast<const Parameter&>(s));
    row["compared"] = s.compared;
    table.append(row);
  }
  return table;
}

// The canonical Python value of a setting that was given as `where`.
py::object check_setting(const std::string& name, const py::object& value,
                         const std::string& where) {
  const Setting& known = setting(name);
  return value_of(known, canonical_of(known, where, value));
}

py::object setting_from_environment(const std::string& name) {
  const Setting& known = setting(name);
  const auto text = from_environment(known);
  return text ? value_of(known, *text) : py::none();
}

py::list process_variables_py() {
  py::list table;
  for (const Parameter* variable : process_variables()) table.append(to_dict(*variable));
  return table;
}

py::object process_variable_py(const std::string& name) {
  const Parameter& known = process_variable(name);
  return value_of(known, from_environment(known).value_or(known.fallback));
}

std::vector<std::string> codec_setting_names() {
  std::vector<std::string> names;
  for (const Parameter& p : codec_settings()) names.push_back(p.name);
  return names;
}

}  // namespace

void bind_engine(py::module_& m) {
  m.attr("__version__") = kVersion;

  LayerTable& table = LayerTable::instance();
  m.def(
      "register_layer",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t numel, int64_t bits,
               int64_t bucket_size) { table.add(bucket_idx, layer_idx, numel, bits, bucket_size); },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("numel"), py::arg("bits") = 0,
      py::arg("bucket_size") = 0);
  m.def(
      "set_quantization_bits",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t bits) {
        table.set_bits(bucket_idx, layer_idx, bits);
      },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("bits"));
  m.def(
      "set_quantization_bucket_size",
      [&table](int64_t bucket_idx, int64_t layer_idx, int64_t bucket_size) {
        table.set_bucket_size(bucket_idx, layer_idx, bucket_size);
      },
      py::arg("bucket_idx"), py::arg("layer_idx"), py::arg("bucket_size"));
  m.def("clear_layers", [&table] { table.clear(); });
  m.def("settings", &settings_py);
  m.def("check_setting", &check_setting, py::arg("name"), py::arg("value"), py::arg("where"));
  m.def("setting_from_environment", &setting_from_environment, py::arg("name"));
  m.def("process_variables", &process_variables_py, "Variables of the process, not of a group.");
  m.def("process_variable", &process_variable_py, py::arg("name"), "Its value in force.");
  m.def("host_identity", &host_identity, py::arg("host_id"),
        "Equal for processes that a group puts on one host: machine, /dev/shm, and host_id.");
  m.def("codec_settings", &codec_setting_names, "Names of the settings that choose a codec.");
}

}  // namespace cgx
