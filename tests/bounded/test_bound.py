"""The promise of torch_cgx.bounded, on tensors made to break it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import adversary
from torch_cgx import _C, bounded

# Outliers of some tensors are meant to make the others 0.
pytestmark = pytest.mark.filterwarnings("ignore:relative=.* of the range:UserWarning")

INF, NAN = math.inf, math.nan
FLOATS = adversary.FLOATS


def check(x: torch.Tensor, **bound: float) -> torch.Tensor:
    """What comes back, within the bound."""
    payload = bounded.compress(x, **bound)
    y = bounded.decompress(payload)
    assert adversary.violation(x, y, bound) is None
    return y


# In parts, so that several workers share them; 10^4 in all.
@pytest.mark.parametrize("part", range(4))
def test_adversarial_tensors(part: int) -> None:
    report = adversary.run(seed=7, first=2500 * part, count=2500)
    assert report.tensors == 2500
    assert report.violations == []
    expected = {*adversary.FLOATS, *adversary.COMPLEX, *adversary.WHOLE}
    assert set(report.dtypes) == expected


def test_the_large_run_prints_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class HereAtOnce:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> HereAtOnce:
            return self

        def __exit__(self, *_: object) -> None: ...
        def submit(self, function: Any, *arguments: int) -> HereAtOnce:
            self.value = function(*arguments)
            return self

        def result(self) -> adversary.Report:
            return self.value

    monkeypatch.setattr(adversary, "ProcessPoolExecutor", HereAtOnce)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert adversary.main(["--tensors", "30", "--seed", "5"]) == 0
    assert "30 tensors" in (text := capsys.readouterr().out) and " 0 violations" in text
    monkeypatch.setattr(adversary, "violation", lambda x, y, bound: "a fault")
    assert adversary.main(["--tensors", "2", "--seed", "5", "--first", "8"]) == 1
    text = capsys.readouterr().out
    assert "seed 5, tensor 8" in text and "a fault" in text and "2 violations" in text


def test_the_oracle_sees_faults() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, -0.0, NAN, INF, 1e-40, 3e38])
    for index, value, fault in (
        (0, 1.0 + 2e-3, True),
        (0, 1.0 + 5e-4, False),
        (1, 2.0, True),
        (2, -0.0, False),  # within the bound
        (3, 0.0, True),
        (4, 1.0, True),
        (5, 3e38, True),
        (5, -INF, True),
        (6, 0.0, False),  # within the bound
        (6, 1e-2, True),
        (7, INF, True),
        (0, NAN, True),
    ):
        y = x.clone()
        y[index] = value
        for bound in ({"max_error": 1e-3}, {"relative": 1e-3 / 6e38 * 2}):
            if "relative" in bound and index in (0, 7):
                continue
            found = adversary.violation(x, y, bound)
            assert (found is not None) == fault, (index, value, found)
        assert (
            (adversary.violation(x, y, {"max_error": 0.0}) is not None) or index == 4 and not fault
        )
    assert adversary.violation(x, x.double(), {"max_error": 1.0}) is not None
    assert adversary.violation(x, x[None], {"max_error": 1.0}) is not None
    whole = torch.tensor([1, 2], dtype=torch.int8)
    assert adversary.violation(whole, torch.tensor([1, 3], dtype=torch.int8), {}) is not None
    pointwise = {"pointwise": 0.1}
    assert adversary.violation(x, x * 1.09, pointwise) is None
    assert adversary.violation(x, x * 1.11, pointwise) is not None
    y = torch.where(x == x[6], x * 1.11, x)
    assert adversary.violation(x, y, pointwise) is not None  # the subnormal number
    # 40 % off, although 0.31 * 5 units is rounded to 2 units.
    least = torch.tensor([25e-324], dtype=torch.float64)
    assert adversary.violation(least, least * 0.6, {"pointwise": 0.31}) is not None
    assert adversary.violation(least, least * 0.8, {"pointwise": 0.31}) is None


# cuda_float_compress is off at these: its grid is as fine as float32 itself.
@pytest.mark.parametrize("scale", [1.0, 8.5, 1e4, 1e6])
@pytest.mark.parametrize("bound", [1e-4, 9.9e-4, 2.0**-10])
def test_where_neighbours_are_as_far_apart_as_the_bound(scale: float, bound: float) -> None:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.uniform(-scale, scale, 5000))
    for dtype in FLOATS:
        check(x.to(dtype), max_error=bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 100, 5000, 70_000])
def test_zeros_of_both_signs(dtype: torch.dtype, n: int) -> None:
    x = torch.zeros(n, dtype=dtype)
    x[::3] = -0.0
    for bound in ({"max_error": 0.0}, {"max_error": 1e-3}, {"pointwise": 1e-3}):
        assert torch.equal(torch.signbit(check(x, **bound)), torch.signbit(x))
    # With one value among them, low bits that none has set are shifted out.
    x[n // 2] = 2.0
    check(x, max_error=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_keep_their_bits(dtype: torch.dtype) -> None:
    """NaN with their payloads, too, which nobody promises."""
    raw = torch.arange(-(2**15), 2**15).to(torch.int16)
    if dtype.itemsize > 2:  # the same exponents and signs, and a few mantissas
        wide = adversary.BITS[dtype.itemsize]
        raw = raw.to(wide) << (8 * dtype.itemsize - 16) | torch.arange(2**16).to(wide) % 5
    x = raw.view(dtype)
    special = ~torch.isfinite(x) | ((x == 0) & torch.signbit(x))
    for bound in ({"max_error": 1e-3}, {"pointwise": 1e-2}, {"max_error": 1e30}):
        y = check(x, **bound)
        assert torch.equal(y.view(raw.dtype)[special], raw[special])


@pytest.mark.parametrize("dtype", [*FLOATS, *adversary.COMPLEX])
@pytest.mark.parametrize("name", ["max_error", "relative", "pointwise"])
def test_subnormal_numbers_have_the_bound_of_all_others(dtype: torch.dtype, name: str) -> None:
    """float16 gradients are often below 6.1e-5, where its normal numbers end."""
    part = adversary.COMPLEX.get(dtype, dtype)
    tiny = torch.finfo(part).smallest_normal
    x = torch.randn(60_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = (x * tiny / 4).to(part)
    x[x == 0] = tiny / 2
    x[::1000] = -0.0
    if dtype.is_complex:
        x = torch.view_as_complex(x.view(-1, 2))
    numbers = {"max_error": tiny * 2, "relative": 0.9, "pointwise": 0.9}
    y = check(x, **{name: numbers[name]})
    minus = adversary.bits_of(x) == adversary.bits_of(torch.tensor(-0.0, dtype=part))[0]
    assert (adversary.bits_of(x)[minus] == adversary.bits_of(y)[minus]).all() and minus.sum() == 60
    size = bounded.compress(x, **{name: numbers[name]}).numel()
    if name == "max_error" and part.itemsize < 8:
        assert x.nbytes > 200 * size
    elif (
        part.itemsize < 8 or name == "pointwise"
    ):  # some bits a value; 2^-1074 is no step of a grid
        assert x.nbytes > 3.5 * size * (1 if part.itemsize == 2 else 2)
    # Bounds as close as neighbours of the type, and closer.
    least = tiny * torch.finfo(part).eps
    for units in (0.4, 1, 1.5, 7):
        check(x, max_error=units * least)
    check(x, pointwise=2.0**-9)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_few_subnormal_numbers_do_not_make_all_values_longer(dtype: torch.dtype) -> None:
    x = torch.randn(65536, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[x == 0] = 1
    plain = bounded.compress(x, pointwise=1e-2).numel()
    x[::5000] = torch.finfo(dtype).smallest_normal / 2
    check(x, pointwise=1e-2)
    assert bounded.compress(x, pointwise=1e-2).numel() < plain * 1.01 + 200


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [0.25, 1e-3])
def test_subnormal_numbers_where_they_are_flushed(dtype: torch.dtype, scale: float) -> None:
    """The payloads and values of a thread that does not flush them."""
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.randn(8000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    some = x.clone()
    some[::50] *= tiny * scale
    for values in (some, x * tiny * scale):
        y = values.to(dtype)
        bounds = [{"pointwise": 1e-2}, {"max_error": 1e-3}, {"max_error": 0.0}]
        bounds += [{"max_error": tiny * scale}, {"relative": 1e-2}]
        for bound in bounds:
            expected = bounded.compress(y, **bound)
            assert adversary.violation(y, bounded.decompress(expected), bound) is None
            if not torch.set_flush_denormal(True):
                pytest.skip("this processor flushes none")
            try:
                payload = bounded.compress(y, **bound)
                flushed = bounded.decompress(expected)
            finally:
                torch.set_flush_denormal(False)
            assert adversary.violation(y, bounded.decompress(payload), bound) is None, bound
            assert adversary.violation(y, flushed, bound) is None, bound
            # A bound of float64 may be flushed itself: then the payload is lossless.
            if dtype != torch.float64 or bound in bounds[:3]:
                assert torch.equal(payload, expected), bound


@pytest.mark.parametrize("dtype", FLOATS)
def test_relative_is_of_the_range_that_is_flushed(dtype: torch.dtype) -> None:
    """Half of the least normal number, taken for 0, makes the range longer."""
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.linspace(0.5, 8, 5000, dtype=torch.float64).mul(tiny).to(dtype)
    for bound in ({"relative": 0.05}, {"relative": 0.3}):
        expected = bounded.compress(x, **bound)
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor flushes none")
        try:
            payload = bounded.compress(x, **bound)
        finally:
            torch.set_flush_denormal(False)
        assert adversary.violation(x, bounded.decompress(payload), bound) is None
        assert dtype == torch.float64 or torch.equal(payload, expected)
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        try:
            bounded.compress(torch.tensor([torch.nan, torch.inf], dtype=dtype), relative=0.1)
        finally:
            torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["max_error", "pointwise"])
def test_results_that_are_subnormal_are_not_flushed(dtype: torch.dtype, name: str) -> None:
    """A normal value may come back as a subnormal one within the bound."""
    tiny = torch.finfo(dtype).smallest_normal
    x = (1 + 2 * torch.rand(8000, generator=torch.Generator().manual_seed(1))).double() * tiny
    x = x.to(dtype)
    bound = {name: 0.4 * tiny if name == "max_error" else 0.9}
    payload = bounded.compress(x, **bound)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes none")
    try:
        back = [bounded.decompress(payload), bounded.decompress(bounded.compress(x, **bound))]
    finally:
        torch.set_flush_denormal(False)
    for y in back:
        assert adversary.violation(x, y, bound) is None


def test_bools_that_are_no_bools() -> None:
    """Views of other bytes: what counts as true comes back as true."""
    x = torch.tensor([0, 1, 2, 255] * 500, dtype=torch.uint8).view(torch.bool)
    y = bounded.decompress(bounded.compress(x))
    assert y.view(torch.uint8).tolist() == [0, 1, 1, 1] * 500


def test_a_value_at_the_end_of_the_places_is_the_same_at_all_levels() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(65536) * 1e-6).astype(np.float32)
    for bound in 7e-5 * (1 + 0.013 * np.arange(12)):
        x[40000] = np.float32(-(2.0**31) * 2 * bound)
        found = set()
        for level in _C.cpu_levels().split(","):
            _C.set_cpu_level(level)
            payload = bounded.compress(torch.from_numpy(x), max_error=float(bound))
            found.add(bytes(payload.numpy()))
            y = bounded.decompress(payload)
            assert adversary.violation(torch.from_numpy(x), y, {"max_error": bound}) is None
        _C.set_cpu_level("")
        assert len(found) == 1, bound


@pytest.mark.parametrize("level", _C.cpu_levels().split(","))
def test_the_least_word_among_signed_zeros(level: str) -> None:
    """-0 has a word of its own there, and the words of negative values are one less."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(65536) * 1e-4).astype(np.float32)
    x[::3] = -0.0
    x[40000] = -(2.0**31)
    _C.set_cpu_level(level)
    try:
        y = check(torch.from_numpy(x), max_error=0.5)
    finally:
        _C.set_cpu_level("")
    assert y[40000] == x[40000]


