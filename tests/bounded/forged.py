"""Payloads with forged blocks, which both readers refuse, or read alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import forge, reader
from tests.bounded.adversary import bits_of
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError

N = 100


def both_refuse(payload: bytes, text: str) -> None:
    for rows in (None, slice(0, 1)):
        with pytest.raises(PayloadError, match=text):
            bounded.decompress(payload, rows=rows)
    try:
        assert bounded.info(payload).bytes == len(payload)
    except PayloadError:
        pass
    with pytest.raises(AssertionError):
        reader.read(payload)


def both_read(payload: bytes) -> torch.Tensor:
    y = bounded.decompress(payload)
    _, bits = reader.read(payload)
    np.testing.assert_array_equal(bits_of(y).astype(f"i{bits.itemsize}").view(bits.dtype), bits)
    return y


def plain(dtype: torch.dtype = torch.float32, n: int = N, **bound: float) -> torch.Tensor:
    x = torch.linspace(-3, 5, n).to(dtype)
    return bounded.compress(x, **(bound or ({"max_error": 0} if dtype.is_floating_point else {})))


def with_block(
    block: bytes, dtype: torch.dtype = torch.float32, n: int = N, **fields: Any
) -> bytes:
    """A payload with that block; without its checksum."""
    return forge.taken_apart(plain(dtype, n)).set(blocks=[forge.sealed(block)], **fields).payload()
