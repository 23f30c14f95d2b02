"""Sums in a format: CPD's golden vectors, a model in NumPy, and what `simulate` says of arguments.

The golden vectors hold for both variants, "cpd" and "ieee", except one that says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from torch_cgx import _shifts, emulate

TINY = [[1e-6, -3e-7], [2e-6, 5e-7]]  # V6
FOUR = [[0.3, -0.01], [0.25, 0.02], [-0.1, 0.005], [0.7, 0.001]]  # V7
STAGNATION = [[16.0]] + [[0.5]] * 16  # V8
FINE = [[1.0]] + [[0.03125]] * 31  # V8
DESCENDING = [[16.0], [1.0], [1.0], [1.0]]  # V9
NODE = [[0.3, -0.01], [0.25, 0.02]]  # V11
ZERO = [[0.0, 0.0]]  # V14

GOLDEN: list[tuple[tuple[int, int], list[list[float]], dict[str, Any], list[float]]] = [
    ((5, 2), TINY, {"aps": True}, [2.86102294921875e-06, 1.7881393432617188e-07]),
    ((4, 3), TINY, {"aps": True}, [2.86102294921875e-06, 1.7881393432617188e-07]),
    ((5, 2), TINY, {}, [0, 0]),
    ((4, 3), TINY, {}, [0, 0]),
    ((3, 0), TINY, {}, [0, 0]),
    ((5, 2), FOUR, {"aps": True}, [1, 0.015625]),
    ((5, 2), FOUR, {"aps": True, "kahan": True}, [1.25, 0.015625]),
    ((4, 3), FOUR, {"aps": True}, [1.125, 0.015625]),
    ((4, 3), FOUR, {"aps": True, "kahan": True}, [1.125, 0.015625]),
    ((3, 0), FOUR, {"aps": True}, [1, 0]),
    ((3, 0), FOUR, {"aps": True, "kahan": True}, [1, 0]),
    ((5, 2), FOUR, {}, [1, 0.015625]),
    ((5, 2), FOUR, {"kahan": True}, [1.25, 0.015625]),
    ((4, 3), FOUR, {}, [1.125, 0.017578125]),
    ((4, 3), FOUR, {"kahan": True}, [1.125, 0.017578125]),
    ((3, 0), FOUR, {}, [1, 0]),
    ((3, 0), FOUR, {"kahan": True}, [1, 0]),
    ((4, 3), STAGNATION, {}, [16]),
    ((4, 3), STAGNATION, {"kahan": True}, [24]),
    ((5, 2), FINE, {}, [1]),
    ((5, 2), FINE, {"kahan": True}, [2]),
    ((4, 3), DESCENDING, {}, [16]),
    ((4, 3), DESCENDING, {"order": "reverse"}, [20]),
    ((4, 3), NODE, {"aps": True, "emulate_node": 2}, [0.5625, 0.009765625]),
    ((5, 2), NODE, {"aps": True, "emulate_node": 2}, [0.5, 0.009765625]),
    ((3, 0), NODE, {"aps": True, "emulate_node": 2}, [0.5, 0.03125]),
    ((4, 3), ZERO * 2, {"aps": True}, [0, 0]),
    ((4, 3), ZERO * 4, {"aps": True, "emulate_node": 2}, [0, 0]),
]


def _sum(values: list[list[float]], format: Any, **arguments: Any) -> torch_cgx.Simulation:
    tensors = [torch.tensor(one) for one in values]
    return torch_cgx.simulate(tensors, accumulate=format, **arguments)


@pytest.mark.parametrize("variant", ["cpd", "ieee"])
@pytest.mark.parametrize(("bits", "values", "arguments", "expected"), GOLDEN)
def test_vectors_of_cpd(variant, bits, values, arguments, expected):
    found = _sum(values, emulate.Float(*bits, variant=variant), **arguments)
    assert found.result.tolist() == expected
    assert len(found.outputs) == len(values) // arguments.get("emulate_node", 1)


def test_a_tie_without_a_mantissa_goes_up_in_cpd_and_to_even_in_ieee():
    for variant, expected in (("cpd", 2.0**-18), ("ieee", 2.0**-19)):
        found = _sum(TINY, emulate.Float(3, 0, variant=variant), aps=True).result
        assert found.tolist() == [expected, 2.0**-22]


@pytest.mark.parametrize(("values", "exponent"), [(TINY, -17), (FOUR, 2), (NODE, 0)])
def test_exponents_of_vectors(values, exponent):
    """V6, V7, V11: E."""
    largest = torch.tensor(values).abs().max()
    assert _shifts.exponents_of(largest, len(values)).item() == exponent


def test_shifted_micro_batches():
    """V11: what is added up, for (4, 3) and (3, 0)."""
    for bits, shift, expected in (
        ((4, 3), 7, [[40.0, -1.25], [32.0, 2.5]]),
        ((3, 0), 3, [[2.0, -0.0], [2.0, 0.25]]),
    ):
        format = emulate.Float(*bits, variant="cpd")
        assert emulate.cast(torch.tensor(NODE) * 2.0**shift, format).tolist() == expected


def test_exponents_are_exact():
    """V12: the first three, of two ranks."""
    values = [1.0, 1.0000001, 0.9999999, 3e38, 2.0**-149, 0.0, float("nan"), float("inf")]
    for count, expected in ((2, [1, 2, 1, 129, -148]), (1, [0, 1, 0, 128, -149])):
        found = _shifts.exponents_of(torch.tensor(values), count).tolist()
        assert found == [*expected, _shifts.ZEROS, _shifts.NONFINITE, _shifts.NONFINITE]
    # Products that float32 would round to a power of two.
    assert _shifts.exponents_of(torch.tensor([1 + 2.0**-23]), 2**29 - 1).item() == 30


@pytest.mark.parametrize("shift", [-149, -127, -126, -1, 0, 1, 127, 128, 163, 254])
def test_shifts_round_once(shift):
    values = torch.tensor([1.0, -1.7, 2.0**-149, 3 * 2.0**-140, 2.0**-100, 1e30, 0.0])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        own = values.to(dtype, copy=True)
        _shifts.scale_(own, *_shifts.factors_of(torch.tensor([shift])))
        exact = np.ldexp(values.to(dtype).double().numpy(), shift)
        expected = torch.from_numpy(exact).float().to(dtype)  # both steps exact, or the last one
        assert torch.equal(own, expected), dtype


def _model(values: np.ndarray, exponent: int, mantissa: int) -> np.ndarray:
    """Nearest, ties to even, in float64: IEEE's formats with infinities."""
    bias = 2 ** (exponent - 1) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.floor(np.log2(np.abs(values)))
    place = np.clip(np.where(values == 0, 1 - bias, place), 1 - bias, None) - mantissa
    rounded = np.ldexp(np.rint(np.ldexp(values, -place.astype(int))), place.astype(int))
    most = (2 - 2.0**-mantissa) * 2.0**bias
    return np.where(np.abs(rounded) > most, np.copysign(np.inf, values), rounded)


