"""Formats as values: parameters, names, copies, `info`, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from torch_cgx import emulate
from torch_cgx.emulate import Block, Float


@pytest.mark.parametrize("name", emulate.presets())
def test_presets_are_values(name):
    format = emulate.preset(name)
    assert format is emulate.preset(name.upper()) and format is getattr(emulate, name)
    for other in (copy.copy(format), copy.deepcopy(format), pickle.loads(pickle.dumps(format))):
        assert other == format and hash(other) == hash(format) and str(other) == str(format)
    names = {"Float": Float, "Block": Block, **vars(emulate)}
    assert eval(repr(format), names) == format
    assert name in dir(emulate)
    x = torch.linspace(-3, 3, 50)
    by_name, by_format = emulate.cast(x, name), emulate.cast(x, format)
    assert torch.equal(by_name.nan_to_num(7), by_format.nan_to_num(7))
    assert len({emulate.preset(n) for n in emulate.presets()}) == len(emulate.presets())


def test_presets_with_changes():
    assert emulate.preset("e5m2", rounding="zero") == Float(5, 2, rounding="zero")
    assert emulate.preset("e5m2") == Float(5, 2)
    changed = emulate.preset("mxfp4", scale_rounding="rceil", rounding="stochastic", axis=0)
    assert changed == Block(
        Float(2, 1, rounding="stochastic", variant="finite"), scale_rounding="rceil", axis=0
    )
    assert emulate.preset("nvfp4", axis=(16, 16)).size == 16
    assert Block("e2m1") == emulate.mxfp4
    with pytest.raises(TypeError, match=r"preset\('e5m2'\) got foo, size; allowed: exponent"):
        emulate.preset("e5m2", foo=1, size=3)
    with pytest.raises(TypeError, match="got foo; allowed: axis"):
        emulate.preset("mxfp4", foo=1)
    with pytest.raises(AttributeError, match="no attribute 'e9m9'"):
        emulate.e9m9  # noqa: B018


def test_formats_cannot_be_changed():
    with pytest.raises(AttributeError):
        emulate.e5m2.mantissa = 3


BAD = [
    (lambda: Float(0, 3), "Float: exponent='0' .* integers from 1 to 8"),
    (lambda: Float(9, 3), "Float: exponent='9' .* integers from 1 to 8"),
    (lambda: Float(4, 24), "mantissa='24' .* integers from 0 to 23"),
    (lambda: Float(4, -1), "mantissa='-1'"),
    (lambda: Float(4, 3, rounding="up"), "rounding='up' .* one of nearest,zero,stochastic"),
    (lambda: Float(4, 3, random_bits=25), "random_bits='25' .* 1 to 24"),
    (lambda: Float(4, 3, overflow="wrap"), "overflow='wrap' .* default,saturate"),
    (lambda: Float(4, 3, variant="posit"), "variant='posit' .* ieee,fn"),
    (lambda: Float(4, 3, variant="fn", overflow="inf"), "overflow=inf with variant=fn"),
    (lambda: Float(2, 1, variant="finite", overflow="nan"), "variant=finite, which has no NaN"),
    (lambda: Float(8, 3, variant="fn"), "numbers from .* allowed: numbers that float32 has"),
    (lambda: Float(1, 0), "leaves no finite number but 0"),
    (lambda: Float(5, 2, variant="cpd", rounding="zero"), "allowed: nearest"),
    (lambda: Float(5, 2, variant="cpd", subnormals=False), "subnormals=0 with variant=cpd"),
    (lambda: Float(7, 0, variant="scale"), "exponent=7 with variant=scale, allowed: 8"),
    (lambda: Block("e2m1", 0), "Block: size='0' .* from 1"),
    (lambda: Block("e2m1", scale="e5m2"), "scale='e5m2' .* one of"),
    (lambda: Block("e2m1", scale_rounding="up"), "scale_rounding='up' .* floor,ceil,even,rceil"),
    (lambda: Block("e2m1", axis=(0, 16)), "rows='0'"),
    (
        lambda: Block("e2m1", axis=(1, 2, 3)),
        r"axis=\(1, 2, 3\), allowed: an int, \(rows, columns\)",
    ),
    (lambda: Block("e9"), "format is 'e9', allowed: fp16"),
]


@pytest.mark.parametrize("make, text", BAD)
def test_bad_parameters_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Float("4", 3), "exponent"),
        (lambda: Float(4.0, 3), "exponent"),
        (lambda: Float(4, 3, subnormals="yes"), "subnormals"),
        (lambda: Block(emulate.mxfp4), "element=Block.* allowed: a Float"),
        (lambda: Block("e2m1", axis="x"), "axis='x', allowed: an int"),
        (lambda: Block("e2m1", axis=True), "axis=True, allowed: an int"),
        (lambda: Block(8), "element=8, allowed: a Float"),
    ],
)
def test_parameters_of_other_types_are_named(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def test_subnormals_and_overflow():
    x = torch.tensor([2.0**-16, 2.0**-15, 3 * 2.0**-16, 2.0**-14, 1e6, -1e6, torch.inf])
    cast = emulate.cast
    flushed = cast(x, Float(5, 2, subnormals=False)).tolist()
    # 3/4 of the least normal number is a subnormal one.
    assert flushed[:4] == [0, 0, 0, 2.0**-14]
    assert cast(x, Float(5, 2))[4:].tolist() == [torch.inf, -torch.inf, torch.inf]
    assert cast(x, Float(5, 2, overflow="saturate"))[4:].tolist() == [57344, -57344, 57344]
    assert cast(x, Float(5, 2, overflow="nan"))[4:].isnan().all()
    assert cast(x, Float(5, 2, rounding="zero"))[4:].tolist() == [57344, -57344, torch.inf]
    assert cast(x, emulate.e4m3fn)[4:].tolist() == [448, -448, 448]


def test_info_counts_bits():
    info = emulate.mxfp4.info()
    assert (info.bits, info.total_bits, info.side_bits) == (4.25, None, None)
    info = emulate.mxfp4.info(torch.empty(3, 70))  # three blocks a row
    assert (info.total_bits, info.side_bits) == (210 * 4 + 72, 72)
    assert info.bits == (210 * 4 + 72) / 210
    info = emulate.preset("mxfp4", axis=0).info(torch.empty(70, 3))
    assert info.side_bits == 72
    info = emulate.nvfp4.info(torch.empty(4, 16))
    assert (info.side_bits, info.largest, info.smallest_step) == (4 * 8 + 32, 6, 0.5)
    info = emulate.preset("fp8_block128", axis=(128, 128)).info(torch.empty(2, 130, 300))
    assert info.side_bits == 2 * 2 * 3 * 32
    assert emulate.e5m2.info(torch.empty(7)).total_bits == 56
    assert emulate.mxfp4.info(torch.empty(0)).total_bits == 0
    assert emulate.tf32.info().bits == 19 and emulate.e8m0.info().bits == 8
