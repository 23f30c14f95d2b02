"""Fields keep their promise, whatever their shapes and values; the second reader finds the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounded import adversary
from tests.bounded.discrete import within as check
from tests.bounded.forged import both_read
from tests.bounded.images import image, mask, smooth
from torch_cgx import _C, bounded

# Fills make the range of relative bounds wide.
pytestmark = pytest.mark.filterwarnings("ignore:relative=.* of the range:UserWarning")

BOUNDS: list[dict[str, float]] = [
    {"max_error": 1e-2},
    {"max_error": 1e-5},
    {"relative": 1e-4},
    {"pointwise": 1e-3},
    {"max_error": 0},
]
REAL = (torch.float32, torch.float64)


def maps_of(payload: torch.Tensor) -> set[str]:
    return {block.map for block in bounded.info(payload).blocks}


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@pytest.mark.parametrize("dtype", adversary.FLOATS, ids=str)
def test_types_and_bounds(dtype: torch.dtype, bound: dict[str, float]) -> None:
    found: set[str] = set()
    for shape in ((1500,), (33, 41), (4, 19, 27), (2, 3, 16, 17), (1, 1300, 1), (50, 1, 31)):
        found |= check(image(shape, dtype), **bound)
    # Numbers of 16 bits have so few values that fields are seldom shorter.
    assert "field" in found or dtype not in REAL


@pytest.mark.parametrize("dtype", adversary.INTEGERS)
def test_integers(dtype: torch.dtype) -> None:
    found: set[str] = set()
    for shape in ((1500,), (40, 50), (5, 20, 21)):
        x = image(shape, dtype, noise=1e-4)
        found |= check(x)
        if dtype.itemsize == 8:
            for far in (x.numpy() * 2**45, x.numpy() + 2**48, x.numpy() + 2**62):
                check(torch.from_numpy(far))
    assert found & {"field", "order"}
    assert "field" in found or dtype.itemsize == 1


def test_every_width_and_height() -> None:
    fields = 0
    for width in range(1, 71):
        for height in {1, 2, -(-1024 // width) + width % 5, 70 - width % 2}:
            planes = -(-1024 // (width * height))
            x = image((planes, height, width), seed=width)
            bound = {"max_error": 1e-3} if width % 3 else {"max_error": 0}
            fields += "field" in check(x, width % 8 == height % 8, **bound)
    assert fields > 140


@pytest.mark.parametrize("n", [1023, 1024, 1025, 65535, 65536, 65537])
def test_borders(n: int) -> None:
    for dtype in REAL:
        for bound in BOUNDS[:2] + BOUNDS[3:]:
            x = image((n,), dtype, n)
            check(x, n < 2000, **bound)
    check(image((n // 61, 61), torch.float32, n), n < 2000, max_error=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_small_tensors(dtype: torch.dtype) -> None:
    """Too small for fields, but of shapes like theirs."""
    bound = {"max_error": 1e-3} if dtype.is_floating_point else {}
    for n in range(0, 401, 3):
        width = 1 + n % 23
        check(image((n // width, width), dtype, n), False, **bound)


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", [(5, 130, 150), (90, 1999), (3, 2, 160, 161)], ids=str)
def test_blocks_that_begin_within_a_plane(shape: tuple[int, ...], bound: dict[str, float]) -> None:
    x = image(shape, seed=3)
    assert "field" in check(x, shape[0] == 5 and bound == BOUNDS[1], **bound)
    check(x.to(torch.float64), False, **bound)


def test_rows_are_those_of_the_whole() -> None:
    for shape in ((150, 999), (12, 130, 150)):
        payload = bounded.compress(image(shape), max_error=1e-3)
        assert maps_of(payload) == {"field"}
        whole = bounded.decompress(payload)
        last = shape[0]
        for rows in (slice(0, 1), slice(3, last - 2), slice(1, None, 5), slice(-1, None)):
            assert torch.equal(bounded.decompress(payload, rows=rows), whole[rows])
            out = torch.empty_like(whole[rows])
            bounded.decompress(payload, out, rows=rows)
            assert torch.equal(out, whole[rows])


@pytest.mark.parametrize("fill", [(np.nan,), (1e20,), (-9999.0,), (np.nan, np.inf, -9999.0, 1e20)])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.45, 1.0])
def test_holes(fill: tuple[float, ...], share: float) -> None:
    shape = (3, 24, 27)
    values = torch.tensor(np.random.default_rng(1).choice(fill, shape))
    for contiguous in (False, True):
        gone = mask(shape, share, contiguous)
        for dtype in REAL:
            x = torch.where(gone, values.to(dtype), image(shape, dtype))
            for bound in BOUNDS:
                check(x, **bound)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("fill", [np.nan, 1e20], ids=str)
def test_holes_are_no_part_of_a_field(dtype: torch.dtype, fill: float) -> None:
    """They cost little, in whatever way they are alike."""
    shape = (4, 50, 60)
    x = image(shape, dtype)
    size = bounded.compress(x, max_error=1e-3).numel()
    coast = mask(shape[1:], 0.2, True)[None].expand(shape)  # the same in each plane
    stripes = (torch.arange(60) % 7 == 0).expand(shape)  # in each row
    clouds = mask(shape, 0.2, True)
    for gone in (coast, stripes, clouds):
        made = bounded.compress(x.masked_fill(gone, fill), max_error=1e-3)
        assert maps_of(made) == {"field"} and made.numel() < 1.1 * size
        both_read(made.numpy().tobytes())


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
def test_bits_of_many_fills(count: int) -> None:
    """More NaN than a field has fills: the others are stored as they are."""
    shape = (40, 41)
    rng = np.random.default_rng(count)
    for dtype, bits, nan in (
        (torch.float32, torch.int32, 0x7F800001),
        (torch.float64, torch.int64, 0x7FF0000000000001),
    ):
        x = image(shape, dtype)
        fills = torch.from_numpy(nan + rng.choice(1000, count, replace=False)).to(bits)
        fills[::2] |= torch.iinfo(bits).min  # of both signs
        gone = mask(shape, 0.05, False).nonzero()
        which = torch.from_numpy(rng.integers(count, size=len(gone)))
        x.view(bits)[gone[:, 0], gone[:, 1]] = fills[which]
        assert check(x, max_error=0) <= {"field", "order"}
        payload = bounded.compress(x, max_error=1e-3)
        y = bounded.decompress(payload)
        assert maps_of(payload) == {"field"}
        assert torch.equal(y.view(bits)[x.isnan()], x.view(bits)[x.isnan()])
        both_read(payload.numpy().tobytes())


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_special_values_among_others(dtype: torch.dtype) -> None:
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    greatest = torch.finfo(dtype).max
    few = [np.inf, -np.inf, -0.0, 0.0, least, -least, 1e5 * least, greatest, -greatest, np.nan]
    for shape in ((1200,), (37, 41)):
        for bound in BOUNDS:
            if dtype == torch.float64 and "relative" in bound:
                continue  # of a range that float64 cannot hold
            x = image(shape, dtype)
            x.view(-1)[::97][: len(few)] = torch.tensor(few, dtype=dtype)
            check(x, **bound)
            x = image(shape, dtype).relu() * torch.where(mask(shape, 0.5, False), -1.0, 1.0)
            check(x, **bound)  # zeros of both signs


def test_ranges_of_all_magnitudes() -> None:
    for dtype, least, most in ((torch.float32, -44, 38), (torch.float64, -323, 308)):
        for shape in ((2000,), (45, 47)):
            exponents = smooth(shape, 5, 0.0)
            low, high = exponents.min(), exponents.max()
            exponents = least + (most - least) * (exponents - low) / (high - low)
            x = torch.from_numpy(10.0**exponents).to(dtype)
            for sign in (1, -1):
                for bound in (*BOUNDS, {"max_error": 1e30}, {"max_error": 10.0**least * 50}):
                    check(sign * x, **bound)


def test_subnormal_numbers_within_a_bound() -> None:
    """Their differences are exact: none may be as large as a bound that was rounded up."""
    for dtype, unit in ((torch.float32, 2.0**-149), (torch.float64, 2.0**-1074)):
        for parts in (1, 1.5, 100.25, 1e5 + 0.75, 1.5e6 + 0.9):
            x = torch.from_numpy(np.rint(3e6 * smooth((40, 50), 1)) * unit).to(dtype)
            check(x, max_error=parts * unit)


@pytest.mark.parametrize("dtype", adversary.FLOATS, ids=str)
def test_all_values_but_one_are_alike(dtype: torch.dtype) -> None:
    for shape in ((2000,), (50, 60), (3, 30, 40)):
        for place in (0, 777, -1):
            for value in (3.0, 1e4, np.nan, np.inf, -0.0):
                x = torch.full(shape, 2.5).to(dtype)
                x.view(-1)[place] = value
                for bound in BOUNDS[1:]:
                    check(x, False, **bound)


@pytest.mark.parametrize("bound", [{"max_error": 1.0}, {"pointwise": 1e-3}], ids=str)
def test_predictions_beyond_the_greatest_number(bound: dict[str, float]) -> None:
    """Words at the places of special values need not be any: what neighbours predict may be more
    than the greatest that there is.
    """
    place = torch.arange(128, dtype=torch.float64)
    wave = 2 + torch.sin(place[:, None] / 5) * torch.cos(place / 5)
    x = (wave / wave.max() * 65530).clamp(max=65504).to(torch.float16)
    x.view(-1)[x.view(-1).float().topk(20).indices] = torch.inf
    assert check(x, **bound) == {"field"}


@pytest.mark.parametrize("seed", [913, 1720, 1725, 4899, 6313, 6326])
def test_words_at_both_ends(seed: int) -> None:
    """Clipped waves, which lines continue so far that a residual is more than float32 counts: one
    such tensor in a thousand.
    """
    most = 2**20 - 1
    rng = np.random.default_rng(seed)
    rows, columns, height = rng.uniform(2, 9), rng.uniform(2, 9), rng.uniform(1, 6)
    wave = np.sin(np.arange(45)[:, None] / rows) * np.cos(np.arange(51) / columns)
    x = np.clip(np.rint(wave * most * height), -most, most).astype(np.int32)
    x[rng.random(x.shape) < 0.05] = most
    check(torch.from_numpy(x))


@pytest.mark.parametrize("bits", [31, 49])
@pytest.mark.parametrize("shape", [(60, 70), (9, 30, 40)], ids=str)
def test_the_greatest_words(bits: int, shape: tuple[int, ...]) -> None:
    """All that 32 bits hold, and the most that a field of 64 bits does."""
    wide = np.int32 if bits == 31 else np.int64
    places = np.meshgrid(*(np.arange(side) / 7 for side in shape), indexing="ij")
    wave = np.prod([np.cos(place) for place in places], axis=0)
    x = torch.from_numpy(np.clip(np.rint(wave * 2.0**bits), -(2**bits), 2**bits - 1).astype(wide))
    x.view(-1)[[5, 17, -1]] = -(2**bits)
    x.view(-1)[[6, 70, -2]] = 2**bits - 1
    assert check(x) == {"field"}
    assert check(x.view(torch.uint32 if bits == 31 else torch.uint64)) == {"field"}


def test_levels_and_threads_give_the_same() -> None:
    tensors = [
        (image((5, 130, 150)).masked_fill(mask((5, 130, 150), 0.1, True), torch.nan), BOUNDS[0]),
        (image((70, 2000), torch.float64), BOUNDS[1]),
        (image((300, 301), torch.float64), BOUNDS[4]),
        (image((300, 301)), BOUNDS[3]),
        (image((300, 301), torch.int16), {}),
    ]
    threads = torch.get_num_threads()
    for x, bound in tensors:
        made, values = set(), set()
        try:
            for level in _C.cpu_levels().split(","):
                _C.set_cpu_level(level)
                for some in (1, 2):
                    torch.set_num_threads(some)
                    payload = bounded.compress(x, **bound)
                    assert "field" in maps_of(payload)
                    made.add(payload.numpy().tobytes())
                    values.add(adversary.bits_of(bounded.decompress(payload)).tobytes())
        finally:
            _C.set_cpu_level("")
            torch.set_num_threads(threads)
        assert len(made) == len(values) == 1


def test_random_fields() -> None:
    rng = np.random.default_rng(8)
    fields = 0
    for number in range(80):
        shape = tuple(int(k) for k in rng.integers(8, 40, 2))
        shape = (-(-1024 // (shape[0] * shape[1])) + int(rng.integers(3)), *shape)
        x = image(shape, REAL[number % 2], number, float(rng.choice([0, 1e-6, 1e-3, 0.1])))
        x = x * 10.0 ** int(rng.integers(-4, 5))
        if rng.integers(2):
            share, fill = rng.uniform(0, 0.5), rng.choice([np.nan, np.inf, 1e20, -9999])
            x[mask(shape, share, bool(rng.integers(2)), number)] = fill
        kind = rng.choice(adversary.KINDS)
        bound = {str(kind): float(rng.choice([0, 1e-6, 1e-4, 1e-2, 0.3]))}
        fields += "field" in check(x, **bound)
    assert fields > 25


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_what_is_mostly_holes_is_a_field(share: float) -> None:
    """Their places are a mask, and what is between them is coded by the field's few neighbours."""
    shape = (200, 300)
    x = image(shape)
    gone = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < share
    for fill in (torch.nan, 1e20):
        some = torch.where(gone, torch.tensor(fill), x)
        assert check(some, max_error=1e-3) == {"field"}
        entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
        assert 8 * bounded.compress(some, max_error=1e-3).numel() < x.numel() * (
            1.1 * entropy + 12 * (1 - share) + 0.1
        )
