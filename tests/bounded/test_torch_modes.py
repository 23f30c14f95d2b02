"""Where torch makes other tensors than those of the CPU by itself, and tensors that have no memory:
addresses of nothing must reach no encoder and no decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from tests.bounded.helpers import same_bits, some
from torch_cgx import bounded
from torch_cgx.bounded import bdi
from torch_cgx.compat.cuda_float_compress import (
    CuszplusError,
    cuszplus_compress,
    cuszplus_decompress,
)

VALUES = some((70_000,), torch.float32)
WORDS = torch.arange(5000, dtype=torch.int32)
BDI = bdi.Compression([bdi.Config(delta_size=8)])


def results_of_files(folder: Path) -> list[torch.Tensor]:
    bounded.save({"a": VALUES, "b": [WORDS]}, folder / "file", max_error=1e-3)
    state = bounded.load(folder / "file")
    chosen = bounded.load(folder / "file", keys=["a", "b.0"])
    return [state["a"], state["b"][0], *chosen.values()]


def results_in_memory() -> list[torch.Tensor]:
    results = []
    for bound in ({"max_error": 1e-3}, {"relative": 1e-3}, {"pointwise": 1e-3}, {"max_error": 0}):
        payload = bounded.compress(VALUES, **bound)
        results += [payload, bounded.decompress(payload)]
        for rows in (slice(5, 66_000), slice(0, None, 999)):
            results.append(bounded.decompress(payload, rows=rows))
    for x in (WORDS, VALUES[:100].double(), VALUES[:100].to(torch.complex64), WORDS > 7):
        payload = bounded.compress(x, **({} if x.dtype.itemsize in (1, 4) else {"max_error": 0.1}))
        results.append(bounded.decompress(payload, out=x.clone()))
        assert bounded.info(payload).checksum_ok
    payload = BDI.compress(WORDS)
    results += [payload, bdi.decompress(payload), BDI.compressed_repr(WORDS, 0.5, 3)]
    report = BDI.report(WORDS)
    assert sum(report.wins.values()) == report.choice.numel() > 0
    results += [report.choice, report.bits, report.zeros]
    for x in (VALUES, VALUES * 1e6):  # of which one needs a smaller step
        payload = cuszplus_compress(x, 0.05)
        results += [payload, cuszplus_decompress(payload, "cpu")]
    return results


def check_under(device: str, results: Callable[[], list[torch.Tensor]]) -> None:
    expected = results()
    with torch.device(device):
        found = results()
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == "cpu" and same_bits(a, b)


@pytest.mark.parametrize("device", ["meta", "cuda"])  # "cuda" also raises where there is none
def test_the_default_device_changes_nothing(device: str) -> None:
    check_under(device, results_in_memory)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_changes_no_file(device: str, tmp_path: Path) -> None:
    check_under(device, lambda: results_of_files(tmp_path))


PAYLOAD = bounded.compress(VALUES, max_error=1e-3)
BDI_PAYLOAD = BDI.compress(WORDS)
CUSZPLUS_PAYLOAD = cuszplus_compress(VALUES, 1e-3)
TAKERS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "has no payload": (lambda x: bounded.compress(x, max_error=1e-3), VALUES),
    "cannot be out": (lambda x: bounded.decompress(PAYLOAD, x), VALUES),
    "cannot be the payload": (bounded.decompress, PAYLOAD),
    "cannot be words": (BDI.compress, WORDS),
    "cannot be payload": (bdi.decompress, BDI_PAYLOAD),
    "cannot be input": (lambda x: cuszplus_compress(x, 1e-3), VALUES),
    "cannot be compressed": (lambda x: cuszplus_decompress(x, "cpu"), CUSZPLUS_PAYLOAD),
}


def refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as error:
        call()
    assert error.type in (ValueError, CuszplusError)


@pytest.mark.parametrize("what", TAKERS)
def test_tensors_without_memory_are_refused(what: str) -> None:
    take, x = TAKERS[what]
    refused(lambda: take(FakeTensorMode().from_tensor(x)), f"a FakeTensor {what}")
    refused(lambda: take(TwoTensor(x, x)), f"a TwoTensor {what}")
    for inside in (torch.func.functionalize(take), lambda y: torch.vmap(take)(y[None])):
        refused(lambda inside=inside: inside(x), f"a tensor without memory .* {what}")


@pytest.mark.parametrize("what", TAKERS)
def test_fake_tensors_of_a_mode_are_refused(what: str) -> None:
    take, x = TAKERS[what]
    with FakeTensorMode(allow_non_fake_inputs=True):
        refused(lambda: take(x), "a FakeTensor .*, as it has no values")


def test_results_of_a_mode_are_refused() -> None:
    data = PAYLOAD.numpy().tobytes()
    with FakeTensorMode():
        refused(lambda: bounded.decompress(data), "a FakeTensor cannot be the result")


def test_sparse_and_nested_tensors_are_no_out() -> None:
    payload = bounded.compress(torch.eye(3), max_error=0)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for out, kind in ((torch.eye(3).to_sparse(), "sparse_coo"), (nested, "nested")):
        refused(lambda out=out: bounded.decompress(payload, out), f"a {kind} tensor cannot be out")
