#include "bindings/tuning.h"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace cgx {
namespace {

const char* text_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

}  // namespace

py::dict to_dict(const std::vector<TuningRow>& report) {
  py::list classes;
  for (const TuningRow& row : report) {
    py::dict one;
    one["operation"] = name_of(row.operation);
    one["dtype"] = text_of(row.dtype);
    one["bytes"] = row.bytes;
    one["codec"] = row.codec;
    one["measured"] = by_decision(row.measured);
    one["choice"] = key_of(row.decision);
    one["calls"] = row.calls;
    one["renewals"] = row.renewals;
    classes.append(one);
  }
  py::dict out;
  out["classes"] = classes;
  return out;
}

}  // namespace cgx