@pytest.mark.parametrize("units", [0.75, 1.75, 1.9, 2.75, 3.75, 5.6])
def test_bounds_of_a_few_of_the_least_numbers(units: float) -> None:
    x = (2**23 + np.random.default_rng(1).integers(0, 2000, 8192)) * 2.0**-149
    x[100] = 1e-10
    check(torch.from_numpy(x.astype(np.float32)), max_error=units * 2.0**-149)


def test_relative_is_of_the_finite_range() -> None:
    x = torch.linspace(-3, 5, 4000)
    x[[7, 70, 700]] = torch.tensor([NAN, INF, -INF])
    info = bounded.info(bounded.compress(x, relative=1e-3))
    assert info.bound == "relative" and info.asked == 1e-3
    assert info.max_error == pytest.approx(8e-3, rel=1e-12)
    check(x, relative=1e-3)
    # Nothing to be relative to: lossless.
    for y in (torch.full((300,), 1.1), torch.full((300,), NAN), torch.tensor([INF, NAN])):
        assert bounded.info(bounded.compress(y, relative=0.1)).max_error == 0
        check(y, relative=0.1)
    huge = torch.tensor([1.7e308, -1.7e308], dtype=torch.float64)
    with pytest.raises(ValueError, match="a range that float64 cannot hold"):
        bounded.compress(huge, relative=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "bound",
    [{"max_error": 1e-3}, {"max_error": 0.3}, {"max_error": 3e38}]
    + [{"pointwise": p} for p in (1e-4, 0.01, 0.7)],
)
def test_every_value_of_two_bytes(dtype: torch.dtype, bound: dict[str, float]) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    check(x, **bound)
    check(x[torch.from_numpy(np.random.default_rng(1).permutation(2**16))], **bound)
