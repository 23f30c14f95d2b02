"""Lossless blocks of few values, of multiples and of one value, and values that are there again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounded.discrete import (
    FLOATS,
    REALS,
    WIDE,
    again,
    bits_each,
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
from tests.bounded.helpers import gaussian, same_bits
from torch_cgx import _C, bounded

BLOCK = 65536


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_palettes_of_any_type(dtype: torch.dtype) -> None:
    for count in (2, 16, 300, 4096, 4097):
        listed = colors(count, dtype)
        found = maps(check(picked(listed, 3000)))
        if dtype.itemsize >= 4 and count == 16:
            assert found == {"palette"}
        if count == 16:
            check(picked(listed, 1600).view(20, 80).sort()[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_palettes_end_at_4096_values(dtype: torch.dtype) -> None:
    """Some are frequent, so that a sample sees them again."""
    frequent = (4096 * torch.rand(BLOCK, generator=torch.Generator().manual_seed(0)) ** 6).long()
    for count in (4096, 4097):
        listed = colors(count, dtype)
        x = listed[frequent]
        x[::16] = listed[:4096]
        x[-1] = listed[-1]
        assert ("palette" in maps(check(x))) == (count == 4096)


def test_a_palette_has_the_bits_that_values_need() -> None:
    for count, dtype in ((16, torch.float32), (16, torch.float64), (200, torch.float64)):
        x = picked(colors(count, dtype), BLOCK)
        assert bits_each(x) < 1.02 * np.log2(count) + 0.3, count
    half = picked(colors(16, torch.bfloat16), BLOCK)
    assert bits_each(half) < 4.4


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("places", range(9))
def test_decimal_places(dtype: torch.dtype, places: int) -> None:
    x = decimals(3000, places, dtype)
    assert maps(check(x)) == {"multiples"}
    x[::997] = x[::997].nextafter(torch.tensor(torch.inf, dtype=dtype))  # no multiples
    x[5], x[6], x[7], x[2999] = torch.nan, -0.0, torch.inf, 1e30
    check(x)
    check(-x.abs())
    check(x * 1e3)


def test_a_price_takes_the_bits_of_its_cents() -> None:
    whole = np.random.default_rng(0).integers(0, 1000, BLOCK)
    for dtype in WIDE:
        assert bits_each(torch.from_numpy(whole / 100).to(dtype)) < 10.3


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_powers_of_two(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    whole = torch.from_numpy(np.random.default_rng(1).integers(-99, 100, 2000)).to(dtype)
    for unit in (1.0, 0.125, 2.0**40, 2.0**-40, info.smallest_normal, least, info.max / 2**8):
        check(whole * unit)
    powers = 2.0 ** torch.from_numpy(np.random.default_rng(2).integers(-30, 31, 2000)).to(dtype)
    check(powers)
    check(torch.cat([powers, -powers]).view(40, 100))
    assert bits_each(whole * 0.125) < 10


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("width", [33, 100, 777, 2000])
def test_rows_of_multiples(dtype: torch.dtype, width: int) -> None:
    x = rows_of_multiples(6000 // width + 2, width, dtype)
    assert maps(check(x)) == {"multiples"}
    x[1] = 0
    assert maps(check(x)) == {"multiples"}
    x[-1] = -0.0
    check(x)
    x[1, 3] = torch.nan
    check(x)
    x[1] = gaussian(width, dtype=dtype)
    check(x)
    check(x.t())


def test_rows_that_blocks_cut() -> None:
    for width in (1000, 40_000):
        x = rows_of_multiples(70_000 // width + 1, width)
        assert maps(check(x)) <= {"multiples", "palette"}
    for rows, width in ((300, 1000), (700, 400), (1300, 111), (60, 3333)):
        x = rows_of_multiples(rows, width)
        assert bits_each(x) < 9, (rows, width)
        check(x, second=False)
    planes = rows_of_multiples(1200, 111).view(20, 60, 111)
    assert maps(check(planes, second=False)) == {"multiples"}


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("reach", [40, 400, 4000])
def test_smooth_decimals_are_fields(dtype: torch.dtype, reach: int) -> None:
    """Hardly longer than the whole numbers that they are multiples of."""
    i, j = torch.arange(100.0).view(-1, 1), torch.arange(160.0)
    wave = torch.sin(i / 20) + torch.cos(j / 24) + torch.sin((i + j) / 60)
    whole = (wave * reach).round()
    x = whole.to(dtype) / 100
    assert maps(check(x)) == {"field"}
    assert lossless(x).numel() < 1.25 * lossless(whole.to(torch.int32)).numel()


def test_values_that_no_order_has() -> None:
    """NaN among rows that are looked at for multiples, which are sorted."""
    for dtype in WIDE:
        for step in (2, 3, 7):
            x = torch.arange(6400, 0, -1, dtype=dtype).view(100, 64) * 0.37
            x[:, ::step] = torch.nan
            check(x)
            x[:, 1::step] = -torch.inf
            check(x)


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_one_value_but_for_a_few(dtype: torch.dtype) -> None:
    value, other = (1.0, 0.0) if dtype == torch.bool else (3.0, 100.0)
    for n in (64, 1000, BLOCK):
        for places in ({0}, {n - 1}, {0, 1, n - 1}, {n // 2}, {n // 3, n // 2}):
            found = maps(check(mostly(n, value, dict.fromkeys(places, other), dtype)))
            if n == 1000 and places < {0, n - 1}:
                assert found == {"mostly"}
    assert lossless(mostly(BLOCK, value, {0: other, BLOCK - 1: other}, dtype)).numel() < 60


def test_as_many_others_as_are_listed() -> None:
    rng = np.random.default_rng(7)
    for count in (63, 64, 65, 200):
        places = rng.choice(BLOCK // 3 - 2, count, replace=False).tolist()
        x = mostly(
            BLOCK, -0.0, dict(zip(places, rng.normal(size=count), strict=True)), torch.float32
        )
        assert ("mostly" in maps(check(x))) == (count <= 64)
    rare = {5: torch.nan, 100: torch.inf, 101: -torch.inf, 102: 0.0}
    for dtype in FLOATS:
        check(mostly(2000, -0.0, rare, dtype))
        check(mostly(2000, torch.nan, {0: 1.0, 1999: -0.0}, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_values_that_are_there_again(dtype: torch.dtype) -> None:
    """In a tensor that is too short for a frame."""
    real = torch.float32 if dtype.is_complex else dtype
    x = again(16_000, 512, real)
    x = torch.view_as_complex(x.view(-1, 2)) if dtype.is_complex else x
    assert maps(check(x)) == {"bytes"}
    assert bits_each(again(16_000, 512, real)) < 13
    check(picked(gaussian(900, dtype=real), 4001))


KINDS = {
    "palette": lambda n: picked(colors(9, torch.float32), n),
    "wide palette": lambda n: picked(colors(9, torch.int64), n),
    "decimals": lambda n: decimals(n, 2, torch.float64),
    "rows": lambda n: rows_of_multiples(max(n // 40, 1), 40)[:, : min(n, 40)],
    "mostly": lambda n: mostly(n, 2.0, {n - 1: 1.0} if n else {}, torch.float32),
    "again": lambda n: again(n, 60),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sizes(kind: str) -> None:
    for n in range(401):
        check(KINDS[kind](n), second=n % 23 == 0)
    for n in (BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 63, 2 * BLOCK, 2 * BLOCK + 1):
        check(KINDS[kind](n), second=False)


@pytest.mark.parametrize("kind", KINDS)
def test_one_payload_whatever_computes_it(kind: str) -> None:
    x = KINDS[kind](3 * BLOCK + 77)
    expected, threads = lossless(x), torch.get_num_threads()
    try:
        for some in (1, 2):
            torch.set_num_threads(some)
            for level in ("scalar", "avx2"):
                if level not in _C.cpu_levels().split(","):
                    continue
                _C.set_cpu_level(level)
                assert torch.equal(lossless(x), expected), (some, level)
                assert same_bits(bounded.decompress(expected), x), (some, level)
    finally:
        torch.set_num_threads(threads)
        _C.set_cpu_level("")


def test_what_info_says() -> None:
    i = torch.arange(BLOCK)
    reach = torch.where(i // 4096 % 2 == 0, 1, 20)
    heaps = (gaussian(BLOCK, dtype=torch.float64) * reach).round() / 100
    block = check(heaps).blocks[0]
    assert block.map == "palette" and block.windowed and not block.packed
    assert block.predictor in ("none", "mean") and block.outliers == block.specials == 0
    prices = decimals(2000, 2, torch.float64)
    prices[::250] = torch.nan
    block = check(prices).blocks[0]
    assert block.map == "multiples" and block.specials == 8 and block.low_bits > 0
    block = check(mostly(BLOCK, 1.0, {5: 2.0}, torch.float32)).blocks[0]
    assert (block.map, block.predictor, block.windowed, block.low_bits) == (
        "mostly",
        None,
        False,
        0,
    )
    block = check(again(16_000, 512)).blocks[0]
    assert (block.map, block.predictor, block.windowed) == ("bytes", None, False)
    assert block.values == 16_000 and block.checksum_ok
    parts = bounded.info(lossless(again(70_000, 512, torch.int8)))
    assert parts.predictors.keys() <= {"bytes", "none", "mean", "previous", "raw", "frame"}


def test_parts_and_other_memory() -> None:
    x = rows_of_multiples(700, 100)
    made = lossless(x)
    for rows in (slice(0, 3), slice(650, 660), slice(10, 690, 7), slice(5, 5)):
        assert same_bits(bounded.decompress(made, rows=rows), x[rows])
    out = torch.empty(100, 700).t()
    assert bounded.decompress(made, out) is out and same_bits(out, x)
    for some in (
        x[::2],
        x[:, 1:],
        x.t(),
        x.view(70, 10, 100).transpose(0, 1),
        x[:1].expand(50, 100),
    ):
        check(some, second=False)
    z = torch.complex(picked(colors(5, torch.float64)[2:], 900), decimals(900, 2, torch.float64))
    check(z)
    check(z.conj().resolve_conj().view(30, 30))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize(
    "bound", [{"pointwise": 1e-14}, {"max_error": 1e-305}, {"max_error": 1e305}]
)
def test_bounds_that_no_map_takes(dtype: torch.dtype, bound: dict[str, float]) -> None:
    """Their values are lossless, so they may have these maps, and fields, too."""
    found = [check(picked(colors(9, dtype), 2000), **bound)]
    found.append(check(decimals(2000, 2, dtype), **bound))
    x, y = torch.arange(60.0).view(-1, 1), torch.arange(100.0)
    wave = (torch.sin(x / 30) + torch.cos(y / 25) + x * y / 4000).to(dtype)
    found.append(check(wave, **bound))
    assert set().union(*map(maps, found)) == {"palette", "multiples", "field"}
    assert found[0].bound != "lossless"


def test_rows_of_multiples_with_units_far_apart() -> None:
    """A special value has a word that stands for a finite number, whatever the unit of its row."""
    generator = torch.Generator().manual_seed(3)
    for dtype, far in ((torch.float32, 1e38), (torch.float64, 1.5e308)):
        words = torch.randint(-127, 128, (64, 64), generator=generator).double()
        x = (words * (torch.rand(64, 1, generator=generator) * 1e-3 + 1e-4)).to(dtype) + 0.0
        x[20] = torch.randint(0, 2, (64,), generator=generator).to(dtype) * far
        x[20, 0] = -0.0
        assert maps(check(x)) == {"multiples"}
        within(x, max_error=1e-9)
        within(x, pointwise=1e-9)


def test_mostly_finds_its_value_wherever_others_are() -> None:
    x = mostly(60_000, 1.5, {30_000: 2.0, 20_000: 3.0, 0: 4.0}, torch.float32)
    assert maps(check(x)) == {"mostly"}


# ---- with a bound

SOME_BOUNDS = [{"max_error": 0.01}, {"relative": 1e-4}, {"pointwise": 1e-3}]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("bound", SOME_BOUNDS, ids=str)
def test_few_values_within_a_bound(dtype: torch.dtype, bound: dict[str, float]) -> None:
    """Noise below the bound does not hide that they are few."""
    rng = np.random.default_rng(5)
    x = picked(torch.from_numpy(rng.normal(0, 100, 40)), BLOCK + 3000)
    quiet = x * (1 + torch.from_numpy(rng.uniform(-1e-6, 1e-6, len(x))))
    for values in (x, quiet.abs() + 1, x * 1e6):
        few = values.clone().to(dtype)
        few[7], few[100], few[200] = torch.nan, -0.0, torch.inf
        within(few, **bound)
    if "max_error" in bound:
        assert "palette" in within(quiet.to(dtype), **bound)
        assert 8 * bounded.compress(quiet.to(dtype), **bound).numel() < 5.6 * len(x)


@pytest.mark.parametrize("bound", SOME_BOUNDS, ids=str)
def test_other_maps_within_a_bound(bound: dict[str, float]) -> None:
    for x in (
        rows_of_multiples(30, 100),
        decimals(3000, 2, torch.float64) / 7e3,
        decimals(3000, 3, torch.float32),
        mostly(70_000, 1.5, {0: 2.0, 69_999: 3.0}, torch.float32),
        mostly(70_000, 0.0, {5: torch.nan, 6: 1e30}, torch.float64),
        again(16_000, 512),
        again(16_000, 512).to(torch.bfloat16),
    ):
        within(x, **bound)
    # Noise below the bound, and values that stand for others.
    x = mostly(70_000, 1.5, {9: 2.0, 69_999: 3.0}, torch.float32)
    noise = torch.rand(70_000, generator=torch.Generator().manual_seed(6)) * 1e-5
    within(x + noise, **bound)


def test_bits_that_repeat_within_numbers() -> None:
    """Means of 30 days of float32: as float64 their last bits have a period of 4 or 12."""
    rng = np.random.default_rng(7)
    days = (5000 + rng.normal(0, 1, (BLOCK + 12_345, 1)).cumsum(0) / 100).astype(np.float32)
    means = days[:, 0].astype(np.float64) * 7 / 15
    assert bits_each(torch.from_numpy(means)) < 0.75 * bits_each(
        torch.from_numpy(means * (1 + 1e-9 * rng.random(len(means))))
    )
    assert maps(check(torch.from_numpy(means))) == {"bytes"}
