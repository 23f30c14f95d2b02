// Real parameters as Python gives and gets them.
#include "bindings/parameters.h"

#include "machinery/bindings.h"

namespace py = pybind11;

namespace cgx {

void bind_parameters(py::module_& m) {
  m.def(
      "real_parameter",
      [](const py::object& value, double least, double greatest, bool open_least) {
        const Parameter parameter{.name = "rate",
                                  .kind = Parameter::Kind::kReal,
                                  .fallback = "0.5",
                                  .least = least,
                                  .greatest = greatest,
                                  .open_least = open_least,
                                  .meaning = "A rate"};
        const std::string text = canonical_of(parameter, "make(rate)", value);
        return py::make_tuple(text, value_of(parameter, text), to_dict(parameter));
      },
      py::arg("value"), py::arg("least"), py::arg("greatest"), py::arg("open_least") = false,
      "The canonical text of a value, the value in Python, and the row of the parameter.");
}

}  // namespace cgx
