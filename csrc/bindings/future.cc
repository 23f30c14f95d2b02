#include "bindings/future.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace py = pybind11;

namespace cgx {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Keeps a Python function for threads that do not hold the GIL. Null if there is no function.
std::shared_ptr<py::object> shared_function(const py::object& function) {
  if (function.is_none()) return nullptr;
  return {new py::object(function), [](py::object* owned) {
            const py::gil_scoped_acquire gil;
            delete owned;
          }};
}

void call(const py::object& function) {
  const py::gil_scoped_acquire gil;
  try {
    function();
  } catch (const py::error_already_set& error) {  // its destructor needs the GIL
    throw std::runtime_error(error.what());
  }
}

// A communication hook returns a future of one tensor; the future of a work holds a list. Converted
// here because Python's Future.then() turns any exception of a failed work into a RuntimeError.
py::object tensor_future(const WorkPtr& work, const py::object& tensor, const py::object& ended) {
  auto list = work->getFuture();
  // DistributedDataParallel takes the result of a hook of Python as an object of Python.
  const c10::IValue value = torch::jit::toIValue(tensor, c10::PyObjectType::get());
  auto function = shared_function(ended);
  auto made = [&] {
    const py::gil_scoped_release no_gil;  // a complete future calls back at once
    return list->then(
        [value, function](c10::ivalue::Future& done) {
          if (function) call(*function);
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          return value;
        },
        c10::PyObjectType::get());
  };
  return torch::jit::toPyObject(c10::IValue(made()));
}

}  // namespace

void bind_future(py::module_& m) {
  m.def(
      "tensor_future", &tensor_future, py::arg("work"), py::arg("tensor"),
      py::arg("ended") = py::none(),
      "A torch.futures.Future that holds `tensor` once `work`, which wrote it, has ended, or what "
      "`work` has thrown, as it is. ended: called before that, whether the work has succeeded or "
      "not; on streams that follow the work, for tensors of a GPU.");
}

}  // namespace cgx
