// Communicators as tests see them: underscore names in the extension module, no promise to users.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds _Communicator, _MockNetwork, _make_in_process_group, _make_shm_communicator,
/// _make_relay_group and _comm_stress. Everything that may wait releases the GIL. register_errors()
/// must have run.
void bind_comm(pybind11::module_& module);

}  // namespace cgx
