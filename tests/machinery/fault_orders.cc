#include <string>

#include "base/error.h"
#include "machinery/bindings.h"
#include "machinery/faults.h"

namespace py = pybind11;

namespace cgx {
namespace {

Fault fault_of(const std::string& name) {
  if (name == "none") return Fault::kNone;
  if (name == "kill") return Fault::kKill;
  if (name == "stop") return Fault::kStop;
  if (name == "error") return Fault::kError;
  if (name == "alter") return Fault::kAlter;
  if (name == "truncate") return Fault::kTruncate;
  if (name == "send more") return Fault::kSendMore;
  if (name == "kill receiving") return Fault::kKillReceiving;
  if (name == "receive more") return Fault::kReceiveMore;
  if (name == "kill sending") return Fault::kKillSending;
  throw ConfigError(str_of("fault='", name,
                           "'; one of none, kill, stop, error, alter, truncate, send more, "
                           "kill receiving, receive more, kill sending"));
}

CommunicatorHook& hook_of(const py::module_& engine) {
  const py::object capsule = engine.attr("_communicator_hook");
  void* hook = PyCapsule_GetPointer(capsule.ptr(), kCommunicatorHookCapsule);
  if (hook == nullptr) throw py::error_already_set();
  return *static_cast<CommunicatorHook*>(hook);
}

}  // namespace

void bind_faults(py::module_& module, const py::module_& engine) {
  CommunicatorHook& hook = hook_of(engine);
  module.def(
      "allow_faults", [&hook](bool allow) { FaultPlan::allow(hook, allow); },
      py::arg("allow") = true);
  module.def(
      "order_fault",
      [](const std::string& fault, int64_t step) { FaultPlan::order(fault_of(fault), step); },
      py::arg("fault"), py::arg("step") = 0);
  module.def("fault_steps", &FaultPlan::steps);
}

}  // namespace cgx
