#include "bindings/future.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace py = pybind11;

namespace cgx {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A communication hook returns a future of one tensor; the future of a work holds a list. Converted
// here because Python's Future.then() turns any exception of a failed work into a RuntimeError.
py::object tensor_future(const WorkPtr& work, const py::object& tensor) {
  auto list = work->getFuture();
  // DistributedDataParallel takes the result of a hook of Python as an object of Python.
  const c10::IValue value = torch::jit::toIValue(tensor, c10::PyObjectType::get());
  auto single = list->then(
      [value](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        return value;
      },
      c10::PyObjectType::get());
  return torch::jit::toPyObject(c10::IValue(std::move(single)));
}

}  // namespace

void bind_future(py::module_& m) {
  m.def(
      "tensor_future", &tensor_future, py::arg("work"), py::arg("tensor"),
      "A torch.futures.Future that holds `tensor` once `work`, which wrote it, has ended, or what "
      "`work` has thrown, as it is.");
}

}  // namespace cgx
