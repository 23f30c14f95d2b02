"""Blocks against torchao: the MX formats with each rounding of scales, and NVFP4. Skipped where it
is not installed; `make bench-peers` installs it into .venv-emulate.
"""

from __future__ import annotations

import pytest
import torch

from torch_cgx import emulate

mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")

ELEMENTS = {
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp4": getattr(torch, "float4_e2m1fn_x2", None),
}


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(400, 32, generator=generator)
    powers = torch.exp2(torch.randint(-100, 100, (400, 1), generator=generator).float())
    return torch.cat([plain, plain.flip(0) * powers, torch.zeros(1, 32)])


@pytest.mark.parametrize("rounding", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_mx(name, rounding):
    x = _values()
    element = ELEMENTS[name]
    scale, data = mx.to_mx(x, element, 32, mx.ScaleCalculationMode(rounding))
    wanted = mx.to_dtype(data, scale, element, 32, torch.float32)
    assert torch.equal(emulate.cast(x, emulate.preset(name, scale_rounding=rounding)), wanted)


def test_nvfp4():
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(128, 64, generator=generator)
    for w in (x, x * torch.exp2(torch.randint(-12, 0, (128, 1), generator=generator).float())):
        of_tensor = nv.per_tensor_amax_to_scale(w.abs().max())
        scales, codes = nv.nvfp4_quantize(w, 16, of_tensor)
        elements = kernels.f4_unpacked_to_f32(kernels.unpack_uint4(codes.view(torch.uint8)))
        scales = scales.float().reshape(128, -1, 1) * of_tensor
        wanted = (elements.reshape(128, -1, 16) * scales).reshape(128, 64)
        assert torch.equal(emulate.cast(w, "nvfp4"), wanted)
