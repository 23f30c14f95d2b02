// torch_cgx._C: the one extension module of the package.
#include <pybind11/pybind11.h>

#include "backend/adapters/exceptions.h"
#include "backend/work/profiler_ranges.h"
#include "base/log.h"
#include "bindings/bdi.h"
#include "bindings/bounded.h"
#include "bindings/codec.h"
#include "bindings/compat.h"
#include "bindings/diagnostics.h"
#include "bindings/dtypes.h"
#include "bindings/emulation.h"
#include "bindings/engine.h"
#include "bindings/future.h"
#include "bindings/group.h"
#include "bindings/simulate.h"
#include "bindings/threads.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "The engine of torch_cgx; use it through the torch_cgx package.";
  if (py::module_::import("sys").attr("__stderr__").is_none()) cgx::log_nothing();
  cgx::register_errors(m);
  cgx::bind_dtypes(m);
  cgx::bind_codec(m);
  cgx::bind_bounded(m);
  cgx::bind_compat(m);
  cgx::bind_bdi(m);
  cgx::bind_emulation(m);
  cgx::bind_engine(m);
  cgx::bind_group(m);
  cgx::bind_simulate(m);
  cgx::bind_future(m);
  cgx::bind_threads(m);
  cgx::bind_diagnostics(m);
  cgx::show_ranges_to_torch();
}
