// Python bindings for tensors of a GPU: what torch_cgx/codecs.py and torch_cgx/bounded call.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds gpu_codec_encode, gpu_codec_decode, gpu_bounded_look and its likes. They release the GIL and do not wait for the device.
/// Errors: ValueError (ConfigError), ResourceError, RuntimeError in the capture of a graph.
void bind_gpu(pybind11::module_& module);

}  // namespace cgx
