// Python faces of the MPI communicator.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// The table of functions (CgxMpiApi) in the capsule that torch_cgx._mpi_loader.load() returns;
/// valid as long as the process. ConfigError for anything else. Needs the GIL.
const void* mpi_api_of(const pybind11::handle& capsule);

/// Adds what the tests of the communicator use.
void bind_mpi(pybind11::module_& module);

}  // namespace cgx