def _model_sum(tensors, bits, kahan, aps):
    """As `simulate`, of float32 arrays of shape (ranks, n)."""
    shift = 0
    if aps and tensors.any():
        ratio = np.abs(tensors).max().astype(np.float64) * len(tensors)
        shift = 2 ** (bits[0] - 1) - 1 - int(np.ceil(np.log2(ratio)))
    given = np.ldexp(tensors.astype(np.float64), shift)
    total, excess = np.zeros(tensors.shape[1]), np.zeros(tensors.shape[1])

    def cast(x):
        return _model(np.float32(x).astype(np.float64), *bits)

    for one in _model(given, *bits) if aps else given:
        if not kahan:
            total = cast(total + one)
            continue
        y = cast(one - excess)
        t = cast(total + y)
        excess = cast(cast(t - total) - y)
        total = t
    return np.float32(np.ldexp(total, -shift))


@pytest.mark.parametrize("ranks", [2, 4, 8, 256])
@pytest.mark.parametrize("aps", [False, True])
@pytest.mark.parametrize("kahan", [False, True])
def test_sums_are_the_models(ranks, aps, kahan):
    generator = np.random.default_rng(ranks)
    for n, bits in ((0, (4, 3)), (1, (4, 3)), (7, (5, 2)), (400, (4, 3)), (65, (5, 10))):
        values = generator.standard_normal((ranks, n)) * 10.0 ** generator.uniform(-3, 0, n)
        values = values.astype(np.float32)
        tensors = [torch.from_numpy(one) for one in values]
        found = torch_cgx.simulate(
            tensors, accumulate=emulate.Float(*bits), kahan=kahan, aps=aps
        ).result.numpy()
        np.testing.assert_array_equal(found, _model_sum(values, bits, kahan, aps))


