#include "backend/adapters/python_error.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <string>

#include "backend/adapters/exceptions.h"
#include "base/error.h"

namespace cgx {
namespace {

struct EngineError : torch::PyTorchError {
  EngineError(const std::string& text, PyObject* type) : torch::PyTorchError(text), type_(type) {}
  PyObject* python_type() override { return type_; }

 private:
  PyObject* type_;  // lives as long as the interpreter
};

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (EngineError& error) {
    PyErr_SetString(error.python_type(), error.what());
  }
}

}  // namespace

std::exception_ptr for_python(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(EngineError(e.what(), python_class_of(e)));
  } catch (...) {
    return error;
  }
}

void warn_in_python(const std::string& text) {
  const pybind11::gil_scoped_acquire gil;
  pybind11::module_::import("torch_cgx._warnings").attr("warn")(text);
}

std::exception_ptr for_python(const Failure& failure, const std::string& what) {
  try {
    throw_failure(failure, what);
  } catch (...) {
    return for_python(std::current_exception());
  }
}

void register_python_error_translator() { pybind11::register_exception_translator(translate); }

}  // namespace cgx
