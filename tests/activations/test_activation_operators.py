"""The operators that few-bit activations, dropout and saved integers are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_cgx.activations import _operators

OPS = torch.ops.torch_cgx  # registered by the import of _operators


def test_packing_is_fewbits() -> None:
    """V1 to V5: codes to bytes, lowest bit first."""
    vectors = {
        (3, (0, 1, 4, 7)): "080f",
        (3, (6, 5, 6, 1, 7, 0, 4, 2, 2, 3, 0, 4, 5, 5, 6, 7)): "ae73501ad8fa",
        (3, (6, 5, 6, 1, 7, 0, 4, 2, 2, 3, 0, 4, 5, 5, 6)): "ae73501ad81a",
        (1, (1, 0, 1, 1, 0, 0, 1, 0, 1)): "4d01",
        (2, (3, 0, 1, 2, 2)): "9302",
        (4, (15, 0, 9, 6, 1)): "0f6901",
    }
    for (bits, codes), wanted in vectors.items():
        levels = 1 << bits
        x = torch.tensor(codes, dtype=torch.float32)
        borders = [i + 0.5 for i in range(levels - 1)]
        packed = OPS.level_encode(x, borders, levels)
        assert packed.numpy().tobytes().hex() == wanted
        packed = OPS.pack_integers(x.long(), 0, bits)
        assert packed.numpy().tobytes().hex() == wanted
    codes5 = torch.tensor([31, 0, 17, 6, 1, 30, 2, 3])  # V6
    assert OPS.pack_integers(codes5, 0, 5).numpy().tobytes().hex() == "1f4413bc18"


def test_operators_refuse_what_does_not_fit() -> None:
    ops, x = OPS, torch.randn(16)
    tracked = x.clone().requires_grad_()
    codes = ops.level_encode(x, [0.0], 2)
    many = [float(i) for i in range(16)]
    cases: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
        (lambda: ops.level_encode(x.int(), [0.0], 2), TypeError, "tensor.dtype is torch.int32"),
        (lambda: ops.level_encode(x, [1.0, 0.0], 3), ValueError, "border number 1"),
        (lambda: ops.level_encode(x, [0.0], 3), ValueError, "needs 2"),
        (lambda: ops.level_encode(x, many, _operators.MOST_LEVELS + 1), ValueError, "2 to 16"),
        (lambda: ops.level_encode(tracked, [0.0], 2), RuntimeError, "not differentiable"),
        (lambda: ops.level_multiply(x, codes[:1], [0.0, 1.0]), ValueError, "codes has 1 bytes"),
        (lambda: ops.level_multiply(x, codes, [0.0]), ValueError, "1 levels"),
        (lambda: ops.level_multiply(x, codes, [0.0, math.inf]), ValueError, "not finite"),
        (lambda: ops.pack_integers(x, 0, 3), TypeError, "torch.float32, allowed: integers"),
        (lambda: ops.pack_integers(x.int(), 0, 65), ValueError, "bits is 65"),
        (lambda: ops.pack_two_values(x, 1.0, 0.0), ValueError, "low is 1"),
        (lambda: ops.level_decode(codes, [0.0, 1.0], 99, dtype=x.dtype), ValueError, "2 bytes"),
        (lambda: ops.dropout(x, 1.5, 0), ValueError, "p is 1.5"),
    )
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.parametrize("name", ("level_encode", "level_multiply", "pack_integers", "dropout"))
def test_opcheck(name: str) -> None:
    x = torch.randn(5, 7)
    codes = OPS.level_encode(x, [-1.0, 0.0, 1.0], 4)
    packed = OPS.pack_integers(x.int(), -4, 3)
    arguments: dict[str, tuple[Any, ...]] = {
        "level_encode": (x, [-1.0, 0.0, 1.0], 4),
        "level_multiply": (x, codes, [0.0, 1.0, 2.0, 3.0]),
        "pack_integers": (x.int(), -4, 3),
        "dropout": (x, 0.25, 7),
    }
    torch.library.opcheck(getattr(OPS, name), arguments[name])
    if name == "pack_integers":
        unpack = OPS.unpack_integers
        torch.library.opcheck(unpack, (packed, -4, 3, 35), {"dtype": torch.int32})
