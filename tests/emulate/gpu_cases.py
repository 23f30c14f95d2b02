"""What casts do on a CUDA device, against the CPU's: the same cases for the fake device
(tests/device/test_gpu_emulate.py) and for a GPU (tests/gpu). Runs in a process that has the device.
"""

from __future__ import annotations

import torch

from tests.codec.gpu_cases import SHIFTS, on_device
from torch_cgx import emulate

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOATS = [name for name in emulate.presets() if isinstance(emulate.preset(name), emulate.Float)]
BLOCKS = [name for name in emulate.presets() if isinstance(emulate.preset(name), emulate.Block)]
ROUNDINGS = ("nearest", "zero", "stochastic")
SHAPES = ((), (0,), (1,), (33,), (2049,), (5, 96), (7, 45), (3, 40, 70), (2, 300))
AXES = ((16, 16), (2, 3), (128, 128), (1, 1))


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of many magnitudes, with NaN and infinities in few blocks."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x * torch.exp2(torch.randint(-40, 40, shape, generator=generator).double() / 8)
    if x.numel() > 400:
        odd = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 1e38, -1e38]
        x.view(-1)[300 : 300 + len(odd)] = torch.tensor(odd, dtype=torch.float64)
    return x.to(dtype)


def check(x: torch.Tensor, format: emulate.Format, shift: int = 0) -> None:
    """One cast on the device has the CPU's bits; so have its counts, and its sums nearly."""
    there = on_device(x.reshape(-1), "cuda", shift).view(x.shape)
    wanted, stated = emulate.cast(x, format, seed=3, step=7, statistics=True)
    found = emulate.cast(there, format, seed=3, step=7)
    ints = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    assert found.device == there.device and found.dtype == x.dtype
    assert torch.equal(found.cpu().view(ints), wanted.view(ints)), (str(format), x.dtype, x.shape)
    with_counts, counted = emulate.cast(there, format, seed=3, step=7, statistics=True)
    assert torch.equal(with_counts.cpu().view(ints), wanted.view(ints)), (str(format), x.shape)
    assert torch.equal(counted.numbers[:5], stated.numbers[:5]), (str(format), counted, stated)
    assert torch.allclose(counted.numbers, stated.numbers, rtol=1e-9), (str(format), x.dtype)
    emulate.cast(there, format, seed=3, step=7, out=there)
    assert torch.equal(there.cpu().view(ints), wanted.view(ints)), (str(format), "in place")


def floats() -> None:
    for k, name in enumerate(FLOATS):
        for i, dtype in enumerate(DTYPES):
            if (i + k) % 2:  # each format with two of the types
                continue
            x = values((3000 + 7 * k,), dtype, k)
            check(x, emulate.preset(name), SHIFTS[(k + i) % 4])
            for n in (k, 8 * k + i, 401 - k) if i < 2 else ():
                check(x[:n].clone(), emulate.preset(name))
    for rounding in ROUNDINGS:
        for dtype in DTYPES:
            x = values((5000,), dtype, 1)
            for changes in (
                {},
                {"subnormals": False},
                {"overflow": "saturate"},
                {"random_bits": 8},
            ):
                check(x, emulate.preset("e5m2", rounding=rounding, **changes))
    for word, fraction in ((8, 4), (16, 20), (4, -2)):
        for rounding in ROUNDINGS:
            check(values((5000,), torch.float32, 3), emulate.Fixed(word, fraction, rounding))
    cpd = emulate.Float(5, 2, variant="cpd")
    for dtype in DTYPES:
        check(values((5000,), dtype, 2), cpd)


