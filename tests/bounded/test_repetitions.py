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
from tests.bounded.reader_frames import form_of
from tests.distributed import run_pooled
from torch_cgx import _C, bounded
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner

BLOCK = _C.BOUNDED_BLOCK_VALUES


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
        check(x)
        assert ("frame" in within(x, max_error=0.5)) == (nbytes >= 2**17)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("key", ["max_error", "relative"])
def test_rows_that_repeat_are_words_of_a_grid(key: str, dtype: torch.dtype) -> None:
    x = repeated(700, 502, torch.float64)
    x = x.to(dtype) if not dtype.is_complex else torch.view_as_complex(x.float().view(700, 251, 2))
    reach = float(torch.view_as_real(x).abs().max() if dtype.is_complex else x.abs().max())
    sizes = []
    for share, size in ((0.01, 1), (1e-4, 2), (1e-6, 4)):
        bound = {key: share * reach if key == "max_error" else share / 2}
        assert within(x, **bound) == {"frame"}
        payload = bounded.compress(x, **bound)
        assert form_of(payload) == (1, size)
        sizes.append(payload.numel())
        some = bounded.decompress(payload, rows=slice(7, 19))
        assert same_bits(some, bounded.decompress(payload)[7:19])
        out = torch.zeros(702, *x.shape[1:], dtype=dtype)
        bounded.decompress(payload, out[1:-1])
        assert same_bits(out[1:-1], bounded.decompress(payload)) and not out[0].any()
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_that_have_no_words(dtype: torch.dtype) -> None:
    """A few are beside the words; else a frame has the values that the blocks stand for."""
    x = repeated(700, 501, dtype)
    bound = {"max_error": 0.5}
    other = x.clone()
    other[699, 500], other[0, 0], other[0, 1], other[99] = torch.nan, -torch.inf, -0.0, torch.nan
    payload = bounded.compress(other, **bound)
    assert form_of(payload) == (1, 2) and within(other, **bound) == {"frame"}
    for rows in (slice(0, 1), slice(98, 101), slice(699, 700)):
        some = bounded.decompress(payload, rows=rows)
        assert same_bits(some, bounded.decompress(payload)[rows])
    other[:, ::60] = -0.0
    assert within(other, **bound) == {"frame"}
    assert form_of(bounded.compress(other, **bound)) == (0, 0)
    for scale, bound in ((1e30, 1e10), (1, 1e-310), (1e-30, 1e-38)):
        values = (x.double() * scale).to(dtype)
        assert within(values, max_error=bound) == {"frame"}
        assert form_of(bounded.compress(values, max_error=bound)) == (0, 0)
    assert form_of(bounded.compress(x, pointwise=0.01)) == (0, 0)


@pytest.mark.parametrize("max_error", [0, 0.1])
@pytest.mark.parametrize("kind", ["few blocks", "many blocks", "nearly constant"])
def test_one_payload_whatever_computes_it(kind: str, max_error: float) -> None:
    threads = torch.get_num_threads()
    if kind == "nearly constant":
        x = mostly(40 * BLOCK, 0.5, {i * 99_991: 1.5 for i in range(25)}, torch.float32)
    else:
        x = repeated(700 if kind == "few blocks" else 1900, 501, torch.float32)
    expected = bounded.compress(x, max_error=max_error)
    y = bounded.decompress(expected)
    wanted = (2, 0) if kind == "nearly constant" else (1, 2) if max_error else (0, 0)
    assert maps(bounded.info(expected)) == {"frame"} and form_of(expected) == wanted
    try:
        for some in (1, 2):
            torch.set_num_threads(some)
            for level in _C.cpu_levels().split(","):
                _C.set_cpu_level(level)
                assert torch.equal(bounded.compress(x, max_error=max_error), expected)
                assert same_bits(bounded.decompress(expected), y)
    finally:
        torch.set_num_threads(threads)
        _C.set_cpu_level("")


def test_frames_are_clearly_shorter() -> None:
    """Blocks are read one by one, so a few percent are no reason; nor are runs of zeros."""
    for seed, zeros in ((0, 1.0), (1, 1.645)):
        x = torch.relu(gaussian(1024, 1024, seed=seed) - zeros)
        for bound in ({"max_error": 1e-3}, {"max_error": 0}):
            assert "frame" not in maps(bounded.info(bounded.compress(x, **bound)))
    for dtype in (torch.float32, torch.int32, torch.bool):
        payload = lossless(torch.zeros(1 << 21, dtype=dtype))
        assert "frame" not in maps(bounded.info(payload)) and payload.numel() <= 128


def test_blocks_where_they_are_shorter() -> None:
    """The rows that are there again are few among smooth ones, which blocks code better."""
    smooth = torch.linspace(0, 9, 2**20).sin().view(1024, 1024)
    smooth[::20] = gaussian(1024)
    bound = {"max_error": 1e-4}
    assert "frame" not in within(smooth, **bound)
    frames = bounded.compress(smooth[::20].contiguous(), **bound)
    assert form_of(frames)[0] == 1


# ---- nearly constant


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_nearly_constant(dtype: torch.dtype) -> None:
    n = 40 * BLOCK + 99
    one = 1 if dtype == torch.bool else 3.5
    others = dict.fromkeys(range(77, n, n // 60), 0.0) | {0: 0.0, n - 1: 0.0}
    x = mostly(n, one, others, dtype)
    check(x)
    payload = lossless(x)
    assert maps(bounded.info(payload)) == {"frame"} and form_of(payload) == (2, 0)
    assert bounded.info(payload).blocks[0].values == n
    if dtype.is_floating_point:
        for bound in ({"max_error": 0.1}, {"relative": 0.1}, {"pointwise": 0.1}):
            assert within(x, **bound) == {"frame"}
            assert form_of(bounded.compress(x, **bound)) == (2, 0)


def test_nearly_constant_sizes() -> None:
    for blocks in (1, 2, 3, 17, 100, 300):
        for count in (0, 1, 5, 200):
            n = blocks * BLOCK + 1
            others = {(7 + i * 99_991) % n: float(i) for i in range(count)}
            check(mostly(n, 0.5, others, torch.float32), second=blocks == 3)
            check(mostly(n, 0.0, others, torch.float32), second=False)


def test_rows_of_what_is_nearly_constant() -> None:
    x = mostly(30 * BLOCK, 0.5, {i * 99_991: 1.5 for i in range(19)}, torch.float32)
    x = x.view(-1, 128, 3)
    payload = lossless(x)
    assert form_of(payload) == (2, 0)
    for rows in (slice(0, 0), slice(0, 1), slice(5119, 5120), slice(200, 3000, 7)):
        assert same_bits(bounded.decompress(payload, rows=rows), x[rows])
    z = torch.view_as_complex(x[..., :2].contiguous())
    assert form_of(lossless(z)) == (2, 0)
    check(z)


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
