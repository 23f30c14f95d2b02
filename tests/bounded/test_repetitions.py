"""Tensors whose rows are there again, far away: payloads of one frame."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.bounded.discrete import (
    REALS,
    again,
    check,
    colors,
    decimals,
    lossless,
    maps,
    mostly,
    picked,
    rows_of_multiples,
    within,
)
from tests.bounded.helpers import gaussian, same, same_bits
from tests.distributed import run_pooled
from torch_cgx import _C, bounded
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner


def repeated(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Of 40 rows, each many times, in no order."""
    drawn = torch.randint(40, (rows,), generator=torch.Generator().manual_seed(seed))
    return (gaussian(40, width, seed=seed) * 1000).to(dtype)[drawn]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str
)
@pytest.mark.parametrize("width", [333, 1001, 4099])
def test_rows_that_repeat(dtype: torch.dtype, width: int) -> None:
    x = repeated(2**20 // width, width, dtype)  # several blocks, and MiB
    info = check(x)
    assert maps(info) == {"frame"} and len(info.blocks) == 1
    assert info.blocks[0].values == x.numel() and info.blocks[0].predictor is None
    assert not info.blocks[0].windowed and info.checksum_ok
    assert info.ratio > 5


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_frames_of_any_type(dtype: torch.dtype) -> None:
    if dtype == torch.bool:
        x = repeated(3000, 333, torch.float32) > 100
    elif dtype.is_floating_point:
        x = colors(13_320, dtype)[:13_320].view(40, -1)
        x = x[torch.arange(3000) * 7 % 40]
    else:
        x = repeated(3000, 333, dtype)
    check(x)
    assert bounded.info(lossless(x)).ratio > 3


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_frames_of_complex_numbers(dtype: torch.dtype) -> None:
    part = torch.float32 if dtype == torch.complex64 else torch.float64
    x = torch.view_as_complex(repeated(900, 2 * 201, part).view(900, 201, 2))
    assert maps(check(x)) == {"frame"}
    assert maps(check(x.conj().resolve_conj())) == {"frame"}
    assert same_bits(bounded.decompress(lossless(x), rows=slice(7, 19)), x[7:19])


def test_around_the_least_size() -> None:
    for nbytes in (2**17 - 4, 2**17, 2**17 + 4):
        x = again(nbytes // 4, 501)
        assert ("frame" in maps(check(x))) == (nbytes >= 2**17)
    for n in (2**17 - 1, 2**17, 2**17 + 1, 2**17 + 333):
        check(again(n, 777, torch.int8))
        check(torch.zeros(n, dtype=torch.uint8))


def test_rows_and_other_memory() -> None:
    x = repeated(600, 501, torch.float32)
    made = lossless(x)
    assert maps(bounded.info(made)) == {"frame"}
    for rows in (
        slice(0, 0),
        slice(0, 1),
        slice(599, 600),
        slice(3, 500, 17),
        slice(None, None, 601),
    ):
        assert same_bits(bounded.decompress(made, rows=rows), x[rows])
        out = torch.empty_like(x[rows])
        assert bounded.decompress(made, out, rows=rows) is out and same_bits(out, x[rows])
    turned, leaf = torch.empty(501, 600).t(), torch.nn.Parameter(torch.empty(600, 501))
    around = torch.zeros(602, 501)
    for out in (turned, leaf, around[1:-1]):
        assert bounded.decompress(made, out) is out and same_bits(out.detach(), x)
    assert not around[0].any() and not around[-1].any()
    for some in (x.t(), x[::2], x[:, 7:], x.view(6, 100, 501).transpose(0, 1)):
        check(some, second=False)


def test_one_payload_whatever_computes_it() -> None:
    x, threads = repeated(700, 501, torch.float32), torch.get_num_threads()
    expected = lossless(x)
    try:
        for some in (1, 2):
            torch.set_num_threads(some)
            for level in ("scalar", "avx2"):
                if level in _C.cpu_levels().split(","):
                    _C.set_cpu_level(level)
                    assert torch.equal(lossless(x), expected)
    finally:
        torch.set_num_threads(threads)
        _C.set_cpu_level("")


def test_values_that_do_not_repeat_have_blocks() -> None:
    for x in (
        gaussian(300_000),
        gaussian(300_000).to(torch.bfloat16),
        gaussian(512, 600).sort()[0],
    ):
        assert "frame" not in maps(check(x, second=False))


@pytest.mark.parametrize("bound", [{"max_error": 0.5}, {"relative": 1e-3}, {"pointwise": 0.01}])
def test_rows_that_repeat_within_a_bound(bound: dict[str, float]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = repeated(700, 501, dtype)
        x[3, 4], x[5, 6], x[8, 8] = torch.nan, -0.0, torch.inf
        assert within(x, **bound) == {"frame"}
        info = bounded.info(bounded.compress(x, **bound))
        assert info.checksum_ok and info.ratio >= bounded.info(lossless(x)).ratio
    x = torch.view_as_complex(repeated(900, 2 * 201, torch.float32).view(900, 201, 2))
    payload = bounded.compress(x, **bound)
    assert maps(bounded.info(payload)) == {"frame"}
    some = bounded.decompress(payload, rows=slice(7, 19))
    assert same_bits(some, bounded.decompress(payload)[7:19])


# ---- files, checkpoints, ranks


def state() -> dict[str, Any]:
    return {
        "palette": picked(colors(9, torch.float64)[6:], 3000),
        "multiples": rows_of_multiples(30, 100),
        "decimals": {"a": decimals(3000, 2, torch.float32)},
        "mostly": mostly(70_000, 1.5, {0: 2.0, 69_999: 3.0}, torch.float64),
        "again": again(16_000, 512),
        "frame": repeated(400, 333, torch.float32),
        "whole": repeated(700, 333, torch.int16),
        "flags": gaussian(40, 333)[torch.arange(900) * 7 % 40] > 0,
        "pairs": torch.view_as_complex(repeated(200, 402, torch.float32).view(200, 201, 2)),
    }


def test_files(tmp_path: Path) -> None:
    kept = state()
    found = {
        name
        for x in kept.values()
        if isinstance(x, torch.Tensor)
        for name in maps(check(x, second=False))
    }
    assert found >= {"palette", "multiples", "mostly", "bytes", "frame"}
    bounded.save(kept, tmp_path / "a", max_error=0)
    assert same(bounded.load(tmp_path / "a"), kept)
    assert same(bounded.load(tmp_path / "a", keys=["frame"]), {"frame": kept["frame"]})


def test_checkpoints(tmp_path: Path) -> None:
    kept = state()
    blank = {
        name: torch.zeros_like(x) if isinstance(x, torch.Tensor) else {"a": torch.zeros(3000)}
        for name, x in kept.items()
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        dcp.save(kept, checkpoint_id=tmp_path, planner=BoundedSavePlanner(max_error=0))
        dcp.load(blank, checkpoint_id=tmp_path, planner=BoundedLoadPlanner())
    assert same(blank, kept)


def _broadcast(rank: int, world_size: int) -> bool:
    kept = state()
    blank = {name: x.clone() for name, x in kept.items() if isinstance(x, torch.Tensor)}
    if rank != 0:
        for x in blank.values():
            x.zero_()
    bounded.broadcast(blank, 0, max_error=0)
    return all(same_bits(x, kept[name]) for name, x in blank.items())


def test_broadcast() -> None:
    assert run_pooled(_broadcast, 2, backend="gloo") == [True, True]
