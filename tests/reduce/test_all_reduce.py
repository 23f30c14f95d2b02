"""The real reducers on simulated ranks against an independent numpy model, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests import _machinery
from tests.reduce import model, simulation
from tests.reduce.simulation import MIXED_LAYERS, gaussian, run
from torch_cgx import _C

RANKS = [1, 2, 3, 4, 7, 8, 9]
ALGORITHMS = ["oneshot", "sra", "ring"]
SLOT = 1 << 18


def check(inputs, layers, algorithm, average=False, slot_bytes=SLOT, **group):
    return simulation.check(inputs, layers, algorithm, average, slot_bytes=slot_bytes, **group)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_small_sizes(ranks, algorithm):
    dtypes = [torch.float32, torch.float16, torch.bfloat16]
    # All with 3 and with 8 ranks; else all around the borders, and a third of the others.
    turn = 0 if ranks in (3, 8) else 3
    for n in [*range(401), 511, 512, 513, 1023, 1024, 1025]:
        if turn and n < 400 and n % 64 not in (0, 1, 63) and n > 17 and (n // 8 + ranks) % turn:
            continue
        bits, dtype = n % 8 + 1, dtypes[n // 24 % 3]
        inputs = gaussian(ranks, n, dtype)
        check(inputs, [(n, _C.Codec(bits=bits, bucket_size=64))], algorithm)
        if n % 4 == 0:
            check(inputs, [(n, None)], algorithm)
            check(inputs, [(n, _C.Codec(codec=["bf16", "fp16"][n // 4 % 2], bits=16))], algorithm)


@pytest.mark.parametrize("bucket_size", [1, 2, 3, 7, 33, 48, 63, 64, 65, 100, 512, 1000, 4096])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_widths_and_bucket_sizes(algorithm, bucket_size):
    for bits in range(1, 9):
        n = (1000, 4097)[(bits + ALGORITHMS.index(algorithm)) % 2]
        check(gaussian(3, n), [(n, _C.Codec(bits=bits, bucket_size=bucket_size))], algorithm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_raw_and_encoded_layers_in_one_message(algorithm, average, dtype):
    n = sum(numel for numel, _ in MIXED_LAYERS)
    for ranks in (2, 3, 8):
        inputs = gaussian(ranks, n, dtype)
        check(inputs, MIXED_LAYERS, algorithm, average)
        check(inputs, MIXED_LAYERS, algorithm, average, slot_bytes=8192)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_result_does_not_depend_on_the_message_size(algorithm):
    spec = _C.Codec(bits=3, bucket_size=100)
    inputs = gaussian(2, 30_001)
    results = [
        run(inputs, [(30_001, spec)], algorithm, slot_bytes=s)[0][0] for s in (4096, 16384, 1 << 20)
    ]
    # One-shot rounds every value once, wherever it travels; in SRA the owner, whose own values are
    # not rounded, changes.
    if algorithm == "oneshot":
        assert all(model.same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_exact_layers_equal_the_float64_sum_within_rounding(ranks):
    n = 100_003
    inputs = gaussian(ranks, n)
    outputs, _ = run(inputs, [(n, None)])
    exact = torch.stack([x.double() for x in inputs])
    error = (outputs[0].double() - exact.sum(0)).abs()
    assert torch.all(error <= ranks * 2.0**-24 * exact.abs().sum(0))


@pytest.mark.parametrize(
    "algorithm, ranks, bits, bucket, expected",
    [
        ("oneshot", 8, 4, 512, 0.117),
        ("sra", 8, 4, 512, 0.162),
        ("sra", 8, 4, 1024, 0.172),
        ("sra", 8, 4, 128, 0.138),
        ("sra", 8, 8, 512, 0.0095),
        ("oneshot", 8, 4, 1024, 0.125),
    ],
)
def test_error_on_gaussian_data_agrees_with_the_model(algorithm, ranks, bits, bucket, expected):
    n = 1 << 18
    inputs = gaussian(ranks, n, seed=5)
    outputs, _ = run(inputs, [(n, _C.Codec(bits=bits, bucket_size=bucket))], algorithm)
    exact = sum(x.double() for x in inputs)
    error = ((outputs[0].double() - exact).norm() / exact.norm()).item()
    assert error == pytest.approx(expected, rel=0.05)


def test_error_does_not_grow_with_ranks():
    n = 1 << 15
    for ranks in (2, 8, 16, 64):
        inputs = gaussian(ranks, n, seed=ranks)
        outputs, _ = run(inputs, [(n, _C.Codec(bits=4, bucket_size=512))], "sra")
        exact = sum(x.double() for x in inputs)
        assert (outputs[0].double() - exact).norm() / exact.norm() < 0.175


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_stay_in_their_bucket(algorithm, poison):
    n, bucket = 2048, 64
    spec = _C.Codec(bits=4, bucket_size=bucket)
    for position in (0, 63, 64, 1000, 2047):
        for rank in range(3):
            inputs = gaussian(3, n)
            clean = run(inputs, [(n, spec)], algorithm)[0][0]
            inputs[rank][position] = poison
            dirty = run(inputs, [(n, spec)], algorithm)[0]
            mine = torch.zeros(n, dtype=torch.bool)
            mine[position // bucket * bucket : (position // bucket + 1) * bucket] = True
            for output in dirty:
                assert not torch.isfinite(output[mine]).any()
                assert model.same_bits(output[~mine], clean[~mine])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layer", [_C.Codec(bits=4, bucket_size=64), None])
def test_nonfinite_raise_is_an_error_on_every_rank(algorithm, layer):
    inputs = gaussian(4, 1000)
    run(inputs, [(1000, layer)], algorithm, raise_nonfinite=True)
    inputs[2][17] = float("inf")
    with pytest.raises(_C.NonFiniteError, match="nonfinite='raise'"):
        run(inputs, [(1000, layer)], algorithm, raise_nonfinite=True)


def test_nonfinite_raise_sees_an_overflow_of_the_sum():
    inputs = [torch.full((100,), 3e38), torch.full((100,), 3e38)]
    with pytest.raises(_C.NonFiniteError):
        run(inputs, [(100, None)], raise_nonfinite=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stochastic_rounding_replays_and_differs_between_calls(algorithm):
    spec = _C.Codec(bits=2, bucket_size=64, rounding="stochastic", seed=3)
    inputs = gaussian(3, 5000)
    layers = [(5000, spec)]
    first = run(inputs, layers, algorithm, sequence=7)[0]
    assert all(model.same_bits(x, first[0]) for x in first)
    assert model.same_bits(run(inputs, layers, algorithm, sequence=7)[0][0], first[0])
    assert not model.same_bits(run(inputs, layers, algorithm, sequence=8)[0][0], first[0])
    other_seed = _C.Codec(bits=2, bucket_size=64, rounding="stochastic", seed=4)
    assert not model.same_bits(
        run(inputs, [(5000, other_seed)], algorithm, sequence=7)[0][0], first[0]
    )


def test_stochastic_rounding_is_unbiased_over_calls():
    spec = _C.Codec(bits=2, bucket_size=64, rounding="stochastic")
    inputs = gaussian(4, 4096)
    exact = sum(x.double() for x in inputs)
    calls = 300
    mean = (
        sum(run(inputs, [(4096, spec)], "sra", sequence=s)[0][0].double() for s in range(calls))
        / calls
    )
    single = (run(inputs, [(4096, spec)], "sra")[0][0].double() - exact).norm()
    assert (mean - exact).norm() < 2 * single / calls**0.5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes_sent_equal_the_formula(algorithm):
    ranks, n, bits, bucket = 4, 100_000, 4, 512
    inputs = gaussian(ranks, n)
    _, info = run(inputs, [(n, _C.Codec(bits=bits, bucket_size=bucket))], algorithm)
    for rank, stats in enumerate(info["stats"]):
        if algorithm == "oneshot":
            expected = (ranks - 1) * (56 + -(-n // bucket) * 8 + -(-n * bits // 8))
        else:
            ((chunks,),) = _machinery.describe_plan(
                [(n, _C.Codec(bits=bits, bucket_size=bucket))], 0, ranks=ranks, algorithm=algorithm
            )
            sizes = [sum(p[3] for p in pieces) for pieces in chunks]
            if algorithm == "ring":  # partial sums on N - 1 hops, results on N - 1
                order = [*range(ranks), *range(ranks - 2)]
                expected = sum(56 + sizes[(rank - hop) % ranks] for hop in order)
            else:
                expected = sum(56 + s for r, s in enumerate(sizes) if r != rank) + (ranks - 1) * (
                    56 + sizes[rank]
                )
        assert stats["bytes_sent"] == expected
        assert stats["bytes_raw"] == 4 * n
        assert stats["calls"] == stats["compressed_calls"] == 1


def test_same_result_a_hundred_times():
    inputs = gaussian(4, 10_000)
    layers = [(10_000, _C.Codec(bits=4, bucket_size=512))]
    first = run(inputs, layers, "sra")[0][0]
    assert all(model.same_bits(run(inputs, layers, "sra")[0][0], first) for _ in range(100))
