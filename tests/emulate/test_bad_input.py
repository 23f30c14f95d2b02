"""What casts, formats and sums in formats refuse, by name, and that nothing has changed then."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import torch_cgx
from torch_cgx import emulate
from torch_cgx.emulate import S2FP8, Fixed, Float, Integer, ZScore

PARAMETERS = [
    (lambda: Fixed(1, 0), ValueError, "Fixed: word='1' .* integers from 2 to 24"),
    (lambda: Fixed(25, 0), ValueError, "word='25'"),
    (lambda: Fixed(8, 101), ValueError, "fraction='101' .* integers from -100 to 100"),
    (lambda: Fixed(8, 4, "up"), ValueError, "rounding='up' .* one of nearest,zero,stochastic"),
    (lambda: Fixed(8, 4, random_bits=0), ValueError, "random_bits='0' .* integers from 1 to 24"),
    (lambda: Fixed(8, 4, symmetric=3), ValueError, "symmetric='3' .* takes 0 or 1"),
    (lambda: Fixed(8.0, 4), TypeError, "word=8.0: expected an int, got float"),
    (lambda: Integer(1), ValueError, "Integer: bits='1' .* integers from 2 to 16"),
    (lambda: Integer(17), ValueError, "bits='17'"),
    (lambda: Integer(8, "max"), ValueError, "scale='max' .* one of absmax,minmax,power"),
    (lambda: Integer(8, per="column"), ValueError, "per='column' .* tensor,row,channel,block"),
    (lambda: Integer(8, size=0), ValueError, "size='0' .* integers from 1"),
    (lambda: Integer(8, rounding="even"), ValueError, "rounding='even' .* one of nearest"),
    (lambda: Integer(8, axis=1.5), TypeError, "axis=1.5, allowed: an int, None"),
    (lambda: Integer(8, axis=True), TypeError, "axis=True, allowed: an int, None"),
    (lambda: ZScore(2), ValueError, "ZScore: main_bits='2' .* integers from 3 to 16"),
    (lambda: ZScore(8, 6), ValueError, "outlier_bits=6 with main_bits=8, allowed: at least"),
    (lambda: ZScore(statistics="median"), ValueError, "'median' .* one of full,sampled,range"),
    (lambda: ZScore(rounding="up"), ValueError, "rounding='up' .* one of nearest"),
    (lambda: ZScore(main_threshold=0), ValueError, "main_threshold='0' .* numbers above 0"),
    (lambda: ZScore(main_threshold=3.0), ValueError, "2.5 with main_threshold=3, allowed: above"),
    (lambda: ZScore(outlier_threshold=math.nan), ValueError, "'nan' .* finite numbers above 0"),
    (lambda: ZScore(clamp="no"), TypeError, "clamp='no': expected a bool, got str"),
    (lambda: S2FP8("up"), ValueError, "S2FP8: rounding='up' .* one of nearest"),
    (lambda: S2FP8(random_bits=25), ValueError, "random_bits='25' .* integers from 1 to 24"),
]


@pytest.mark.parametrize("make, error, text", PARAMETERS)
def test_parameters(make, error, text):
    with pytest.raises(error, match=text):
        make()


FORMATS = (
    "e4m3fn",
    Float(5, 2, rounding="stochastic"),
    "mxfp4",
    emulate.preset("mxfp4", axis=0),
    emulate.preset("mxfp4", axis=(2, 2)),
    Fixed(8, 4),
    *(Integer(8, "minmax", per) for per in ("tensor", "row", "channel", "block")),
    "smaq",
    "s2fp8",
)


def bad_tensors() -> dict[str, tuple[torch.Tensor, str]]:
    return {
        "integers": (torch.arange(12).reshape(3, 4), "torch.int64, allowed"),
        "bytes": (torch.ones(3, 4, dtype=torch.uint8), "torch.uint8, allowed"),
        "bools": (torch.ones(3, 4, dtype=torch.bool), "torch.bool, allowed"),
        "complex": (torch.ones(3, 4, dtype=torch.complex64), "torch.complex64, allowed"),
        "sparse": (torch.eye(3, 4).to_sparse(), "torch.sparse_coo, allowed"),
        "rows": (torch.eye(3, 4).to_sparse_csr(), "torch.sparse_csr, allowed"),
    }


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.layout != torch.strided else x.clone()


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("kind", bad_tensors())
def test_tensors(kind, format):
    """Before `out` is written, in place or not; a bad `out` stays, too."""
    x, text = bad_tensors()[kind]
    kept, good = dense(x), torch.full((3, 4), 7.0)
    calls: list[Any] = [
        lambda: emulate.cast(x, format),
        lambda: emulate.cast(x, format, statistics=True),
        lambda: emulate.cast(x, format, out=x),
        lambda: emulate.cast(x, format, out=good),
        lambda: emulate.cast_ste(x, format),
        lambda: emulate.cast(good, format, out=x),
        lambda: emulate.cast(good, format, out=x, statistics=True),
        lambda: (emulate.preset(format) if isinstance(format, str) else format).info(x),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=text):
            call()
        assert torch.equal(dense(x), kept) and (good == 7).all()


@pytest.mark.parametrize("kind", bad_tensors())
def test_sums_in_a_format(kind):
    """Also of tensors behind a good one."""
    x, text = bad_tensors()[kind]
    good = torch.full((3, 4), 7.0)
    text = text.replace(", allowed", "")
    for tensors in ([x, x], [good, x]):
        with pytest.raises((TypeError, ValueError), match=text):
            torch_cgx.simulate(tensors, accumulate="e4m3")
        assert torch.equal(dense(x), bad_tensors()[kind][0].to_dense()) and (good == 7).all()


@pytest.mark.parametrize("format", ["e4m3fm", "", "e4m3 fn", "float", 8, None, torch.float16])
def test_formats_that_do_not_exist(format):
    x = torch.full((3,), 1.3)
    for call in (
        lambda: emulate.cast(x, format),
        lambda: emulate.cast(x, format, out=x),
        lambda: emulate.cast_ste(x, format),
    ):
        with pytest.raises((TypeError, ValueError), match="format is .*, allowed"):
            call()
    assert (x == torch.tensor(1.3)).all()


def test_arguments_of_other_types():
    x = torch.ones(3)
    with pytest.raises(TypeError, match="statistics='no', allowed: True, False"):
        emulate.cast(x, "e4m3fn", statistics="no")
    with pytest.raises(TypeError, match="x is of type list, allowed: a torch.Tensor, None"):
        emulate.e4m3fn.info([1.0])


@pytest.mark.parametrize("axis", [-3, 2])
@pytest.mark.parametrize("format", ["mxfp4", "int4"])
def test_dimensions_that_do_not_exist(format, axis):
    x = torch.full((3, 4), 1.3)
    chosen = emulate.preset(format, axis=axis)
    for call in (lambda: emulate.cast(x, chosen, out=x), lambda: chosen.info(x)):
        with pytest.raises(IndexError):
            call()
    assert (x == torch.tensor(1.3)).all()
