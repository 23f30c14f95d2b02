#include "backend/config/process_variables.h"

#include "base/error.h"
#include "codec/ops/level.h"
#include "device/driver.h"

namespace cgx {
namespace {

// torch_cgx/_kernels.py reads it.
const Parameter& kernels_variable() {
  static const auto* variable = new Parameter{
      .name = "kernels",
      .variable = "CGX_KERNELS",
      .kind = Parameter::Kind::kChoice,
      .fallback = "auto",
      .choices = "auto,nvrtc,hiprtc",
      .meaning =
          "GPU kernels: auto takes those built with the package where they fit; the others "
          "compile on first use"};
  return *variable;
}

}  // namespace

std::vector<const Parameter*> process_variables() {
  return {&cpu_level_variable(), &kernels_variable(), &device::cuda_variable()};
}

const Parameter& process_variable(const std::string& name) {
  for (const Parameter* variable : process_variables()) {
    if (variable->name == name) return *variable;
  }
  throw ConfigError("no process variable is called " + name);
}

}  // namespace cgx
