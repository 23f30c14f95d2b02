"""What the operators for activations do on a CUDA device, against the CPU's: the same cases for the
fake device (tests/device/test_gpu_activations.py) and for a GPU (tests/gpu). Runs in a process that
has the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torch_cgx import activations
from torch_cgx.activations import _operators, compress_saved, functional

ops = torch.ops.torch_cgx
DTYPES = _operators.FLOATING
SIZES = (*range(0, 70, 3), 255, 256, 2047, 2048, 2049, 5001)
TABLES = (
    ([0.0], 2),
    ([-1.0, 0.0, 1.0], 4),
    ([-1.5, -0.5, 0.1, 0.5, 1.0, 1.5, 2.0], 8),
    ([0, 6], 2),
)


def _values(n: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 2).to(dtype)


def levels() -> None:
    """Codes and products, from memory of any alignment; NaN, infinities and zeros."""
    for dtype in DTYPES:
        for n in SIZES:
            for borders, count in TABLES:
                whole = _values(n + 1, dtype)
                if n > 8:
                    whole[2:6] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
                for x in (whole[:n], whole[1:]):
                    for magnitude in (False, True):
                        options = {"magnitude": magnitude and borders[0] >= 0}
                        wanted = ops.level_encode(x, borders, count, **options)
                        there = whole.cuda()[x.storage_offset() :][:n]
                        codes = ops.level_encode(there, borders, count, **options)
                        assert torch.equal(codes.cpu(), wanted), (dtype, n, count)
                        level = [0.5 * i - 0.7 for i in range(count)]
                        product = ops.level_multiply(there, codes, level).cpu()
                        exact = ops.level_multiply(x, wanted, level)
                        assert torch.equal(product.nan_to_num(7), exact.nan_to_num(7))


def dropout() -> None:
    for dtype in DTYPES:
        for n in SIZES:
            x = _values(n, dtype)
            wanted = ops.dropout(x, 0.3, 12345)
            assert torch.equal(ops.dropout(x.cuda(), 0.3, 12345).cpu(), wanted), (dtype, n)


def functions() -> None:
    """Gradients of the CPU; NaN makes NaN of the whole gradient, with one byte more kept."""
    for name in ("gelu", "tanh", "relu6", "hardtanh", "softplus"):
        x = _values(3000, torch.float32)
        there, here = x.cuda().requires_grad_(), x.clone().requires_grad_()
        function: Callable[..., torch.Tensor] = getattr(functional, name)
        y = function(there)
        grad = _values(3000, torch.float32)
        y.backward(grad.cuda())
        function(here).backward(grad)
        assert there.grad is not None and here.grad is not None
        assert torch.equal(there.grad.cpu(), here.grad), name
    x[5] = math.nan
    there = x.cuda().requires_grad_()
    functional.gelu(there).sum().backward()
    assert there.grad is not None and bool(there.grad.isnan().all())


def saved() -> None:
    """compress_saved with wire codecs; masks and indices by torch's operators."""
    weight = torch.ones(4000, device="cuda", requires_grad=True)
    x = _values(4000, torch.float32).cuda()
    mask = x > 0
    context = compress_saved({"codec": "maxmin", "bits": 8})
    with context:
        loss = (weight * x).sum() + torch.where(mask, weight, 0 * weight).sum()
    (found,) = torch.autograd.grad(loss, weight)
    assert float((found - x - mask.float()).abs().max()) < 0.05
    assert context.bytes_kept < context.bytes_saved / 3
    layer = activations.GELU(bits=2).cuda()
    assert layer(x).device == x.device
