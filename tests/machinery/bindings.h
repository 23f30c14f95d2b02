// Python faces of tests._machinery. Everything that may wait releases the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds Communicator, MockNetwork, make_in_process_group, make_shm_communicator, make_relay_group
/// and stress.
void bind_communicators(pybind11::module_& module);

/// Adds MpiTransfer, MpiEndpoint and make_mpi_endpoint.
void bind_mpi_endpoints(pybind11::module_& module);

/// Adds codec_encode, codec_decode and the operations that codecs share, on raw addresses: these are
/// trusted. dtype codes: 0 float32, 1 float16, 2 bfloat16. Adds pin_cpu_level, too. `engine`:
/// torch_cgx._C, whose level is pinned with it.
void bind_codecs(pybind11::module_& module, const pybind11::module_& engine);

/// Adds simulate_shards, on raw addresses, and describe_plan. Both take the keyword arguments of
/// csrc/bindings/simulation.h.
void bind_plans(pybind11::module_& module);

/// Adds the parts of the engine that decide without data: the order of a pipeline's steps, and the
/// autotuner's clock and schedule.
void bind_schedules(pybind11::module_& module);

/// Adds allow_faults, order_fault and fault_steps. `engine`: torch_cgx._C, whose process groups get
/// the faults.
void bind_faults(pybind11::module_& module, const pybind11::module_& engine);

/// Adds real_parameter, since no setting of a group is a real number.
void bind_parameters(pybind11::module_& module);

}  // namespace cgx
