// Python faces of tests._machinery. Everything that may wait releases the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds Communicator, MockNetwork, make_in_process_group, make_shm_communicator, make_relay_group
/// and stress.
void bind_communicators(pybind11::module_& module);

/// Adds MpiTransfer, MpiEndpoint and make_mpi_endpoint.
void bind_mpi_endpoints(pybind11::module_& module);

/// Adds the parts of the engine that decide without data: the order of a pipeline's steps, and the
/// autotuner's model, clock and schedule.
void bind_schedules(pybind11::module_& module);

/// Adds allow_faults, order_fault and fault_steps. `engine`: torch_cgx._C, whose process groups get
/// the faults.
void bind_faults(pybind11::module_& module, const pybind11::module_& engine);

/// Adds real_parameter, since no setting of a group is a real number.
void bind_parameters(pybind11::module_& module);

}  // namespace cgx
