#include "bindings/emulation.h"

#include <pybind11/stl.h>

#include <string>

#include "bindings/parameters.h"
#include "codec/cast.h"
#include "codec/formats/presets.h"
#include "tensors/emulation/casts.h"

namespace py = pybind11;

namespace cgx {
namespace {

py::list casts_py() {
  py::list all;
  for (const CastFamily* family : casts().all()) {
    py::dict row;
    row["name"] = family->name;
    row["meaning"] = family->meaning;
    py::list parameters;
    for (const Parameter& p : family->parameters) parameters.append(to_dict(p));
    row["parameters"] = parameters;
    all.append(row);
  }
  return all;
}

// The canonical text of a cast. `where`: the class that got the parameters, for errors.
std::string cast_text(const std::string& where, const std::string& name,
                      const py::dict& parameters) {
  CastConfig config = casts().named(name);
  for (const auto& [key, value] : parameters) {
    const std::string parameter = py::str(key);
    const Parameter& known = config.family().parameters[config.family().place_of(parameter)];
    config.set(parameter, canonical_of(known, where + parameter, value));
  }
  return make_cast(config)->describe();
}

py::dict facts_of(const std::string& text) {
  const auto cast = cast_of_text(text);
  py::dict facts;
  facts["bits"] = cast->size().bits;
  facts["block_bits"] = cast->size().block_bits;
  facts["group_bits"] = cast->size().group_bits;
  facts["block"] = cast->block();
  facts["block_rows"] = cast->block_rows();
  facts["group"] = cast->group() == Group::kNone  ? py::object(py::none())
                   : cast->group() == Group::kRun ? py::object(py::str("run"))
                                                  : py::object(py::str("tensor"));
  facts["by_channels"] = cast->by_channels();
  facts["elementwise"] = cast->elementwise();
  facts["stochastic"] = cast->stochastic();
  facts["largest"] = cast->largest();
  facts["smallest_step"] = cast->smallest_step();
  py::dict parameters;
  for (const Parameter& p : cast->config().family().parameters) {
    parameters[py::str(p.name)] = value_of(p, cast->config().text(p.name));
  }
  facts["name"] = cast->config().family().name;
  facts["parameters"] = parameters;
  return facts;
}

// (name, text, where it is used) of each named format.
py::list presets_py() {
  py::list all;
  for (const formats::Preset& preset : formats::presets()) {
    all.append(py::make_tuple(preset.name, preset.text, preset.used));
  }
  return all;
}

}  // namespace

void bind_emulation(py::module_& m) {
  m.def("casts", casts_py);
  m.def("cast_text", cast_text, py::arg("where"), py::arg("name"), py::arg("parameters"));
  m.def("presets", presets_py);
  m.def("cast_facts", facts_of, py::arg("text"));
}

}  // namespace cgx