def blocks() -> None:
    for k, name in enumerate(BLOCKS):
        for i, shape in enumerate(SHAPES):
            dtype = DTYPES[(k + i) % 4]
            format = emulate.preset(name, rounding=ROUNDINGS[(k + i) % 3])
            check(values(shape, dtype, k), format, SHIFTS[(k + i) % 4])
    for i, axis in enumerate(AXES):
        for name in ("mxfp4", "nvfp4", "fp8_block128"):
            check(values((2, 50, 70), DTYPES[i], i), emulate.preset(name, axis=axis))
    for rounding in ("floor", "ceil", "even", "rceil"):
        x = values((64, 320), torch.float32, 5)
        check(x, emulate.preset("mxfp8_e4m3", scale_rounding=rounding))
        check(x, emulate.preset("mxfp8_e4m3", size=17, scale_rounding=rounding))
    for n in range(0, 401, 23):
        check(values((n,), torch.bfloat16, n), emulate.mxfp4)
    check(values((40, 3, 20), torch.float32, 6), emulate.preset("mxfp4", axis=0))
    check(torch.zeros(100), emulate.nvfp4)
    for scale in ("absmax", "power"):
        check(values((30, 200), torch.float32, 8), emulate.Integer(8, scale, per="block", size=64))


def _finite(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return values(shape, dtype, seed).nan_to_num(0.5, 2.0, -3.0)


def integers() -> None:
    for i, scale in enumerate(("absmax", "minmax", "power")):
        for k, per in enumerate(("tensor", "row", "channel", "block")):
            for j, shape in enumerate(SHAPES):
                dtype = DTYPES[(i + j + k) % 4]
                rounding = ROUNDINGS[(i + j) % 3]
                format = emulate.Integer(8 - k, scale, per=per, size=48, rounding=rounding)
                check(_finite(shape, dtype, j), format, SHIFTS[(i + k) % 4])
            # A NaN or an infinity is the ruin of its own group.
            check(values((40, 90), DTYPES[k], 9), emulate.Integer(4, scale, per=per, size=50))


def measured() -> None:
    """Formats that measure the whole tensor: blocks of 4096 values, sixteen of which are joined
    first.
    """
    shapes = (*SHAPES, (7,), (8,), (4095,), (4097,), (65_600,), (3, 70_000))
    formats = [
        *(emulate.ZScore(statistics=s) for s in ("full", "sampled", "range")),
        emulate.ZScore(4, 6, rounding="nearest", all_positive=True),
        emulate.ZScore(5, 7, rounding="zero", clamp=False),
        *(emulate.S2FP8(rounding=r) for r in ROUNDINGS),
    ]
    for i, format in enumerate(formats):
        for k, shape in enumerate(shapes):
            x = _finite(shape, DTYPES[(i + k) % 4], i + k)
            check(x, format, SHIFTS[(i + k) % 4])
        check(values((9000,), DTYPES[i % 4], i), format)
        check(torch.zeros(5000), format)
        check(torch.full((5000,), 3.5), format)
        check(torch.randn(20_000, generator=torch.Generator().manual_seed(i)) * 1e-6, format)


def products():
    """Sums in formats run torch's operations, with the CPU's bits."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 5, 40, generator=generator)
    b = torch.randn(40, 7, generator=generator)
    ways = [{"accumulate": "hopper14"}, {"accumulate": "e4m3fn", "kahan": True}]
    ways += [{"accumulate": "bf16", "order": "blocked", "block": 7}, {"accumulate": "e5m2"}]
    for how in ways:
        expected = emulate.matmul(a, b, inputs="e4m3fn", **how)
        found = emulate.matmul(a.to("cuda"), b.to("cuda"), inputs="e4m3fn", **how)
        assert torch.equal(found.cpu(), expected), how


def trainings():
    """The same losses as on the CPU, but for the order of sums."""
    x, y = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4

    def losses(device, recipe):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found = []
        with emulate.apply(model, optimizer, recipe, first_last="cast"):
            for _ in range(3):
                output = model(x.to(device))
                loss = torch.nn.functional.cross_entropy(output, y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    for recipe in ("fp8_delayed", "fp8_current", "mxfp8", "nvfp4", "cpd(4,3)"):
        expected = losses("cpu", recipe)
        found = losses("cuda", recipe)
        assert all(abs(a - b) < 0.02 for a, b in zip(found, expected, strict=True)), recipe
