// torch_cgx._C: the one extension module of the package.
#include <pybind11/pybind11.h>

#include "backend/bind_codec.h"
#include "backend/bind_comm.h"
#include "backend/bind_engine.h"
#include "backend/bind_errors.h"
#include "backend/bind_future.h"
#include "backend/bind_gpu.h"
#include "backend/bind_group.h"
#include "backend/bind_mpi.h"
#include "backend/bind_trouble.h"
#include "backend/bind_tuning.h"
#include "backend/profiler_ranges.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The engine of torch_cgx; use it through the torch_cgx package.";
  cgx::register_errors(m);
  cgx::bind_codec(m);
  cgx::bind_gpu(m);
  cgx::bind_engine(m);
  cgx::bind_comm(m);
  cgx::bind_group(m);
  cgx::bind_future(m);
  cgx::bind_mpi(m);
  cgx::bind_trouble(m);
  cgx::bind_tuning(m);
  cgx::show_ranges_to_torch();
}
