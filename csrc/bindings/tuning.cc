#include "bindings/tuning.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace cgx {
namespace {

const char* text_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

}  // namespace

py::dict to_dict(const TuningReport& report) {
  py::dict codecs;
  for (const auto& row : report.codecs) {
    py::dict one;
    one["encode"] = row.seconds_per_value.encode;
    one["decode"] = row.seconds_per_value.decode;
    codecs[py::str(row.codec)] = one;
  }
  py::list sizes;
  for (const auto& row : report.sizes) {
    py::dict one;
    one["bytes"] = row.bytes;
    one["predicted"] = by_decision(row.predicted);
    one["choice"] = key_of(row.decision);
    sizes.append(one);
  }
  py::list classes;
  for (const auto& row : report.classes) {
    py::dict one;
    one["operation"] = name_of(row.operation);
    one["dtype"] = text_of(row.dtype);
    one["bytes"] = row.bytes;
    one["codec"] = row.codec;
    one["predicted"] = by_decision(row.predicted);
    one["measured"] = by_decision(row.measured);
    one["choice"] = key_of(row.decision);
    one["calls"] = row.calls;
    one["renewals"] = row.renewals;
    classes.append(one);
  }
  py::dict out;
  out["measurements"] = report.measurements;
  out["seconds"] = report.seconds;
  out["link"] = to_dict(report.link);
  out["codecs"] = codecs;
  out["table"] = sizes;
  out["classes"] = classes;
  return out;
}

}  // namespace cgx
