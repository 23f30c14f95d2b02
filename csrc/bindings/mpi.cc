#include "bindings/mpi.h"

#include <string>

#include "base/error.h"
#include "comm/mpi/api.h"

namespace py = pybind11;

namespace cgx {

const void* mpi_api_of(const py::handle& capsule) {
  const void* table = PyCapsule_GetPointer(capsule.ptr(), CGX_MPI_API_CAPSULE);
  if (table == nullptr) {
    PyErr_Clear();
    throw ConfigError(str_of("expected the capsule of an MPI module, named '", CGX_MPI_API_CAPSULE,
                             "', got ", std::string(py::repr(capsule))));
  }
  return table;
}

}  // namespace cgx
