// Engine errors in a form that torch turns into the right Python class.
#pragma once

#include <exception>
#include <string>

#include "comm/failure.h"

namespace cgx {

/// Work.wait() and Future.wait() are bound by torch, which knows the Python class only of its own
/// kind of exceptions and makes RuntimeError of all others. Wraps an engine error (cgx::Error)
/// accordingly; returns any other one as it is.
std::exception_ptr for_python(std::exception_ptr error);

/// A UserWarning of the calling program; throws where its filters make an error of it. Takes
/// Python's lock.
void warn_in_python(const std::string& text);

/// The error of a failure with that text, in such a form.
std::exception_ptr for_python(const Failure& failure, const std::string& what);

/// For places where torch does not translate itself.
void register_python_error_translator();

}  // namespace cgx
