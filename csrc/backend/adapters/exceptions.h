// The engine's exceptions as Python classes.
#pragma once

#include <pybind11/pybind11.h>

#include "base/error.h"

namespace cgx {

/// Adds CgxError(RuntimeError) and its subclasses TimeoutError (also a built-in TimeoutError),
/// PeerLostError, AbortedError, MismatchError, NonFiniteError and ResourceError to the module, and
/// translates C++ exceptions thrown by its functions into them. ConfigError becomes ValueError.
/// Call once, before other bindings.
void register_errors(pybind11::module_& module);

/// The same for another extension module, whose functions then raise the classes of `engine`: the
/// module that register_errors() was called for.
void adopt_errors(const pybind11::module_& engine);

/// The Python class (borrowed) of an engine error; RuntimeError's subclass CgxError at least.
PyObject* python_class_of(const Error& error);

}  // namespace cgx
