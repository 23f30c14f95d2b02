"""torch_cgx.compat.cuda_float_compress on tensors of a GPU: the payloads, values and errors of the
CPU. For the fake device (tests/device) and for a GPU (tests/gpu).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounded.compat import cuda_float_compress_model as model
from tests.bounded.compat.cuda_float_compress_calls import data_of, tensor_of
from torch_cgx.compat import _stages
from torch_cgx.compat.cuda_float_compress import (
    CuszplusError,
    cuszplus_compress,
    cuszplus_decompress,
)

SIZES = [*range(0, 401, 7), 127, 128, 129, 8191, 8193, 32767, 32768, 32769, 65536, 131073, 200000]


def gaussian(n, scale=1.0):
    return torch.randn(n, generator=torch.Generator().manual_seed(n)) * scale


def same_bits(a, b):
    return torch.equal(a.cpu().view(torch.int32), b.cpu().view(torch.int32))


def check(x, max_error, **options):
    """x: on the CPU."""
    payload = cuszplus_compress(x, max_error, **options)
    made = cuszplus_compress(x.to("cuda"), max_error, **options)
    assert made.device.type == "cpu" and torch.equal(made, payload), (x.shape, max_error)
    y = cuszplus_decompress(payload, torch.device("cuda"))
    assert y.is_cuda and y.shape == (x.numel(),)
    assert same_bits(y, cuszplus_decompress(payload, "cpu")), (x.shape, max_error)
    return payload


def check_refused(call):
    """call(device): the same error on the CPU and on the GPU."""
    with pytest.raises(CuszplusError) as here:
        call("cpu")
    with pytest.raises(CuszplusError) as there:
        call("cuda")
    assert str(there.value) == str(here.value)
    return str(here.value)


def check_compress_refused(x, max_error, **options):
    return check_refused(lambda device: cuszplus_compress(x.to(device), max_error, **options))


def check_sizes(rank=0, world_size=1):
    for i, n in enumerate(SIZES):
        check(gaussian(n, (0.02, 1e5)[i % 2]), 1e-3, strict=True)
    check(torch.zeros(10**6), 1e-4)
    assert cuszplus_compress(torch.zeros(0, 3, device="cuda"), 1e-4).numel() == 25


def check_values(rank=0, world_size=1):
    random = np.random.default_rng(0)
    for max_error in (1e-4, 0.3, 1e-7, 5e-8, 2.0**-127, 2.0**-30, 1e30, 1.7e38):
        halves = (random.integers(-500, 500, 3000) + 0.5) * 2 * min(max_error, 1e34)
        x = torch.from_numpy(halves).float()
        x[::7] *= 1 + 2.0**-23
        x[5::50] = -0.0
        x[6::50] = 2.0**-149
        x[7::50] = -(2.0**-130)
        check(x, max_error)
    # Another step than the original's, and values that no step brings within the bound.
    for magnitude in (1e3, 1e4, 1e5):
        check(gaussian(5000).clamp(-1, 1) * magnitude, 1e-4, strict=True)
    far = torch.from_numpy(random.uniform(270000, 429000, 70000)).float()
    step = model.parts(data_of(check(far, 1e-4)))[1]
    assert step == np.float32(2e-4)
    assert "cannot bring within" in check_compress_refused(far, 1e-4, strict=True)


def check_layouts(rank=0, world_size=1):
    x = gaussian(60 * 70).view(60, 70)
    there = x.to("cuda")
    flat = cuszplus_compress(x, 1e-4)
    for view in (there, there.view(3, 20, 70).requires_grad_(), torch.nn.Parameter(there)):
        assert torch.equal(cuszplus_compress(view, 1e-4), flat)
    for cut in (
        lambda x: x.t(),
        lambda x: x[::2, ::3],
        lambda x: x[:1].expand(5, 70),
        lambda x: x[3, 4],
        lambda x: x[:0],
        lambda x: x.view(-1)[1:],
        lambda x: torch.complex(x, x).conj().imag,  # its memory holds x
    ):
        assert torch.equal(cuszplus_compress(cut(there), 1e-4), cuszplus_compress(cut(x), 1e-4))
    odd = torch.empty(0, device="cuda")
    odd.set_(torch.zeros(13, dtype=torch.uint8, device="cuda").untyped_storage()[1:], 0, (3,))
    assert odd.data_ptr() % 4 == 1
    assert torch.equal(cuszplus_compress(odd, 1e-4), cuszplus_compress(torch.zeros(3), 1e-4))


def check_pieces(rank=0, world_size=1):
    """More values than a launch has; a part of the last block is missing."""
    n = _stages.ON_GPU + 40000
    x = gaussian(n, 0.02)
    check(x, 1e-3)
    for bad in (float("nan"), float("inf"), 5e6):
        for place in (3, _stages.ON_GPU - 1, _stages.ON_GPU, n - 1):
            broken = x.clone()
            broken[place] = broken[-1] = bad
            assert f"value {place} is" in check_compress_refused(broken, 1e-3)


def check_errors(rank=0, world_size=1):
    x = gaussian(70000)
    for bad in (float("nan"), float("inf"), float("-inf"), 430000, -430000, -3e38):
        for place in (0, 1, 31, 32, 130, 32767, 69999):
            broken = x.clone()
            broken[place] = broken[-1] = bad
            for strict in (False, True):
                assert f"value {place} is" in check_compress_refused(broken, 1e-4, strict=strict)
    for number, place in enumerate((0, 129, 40000)):
        broken = x.clone()
        broken[place] = 300000.1 + number
        assert f"value {place} is" in check_compress_refused(broken, 1e-4, strict=True)
        check(broken, 1e-4)
    for max_error in (0, -1, float("nan"), 1e39):
        check_compress_refused(x, max_error)
    check_compress_refused(x.half(), 1e-4)
    check_compress_refused(x.double(), 1e-4)
    payload = cuszplus_compress(x, 1e-4)
    for at in range(0, payload.numel(), payload.numel() // 29):
        bad = payload.clone()
        bad[at] ^= 17
        if 4 <= at < 12:
            continue  # another count or step
        check_refused(lambda device, bad=bad: cuszplus_decompress(bad, device))
    for cut in (0, 11, 12, 20, payload.numel() - 1):
        check_refused(lambda device, cut=cut: cuszplus_decompress(payload[:cut], device))
    with pytest.raises(RuntimeError, match=r"compressed is on the device cuda:0, allowed: cpu"):
        cuszplus_decompress(payload.to("cuda"), "cuda")


def check_any_words(rank=0, world_size=1):
    """Payloads of others, with any words and steps."""
    random = np.random.default_rng(1)
    for n in (1, 130, 32768, 40000):
        raw = random.integers(0, 2**32, _stages.raw_words(n), np.uint32)
        for step in (1.0, 2e-4, 2.0**-149, 2.0**127):
            payload = tensor_of(model.payload(raw, n, step))
            y = cuszplus_decompress(payload, "cuda")
            assert same_bits(y, cuszplus_decompress(payload, "cpu")), (n, step)


def check_flush_to_zero(rank=0, world_size=1):
    """Of the calling thread: changes nothing. The inverse of the greatest step is subnormal."""
    cases = [(gaussian(3000) * 1e-37, 6e-39), (torch.linspace(-1, 1, 3000) * 3e38, 1.6e38)]
    payloads = [cuszplus_compress(x, max_error) for x, max_error in cases]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush to zero")
    try:
        for (x, max_error), payload in zip(cases, payloads, strict=True):
            there = torch.from_numpy(x.numpy()).to("cuda")
            assert torch.equal(cuszplus_compress(there, max_error), payload)
    finally:
        torch.set_flush_denormal(False)


# Jobs as in tests/distributed.py.
CASES = [
    check_sizes,
    check_values,
    check_layouts,
    check_pieces,
    check_errors,
    check_any_words,
    check_flush_to_zero,
]
