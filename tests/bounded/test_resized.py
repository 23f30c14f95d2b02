"""Views into storages that have become too short: an error that says so, not the process's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_cgx
from torch_cgx import bounded
from torch_cgx.bounded import bdi
from torch_cgx.compat import cuda_float_compress

N = 3 * 65536
CODEC = torch_cgx.codecs.MaxMin(bits=4, bucket_size=512)
WORDS = bdi.Compression([bdi.Config(delta_size=8)])


def _freed(like: torch.Tensor, held: int, offset: int) -> torch.Tensor:
    """A tensor with the values of `like` from the element `offset` on, and a storage of so many
    bytes.
    """
    room = torch.zeros(offset + like.numel(), dtype=like.dtype)
    view = room[offset:].copy_(like.flatten()).view(like.shape)
    room.untyped_storage().resize_(held)
    return view


def _entries(folder: Path) -> dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], Any]]]:
    """By name: a tensor that works, and what is called with it."""
    x = torch.randn(N, generator=torch.Generator().manual_seed(1))
    words = torch.arange(N, dtype=torch.int32)
    payload = bounded.compress(x, max_error=1e-3)
    of_words = WORDS.compress(words)
    of_cuszplus = cuda_float_compress.cuszplus_compress(x, 1e-3)
    of_codec = CODEC.encode(x)
    return {
        "compress": (x, lambda t: bounded.compress(t, max_error=1e-3)),
        "decompress": (payload, bounded.decompress),
        "decompress to": (x, lambda t: bounded.decompress(payload, t)),
        "info": (payload, bounded.info),
        "save": (x, lambda t: bounded.save({"x": t}, folder / "file.cgx", max_error=1e-3)),
        "bdi.compress": (words, WORDS.compress),
        "bdi.report": (words, WORDS.report),
        "bdi.decompress": (of_words, bdi.decompress),
        "bdi.info": (of_words, bdi.info),
        "cuszplus_compress": (x, lambda t: cuda_float_compress.cuszplus_compress(t, 1e-3)),
        "cuszplus_decompress": (
            of_cuszplus,
            lambda t: cuda_float_compress.cuszplus_decompress(t, "cpu"),
        ),
        "encode": (x, CODEC.encode),
        "encode to": (of_codec, lambda t: CODEC.encode(x, out=t)),
        "decode": (of_codec, lambda t: CODEC.decode(t, numel=N)),
        "decode to": (x, lambda t: CODEC.decode(of_codec, out=t)),
        "simulate": (x, lambda t: torch_cgx.simulate([x, t])),
        "simulate with residuals": (
            x,
            lambda t: torch_cgx.simulate([x, x], CODEC, residuals=[torch.zeros(N), t]),
        ),
    }


def test_values_beyond_the_storage_are_refused(tmp_path: Path) -> None:
    for name, (good, call) in _entries(tmp_path).items():
        call(_freed(good, (16 + good.numel()) * good.element_size(), 16))  # long enough
        short = (15 + good.numel()) * good.element_size()
        for held, offset in ((0, 0), (0, 16), (short, 16), (3, 0)):
            with pytest.raises(ValueError, match=f"resized to {held} bytes"):
                call(_freed(good, held, offset))
                pytest.fail(f"{name} took a storage of {held} bytes")
    assert [*tmp_path.iterdir()] == [tmp_path / "file.cgx"]


def test_the_name_of_a_freed_parameter(tmp_path: Path) -> None:
    model = torch.nn.Linear(300, 300)
    model.weight.untyped_storage().resize_(0)
    for call in (
        lambda: bounded.save(model.state_dict(), tmp_path / "file.cgx", max_error=1e-3),
        lambda: bounded.compress(model.weight, max_error=1e-3),
    ):
        with pytest.raises(ValueError, match="storage was resized to 0 bytes"):
            call()
    with pytest.raises(ValueError, match=r"^weight: .*\[300, 300\].* byte 360000 "):
        bounded.save(model.state_dict(), tmp_path / "file.cgx", max_error=1e-3)
