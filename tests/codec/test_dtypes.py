"""The engine's list of element types against torch's dtypes, and the numbers that must stay."""

from __future__ import annotations

import torch

from torch_cgx import _C
from torch_cgx._dtypes import COMPUTED, FACTS
from torch_cgx.bounded import _dtypes


def test_every_type_is_torchs() -> None:
    assert len(FACTS) == len(_C.DTYPES) == 22
    for dtype, row in FACTS.items():
        assert str(dtype) == f"torch.{row['name']}"
        assert dtype.itemsize == row["bytes"], dtype
        assert dtype.is_floating_point == row["floating"], dtype
        assert dtype.is_complex == (row["real"] != row["name"]), dtype
        assert dtype.to_real() == getattr(torch, row["real"]) or not dtype.is_complex


def test_numbers_on_the_wire() -> None:
    assert COMPUTED == {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def test_numbers_in_payloads_of_bounded() -> None:
    names = (
        "float32 float64 float16 bfloat16 uint8 int8 int16 uint16 int32 uint32 int64 uint64 bool"
    )
    assert {
        getattr(torch, name): number for number, name in enumerate(names.split(), start=1)
    } == _dtypes.ELEMENTS
    assert list(_dtypes.ELEMENTS.values()) == list(range(1, 14))
    assert _dtypes.REAL_TYPES == {
        torch.complex32: torch.float16,
        torch.complex64: torch.float32,
        torch.complex128: torch.float64,
    }
    assert list(_dtypes.BYTES) == [
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    ]
