// The MPI modules, as the extension module sees them.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// The table of functions (CgxMpiApi) in the capsule that torch_cgx._mpi_loader.load() returns;
/// valid as long as the process. ConfigError for anything else. Needs the GIL.
const void* mpi_api_of(const pybind11::handle& capsule);

}  // namespace cgx
