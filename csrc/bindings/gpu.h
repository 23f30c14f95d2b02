// Python bindings of the codecs on tensors of a GPU: what torch_cgx/codecs.py calls.
#pragma once

#include <pybind11/pybind11.h>

namespace cgx {

/// Adds gpu_codec_encode and gpu_codec_decode. They release the GIL and do not wait for the device.
/// Errors: ValueError (ConfigError), ResourceError, RuntimeError in the capture of a graph.
void bind_gpu(pybind11::module_& module);

}  // namespace cgx
