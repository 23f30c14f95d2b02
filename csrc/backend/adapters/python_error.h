// Engine errors in a form that torch turns into the right Python class.
#pragma once

#include <exception>
#include <string>

#include "comm/failure.h"

namespace cgx {

/// Wraps an engine error (cgx::Error) so that Work.wait() and Future.wait() throw its Python class:
/// torch, which binds them, turns all exceptions but its own kind into RuntimeError. Returns any
/// other exception unchanged.
std::exception_ptr for_python(std::exception_ptr error);

/// Issues a UserWarning in the calling program. Throws nothing, also where its filters turn the
/// warning into an error: calls of other ranks wait for this one. Takes Python's lock.
void warn_in_python(const std::string& text);

/// The error of a failure with that text, wrapped in the same way.
std::exception_ptr for_python(const Failure& failure, const std::string& what);

/// Registers a translator for bindings in which torch does not translate exceptions.
void register_python_error_translator();

}  // namespace cgx
