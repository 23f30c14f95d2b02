"""torch_cgx.bounded on tensors of a GPU: the payloads and the values of the CPU. For the fake
device (tests/device/test_gpu_bounded.py) and for a GPU (tests/gpu/test_bounded.py).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounded import adversary, numbers
from torch_cgx import bounded

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def bits(tensor):
    return adversary.bits_of(tensor.cpu())


def check(x, **bound):
    """x: on the CPU."""
    there = x.to("cuda")
    payload = bounded.compress(x, **bound)
    made = bounded.compress(there, **bound)
    assert made.device.type == "cpu" and torch.equal(made, payload), (x.dtype, x.shape, bound)
    y = bounded.decompress(payload)
    back = bounded.decompress(payload, device="cuda")
    assert back.is_cuda and back.dtype == x.dtype and back.shape == x.shape
    assert (bits(back) == bits(y)).all(), (x.dtype, x.shape, bound)
    return payload


def gaussian(n, seed=0, scale=0.02):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)) * scale


def check_types(rank=0, world_size=1):
    x = gaussian(70_000)
    x[100:120] = torch.nan
    x[3000:3010] = -0.0
    x[5000] = 1e6
    for dtype in FLOATS:
        for bound in ({"max_error": 1e-4}, {"pointwise": 1e-2}, {"max_error": 0}):
            check(x.to(dtype), **bound)
        check(x.nan_to_num().to(dtype), relative=1e-3)
    for dtype in WHOLE:
        check((x.nan_to_num() * 1000).to(dtype))
    check(torch.complex(x[:3000], x[4000:7000]), max_error=1e-3)


def check_shapes(rank=0, world_size=1):
    for n in (0, 1, 2, 255, 256, 1023, 1024, 1025, 65535, 65536, 65537, 3 * 65536 + 5):
        check(gaussian(n, n), max_error=1e-4)
    smooth = torch.sin(torch.arange(200_000, dtype=torch.float64) * 1e-3)
    check(smooth, max_error=1e-4)
    check(smooth.float(), max_error=1e-4)
    check(gaussian(1).reshape(()), max_error=1e-4)
    check(torch.full((100_000,), 2.5), max_error=1e-4)
    check(torch.zeros(300_000), max_error=1e-4)
    noise = np.random.default_rng(0).integers(-(2**31), 2**31, 70_000)
    check(torch.from_numpy(noise).int())  # kept as it is
    check(torch.from_numpy(noise).int().view(torch.float32), max_error=1e-4)
    x = gaussian(60 * 50).view(60, 50)
    for view in (x.t(), x[::2, 1:], x[3], x[:, 4], x.flip(0), x[None].expand(3, 60, 50)):
        there = view.to("cuda")
        assert torch.equal(
            bounded.compress(there, max_error=1e-4), bounded.compress(view, max_error=1e-4)
        )
    weight = torch.nn.Parameter(x.to("cuda"))
    assert not bounded.compress(weight, max_error=1e-4).requires_grad


def check_targets(rank=0, world_size=1):
    """Parts, outputs, and many blocks."""
    x = gaussian(300 * 1000).view(300, 1000)
    payload = bounded.compress(x, max_error=1e-4)
    y = bounded.decompress(payload)
    for rows in (slice(0, 1), slice(70, 200), slice(60, 290, 7), slice(5, 5)):
        back = bounded.decompress(payload, device="cuda", rows=rows)
        assert back.is_cuda and torch.equal(back.cpu(), y[rows])
    out = torch.zeros(300, 1000, device="cuda")
    for device in (None, "cuda", out.device):
        version = out.zero_()._version
        assert bounded.decompress(payload, out, device) is out and torch.equal(out.cpu(), y)
        assert out._version > version
    wide = torch.zeros(1000, 300, device="cuda").t()  # not contiguous
    bounded.decompress(payload, wide)
    assert torch.equal(wide.cpu(), y)
    part = torch.zeros(130, 1000, device="cuda")
    bounded.decompress(payload, part, rows=slice(70, 200))
    assert torch.equal(part.cpu(), y[70:200])
    assert torch.equal(bounded.decompress(payload.to("cuda"), device="cuda").cpu(), y)


def check_errors(rank=0, world_size=1):
    x = gaussian(200_000)
    payload = bounded.compress(x, max_error=1e-4)
    for at in range(60, payload.numel(), payload.numel() // 23):
        bad = payload.clone()
        bad[at] ^= 17
        with pytest.raises(bounded.PayloadError) as here:
            bounded.decompress(bad)
        with pytest.raises(bounded.PayloadError) as there:
            bounded.decompress(bad, device="cuda")
        assert str(here.value) == str(there.value)
    with pytest.raises(ValueError, match="max_error is -1"):
        bounded.compress(x.to("cuda"), max_error=-1)
    with pytest.raises(ValueError, match="out is on"):
        bounded.decompress(payload, torch.zeros(200_000), device="cuda")


def check_numbers(rank=0, world_size=1):
    """What no encoder writes: the errors of the CPU."""
    for case in numbers.CASES:
        for payload, allowed in numbers.payloads(case):
            if allowed:
                back = bounded.decompress(payload, device="cuda")
                assert (bits(back) == bits(bounded.decompress(payload))).all(), case
                continue
            with pytest.raises(bounded.PayloadError) as here:
                bounded.decompress(payload)
            with pytest.raises(bounded.PayloadError) as there:
                bounded.decompress(payload, device="cuda")
            assert str(here.value) == str(there.value)


def check_adversary(rank, world_size, tensors, seed=11):
    for number in range(tensors):
        made = adversary.case(seed, number)
        try:
            bounded.compress(made.tensor, **made.bound)
        except ValueError as refused:
            with pytest.raises(ValueError) as there:
                bounded.compress(made.tensor.to("cuda"), **made.bound)
            assert str(there.value) == str(refused)
        else:
            check(made.tensor, **made.bound)


# Jobs as in tests/distributed.py.
CASES = [check_types, check_shapes, check_targets, check_errors, check_numbers]