def test_micro_batches_of_ranks_lie_in_order():
    """Two ranks of two: each rank's sum first, rounded with its own shift."""
    batches = [torch.tensor([value]) for value in (16.0, 1.0, 0.0625, 0.0625)]
    found = torch_cgx.simulate(batches, accumulate="e4m3", emulate_node=2)
    # Without APS: 16 + 1 -> 16, 1/8, and 16 + 1/8 -> 16.
    assert (found.result.item(), len(found.outputs)) == (16.0, 2)
    found = torch_cgx.simulate(
        batches[1:3] + batches[:1] + batches[3:], accumulate="e4m3", emulate_node=2
    )
    assert found.result.item() == 16.0  # 1.0625 -> 1, a tie to even; 16.0625 -> 16; 17 -> 16
    assert found.error["max_abs"] == 1.125


@pytest.mark.parametrize("aps", [False, True])
def test_micro_batches_are_sums_of_sums(aps):
    """256 of them on 8 ranks: each rank's is what its micro-batches would give as ranks."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(50, generator=generator) * 1e-2 for _ in range(256)]
    found = torch_cgx.simulate(batches, accumulate="e4m3", aps=aps, emulate_node=32)
    sums = []
    for rank in range(8):
        own = batches[32 * rank : 32 * rank + 32]
        given = own if aps else [emulate.cast(one, "e4m3") for one in own]
        sums.append(torch_cgx.simulate(given, accumulate="e4m3", aps=aps).result)
    expected = torch_cgx.simulate(sums, accumulate="e4m3", aps=aps)
    assert torch.equal(found.result, expected.result)
    assert len(found.outputs) == 8
    exact = torch.stack(batches).double().sum(0)
    assert found.error["max_abs"] == (found.result - exact).abs().max().item()


def test_the_result_is_a_simulation():
    values = [torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([2.0, 4.0]).bfloat16()]
    copies = [value.clone() for value in values]
    found = torch_cgx.simulate(values, accumulate="e5m2", op=dist.ReduceOp.AVG)
    assert found.result.dtype == torch.bfloat16
    assert found.result.tolist() == [1.5, 3.5]
    assert found.error == {"max_abs": 0.0, "relative_l2": 0.0}
    assert (found.algorithm, found.bytes_sent_across) == ("gather", [0, 0])
    assert len(found.outputs) == 2 and torch.equal(found.outputs[0], found.outputs[1])
    assert all(torch.equal(a, b) for a, b in zip(values, copies, strict=True))
    node = torch_cgx.simulate(
        [values[0]] * 4, accumulate="e5m2", op=dist.ReduceOp.AVG, emulate_node=2
    )
    assert node.result.tolist() == [2.0, 6.0]  # over ranks, not micro-batches
    assert node.error["max_abs"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "each"),
    [
        ({}, 12),
        ({"aps": True}, 3 + 4),
        ({"emulate_node": 2}, 3),
        ({"accumulate": "e2m1"}, 12),
        ({"accumulate": "e2m1", "aps": True}, 2 + 4),
    ],
)
def test_bytes_of_the_values_that_are_gathered(arguments, each):
    tensors = [torch.ones(3)] * 4
    found = torch_cgx.simulate(tensors, **{"accumulate": "e4m3", **arguments})
    ranks = len(found.outputs)
    assert found.bytes_sent == [(ranks - 1) * each] * ranks


def test_values_that_are_not_finite():
    for bad in (float("nan"), float("inf"), -float("inf")):
        found = _sum([[1.0, 2.0], [bad, 1.0]], "e4m3fn", aps=True)
        assert found.result.isnan().all()  # e4m3fn alone would make 448 of an infinity
    assert _sum([[200.0], [200.0]], "e4m3").result.item() == float("inf")
    assert _sum([[200.0], [200.0]], "e4m3", aps=True).result.item() == 384.0


def test_random_rounding_is_keyed_by_the_step_and_by_each_addition():
    format = emulate.Float(4, 3, rounding="stochastic")
    tensors = [torch.full((1000,), 1.03)] * 8
    runs = [torch_cgx.simulate(tensors, accumulate=format, step=s).result for s in (3, 4)]
    assert not torch.equal(*runs)
    total = torch.zeros(1000)
    for number, tensor in enumerate(tensors):
        total = emulate.cast(total + tensor, format, step=3, number=number)
    assert torch.equal(runs[0], total)
    by_sequence = torch_cgx.simulate(tensors, accumulate=format, sequence=3).result
    assert torch.equal(by_sequence, total)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"accumulate": 3}, TypeError, "accumulate: format is 3, allowed"),
        ({"accumulate": "e9m9"}, ValueError, "accumulate: format is 'e9m9', allowed"),
        ({"accumulate": "e8m0"}, ValueError, "has no zero"),
        ({"accumulate": "mxfp4", "aps": True}, ValueError, "aps=True with the format block"),
        ({"accumulate": "e4m3", "kahan": 1}, TypeError, "kahan=1; allowed"),
        ({"accumulate": "e4m3", "aps": None}, TypeError, "aps=None; allowed"),
        ({"accumulate": "e4m3", "order": "random"}, ValueError, "order='random'; allowed: rank"),
        ({"accumulate": "e4m3", "emulate_node": 0}, ValueError, "emulate_node=0; allowed"),
        ({"accumulate": "e4m3", "emulate_node": 2.0}, TypeError, "emulate_node=2.0 is not"),
        ({"accumulate": "e4m3", "emulate_node": 2}, ValueError, "emulate_node=2 with 3 tensors"),
        ({"accumulate": "e4m3", "config": {"bits": 4}}, ValueError, "config=.* with accumulate"),
        ({"accumulate": "e4m3", "layers": [(2, None)]}, ValueError, "layers=.* with accumulate"),
        ({"accumulate": "e4m3", "algorithm": "sra"}, ValueError, "algorithm='sra' with accum"),
        ({"accumulate": "e4m3", "hosts": [0, 0, 1]}, ValueError, "hosts=.* with accumulate"),
        ({"accumulate": "e4m3", "residuals": []}, ValueError, r"residuals=\[\] with accumulate"),
        ({"accumulate": "e4m3", "options": torch_cgx.Options()}, ValueError, "options=.* with"),
        ({"accumulate": "e4m3", "op": dist.ReduceOp.MAX}, ValueError, "allowed: SUM, AVG"),
        ({"kahan": True}, ValueError, "kahan=True, .* without accumulate"),
        ({"order": "reverse"}, ValueError, "order='reverse', .* without accumulate"),
        ({"emulate_node": 3}, ValueError, "emulate_node=3 without accumulate"),
    ],
)
def test_errors_name_the_argument(arguments, kind, text):
    with pytest.raises(kind, match=text):
        torch_cgx.simulate([torch.ones(2)] * 3, **arguments)
