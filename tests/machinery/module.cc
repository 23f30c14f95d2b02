// tests._machinery: what tests do to the engine that users cannot. It has a copy of the core of its
// own; of torch_cgx._C it uses the classes of exceptions and the slot of comm/hooks.h.
#include "backend/adapters/exceptions.h"
#include "base/crc32c.h"
#include "device/driver.h"
#include "machinery/bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_machinery, m) {
  m.doc() = "Test machinery: ranks as threads, faults on order, mocks, the core on raw addresses.";
  const py::module_ engine = py::module_::import("torch_cgx._C");
  cgx::adopt_errors(engine);
  cgx::bind_communicators(m);
  cgx::bind_mpi_endpoints(m);
  cgx::bind_faults(m, engine);
  cgx::bind_schedules(m);
  cgx::bind_codecs(m, engine);
  cgx::bind_plans(m);
  m.def(
      "gpu_driver",
      [] {
        const cgx::device::Driver& driver = cgx::device::Driver::get();
        int version = 0, devices = 0;
        GPU(driver, driver_version, &version);
        GPU(driver, device_count, &devices);
        return py::dict(py::arg("library") = driver.library, py::arg("version") = version,
                        py::arg("devices") = devices);
      },
      "The driver of this machine's GPUs: library, version as it numbers itself, devices. "
      "ResourceError that says what is missing.");
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
