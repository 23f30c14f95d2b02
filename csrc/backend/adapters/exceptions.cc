#include "backend/adapters/exceptions.h"

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"

namespace py = pybind11;

namespace cgx {
namespace {

// Classes live as long as the interpreter: translators may run during its shutdown.
struct Classes {
  PyObject* error = nullptr;
  PyObject* timeout = nullptr;
  PyObject* peer_lost = nullptr;
  PyObject* aborted = nullptr;
  PyObject* mismatch = nullptr;
  PyObject* non_finite = nullptr;
  PyObject* resource = nullptr;
};

Classes& classes() {
  static Classes value;
  return value;
}

PyObject* add_class(py::module_& module, const char* name, const char* doc,
                    const py::object& bases) {
  // Shown in tracebacks and found by pickle under the public package, which exports them.
  const std::string qualified = std::string("torch_cgx.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  module.add_object(name, py::reinterpret_borrow<py::object>(made));
  return made;
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetString(python_class_of(error), error.what());
  } catch (const ConfigError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  }
}

}  // namespace

PyObject* python_class_of(const Error& error) {
  const Classes& all = classes();
  if (dynamic_cast<const TimeoutError*>(&error)) return all.timeout;
  if (dynamic_cast<const PeerLostError*>(&error)) return all.peer_lost;
  if (dynamic_cast<const AbortedError*>(&error)) return all.aborted;
  if (dynamic_cast<const MismatchError*>(&error)) return all.mismatch;
  if (dynamic_cast<const NonFiniteError*>(&error)) return all.non_finite;
  if (dynamic_cast<const ResourceError*>(&error)) return all.resource;
  return all.error;
}

void register_errors(py::module_& module) {
  const py::object runtime_error = py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
  const py::object builtin_timeout = py::reinterpret_borrow<py::object>(PyExc_TimeoutError);
  Classes& all = classes();
  all.error = add_class(module, "CgxError",
                        "Something failed while ranks talked to each other; the group is broken.",
                        runtime_error);
  const py::object base = py::reinterpret_borrow<py::object>(all.error);
  all.timeout = add_class(module, "TimeoutError", "A wait passed its deadline.",
                          py::make_tuple(base, builtin_timeout));
  all.peer_lost =
      add_class(module, "PeerLostError", "A peer has ended or cannot be reached.", base);
  all.aborted =
      add_class(module, "AbortedError", "The group was aborted, on this or another rank.", base);
  all.mismatch = add_class(module, "MismatchError", "Ranks disagree on what they are doing.", base);
  all.non_finite =
      add_class(module, "NonFiniteError", "A NaN or an Inf under nonfinite=\"raise\".", base);
  all.resource = add_class(module, "ResourceError",
                           "The machine lacks something, e.g. room in /dev/shm.", base);
  py::register_local_exception_translator(translate);
}

void adopt_errors(const py::module_& engine) {
  Classes& all = classes();
  const std::pair<PyObject*&, const char*> names[] = {
      {all.error, "CgxError"},          {all.timeout, "TimeoutError"},
      {all.peer_lost, "PeerLostError"}, {all.aborted, "AbortedError"},
      {all.mismatch, "MismatchError"},  {all.non_finite, "NonFiniteError"},
      {all.resource, "ResourceError"},
  };
  for (const auto& [slot, name] : names) {
    slot = py::object(engine.attr(name)).release().ptr();
  }
  py::register_local_exception_translator(translate);
}

}  // namespace cgx
