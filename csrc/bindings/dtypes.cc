#include "bindings/dtypes.h"

#include "base/dtype_set.h"
#include "codec/bounded/element.h"

namespace py = pybind11;

namespace cgx {

void bind_dtypes(py::module_& m) {
  py::list rows;
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    py::dict row;
    row["name"] = name_of(dtype);
    row["number"] = number;
    row["bytes"] = size_of(dtype);
    row["floating"] = is_floating(dtype);
    row["real"] = name_of(real_of(dtype));
    row["computed"] = kComputed.has(dtype);
    row["bounded"] = bounded::number_of(dtype);
    rows.append(row);
  }
  m.attr("DTYPES") = py::tuple(rows);
}

}  // namespace cgx
