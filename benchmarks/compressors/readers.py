"""Values out of the bytes of a file, for the formats of the sets in `packages.py`.

Each gives the values, and the value in them that stands for "no value", if there is one.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterable

import numpy as np
import torch

Found = tuple[torch.Tensor, float | None]

_NIFTI_VALUES = 352  # where they start, after a header of 348 bytes and its extension's mark
_NIFTI_UINT8 = 2


def netcdf(content: bytes, variable: str) -> Found:
    """A variable as it is stored, without dimensions of one."""
    from netCDF4 import Dataset  # type: ignore[import-not-found]

    with Dataset("in memory", memory=content) as dataset:
        dataset.set_auto_maskandscale(False)
        stored = dataset.variables[variable]
        values = np.squeeze(stored[:])
        fill = getattr(stored, "_FillValue", None)
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if fill is None or not (values == fill).any():
        return torch.from_numpy(values), None
    return torch.from_numpy(values), float(fill)


def nifti(content: bytes) -> Found:
    """The voxels of a NIfTI-1 file of bytes, gzipped; the last dimension is the fastest."""
    raw = gzip.decompress(content)
    dimensions = struct.unpack_from("<8h", raw, 40)
    (kind,) = struct.unpack_from("<h", raw, 70)
    if kind != _NIFTI_UINT8:
        raise ValueError(f"values of NIfTI's type {kind} instead of {_NIFTI_UINT8}, uint8")
    shape = dimensions[dimensions[0] : 0 : -1]
    values = np.frombuffer(raw, np.uint8, offset=_NIFTI_VALUES, count=int(np.prod(shape)))
    return torch.from_numpy(values.reshape(shape).copy()), None


def checkpoint(content: bytes, dtype: torch.dtype, most: int) -> Found:
    """A state dict of torch.save: its first `most` values in this dtype."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return _joined(state.values())[:most].to(dtype).contiguous(), None


def torchscript(content: bytes) -> Found:
    module = torch.jit.load(io.BytesIO(content), map_location="cpu")  # type: ignore[no-untyped-call]
    return _joined(module.state_dict().values()), None


def safetensors(content: bytes) -> Found:
    from safetensors.torch import load  # type: ignore[import-not-found]

    # By name: the package gives them in another order in each process.
    return _joined(tensor for _, tensor in sorted(load(content).items())), None


def onnx(content: bytes) -> Found:
    """All initializers of float32."""
    import onnx as package  # type: ignore[import-not-found]

    stored = package.load_from_string(content).graph.initializer
    arrays = (package.numpy_helper.to_array(one) for one in stored)
    return _joined(torch.from_numpy(a.copy()) for a in arrays if a.dtype == np.float32), None


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Those of floating point, flat, one after another, as float32."""
    return torch.cat([t.detach().reshape(-1).float() for t in tensors if t.is_floating_point()])
