// tests._machinery: what tests do to the engine that users cannot. It has a copy of the core of its
// own; of torch_cgx._C it uses the classes of exceptions and the slot of comm/hooks.h.
#include "backend/adapters/exceptions.h"
#include "base/crc32c.h"
#include "machinery/bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_machinery, m) {
  m.doc() = "Test machinery: ranks as threads, faults on order, mocks.";
  const py::module_ engine = py::module_::import("torch_cgx._C");
  cgx::adopt_errors(engine);
  cgx::bind_communicators(m);
  cgx::bind_mpi_endpoints(m);
  cgx::bind_faults(m, engine);
  cgx::bind_schedules(m);
  cgx::bind_parameters(m);
  m.def(
      "crc32c",
      [](const py::bytes& data, bool tables) {
        const std::string text = data;
        return tables ? cgx::crc32c_by_tables(text.data(), text.size())
                      : cgx::crc32c(text.data(), text.size());
      },
      py::arg("data"), py::arg("tables") = false);
}
