"""Exact all-reduces over direct transfers, on simulated ranks: the bits of every other algorithm,
from when on, and what is sent.
"""

from __future__ import annotations

import pytest
import torch

from tests import _machinery
from tests.reduce import model
from tests.reduce.simulation import gaussian, run
from torch_cgx import _C

# Rounds of 1 KiB a chunk, and direct whatever the size.
DIRECT = {"direct_from": 1, "direct_chunk": 1024}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def check(inputs, layers, average=False, **group):
    """Runs it directly: equal on all ranks, and to the bit what one-shot gives by the model."""
    outputs, info = run(inputs, layers, average=average, **DIRECT, **group)
    assert info["algorithm"] == "direct"
    expected = model.all_reduce(inputs, layers, "oneshot", average)
    for output in outputs:
        assert model.same_bits(output, expected), (inputs[0].numel(), layers, len(inputs))
    return info["stats"]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9])
def test_sizes_around_every_border(ranks):
    # Granules of 16 values, chunks of a granule and of none, rounds of 256 fp32 values a rank.
    sizes = {*range(1, 50), 16 * ranks, 256 * ranks, 512 * ranks, 1280 * ranks, 30_001}
    for n in sorted({n + off for n in sizes for off in (-1, 0, 1) if n + off > 0}):
        dtype = DTYPES[n % 3]
        check(gaussian(ranks, n, dtype), [(n, None)], average=n % 2 == 0)


@pytest.mark.parametrize("hosts", [None, ["a", "b", "c"]])
def test_layers_are_one_run_of_values(hosts):
    group = {} if hosts is None else {"hosts": hosts}
    layers = [(700, None), (1, None), (0, None), (33, None), (5000, None), (15, None)]
    n = sum(numel for numel, _ in layers)
    for dtype in DTYPES:
        for average in (False, True):
            check(gaussian(3, n, dtype), layers, average, **group)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_bytes_sent_equal_the_formula(ranks):
    n = 100_003
    stats = check(gaussian(ranks, n), [(n, None)])
    chunks = [0] * ranks  # values by owner
    layers = [(n, None)]
    for (of_round,) in _machinery.describe_plan(layers, 0, ranks=ranks, **DIRECT):
        for owner, pieces in enumerate(of_round):
            chunks[owner] += sum(count for _, count, *_ in pieces)
    assert sum(chunks) == n
    for rank, one in enumerate(stats):
        headers = 56 * (ranks - 1)
        contributions, sums = n - chunks[rank], (ranks - 1) * chunks[rank]
        assert one["bytes_sent"] == headers + 4 * (contributions + sums)
    assert sum(one["bytes_received"] for one in stats) == sum(one["bytes_sent"] for one in stats)


def test_values_that_are_not_finite_stay_where_they_are():
    n = 5000
    inputs = gaussian(3, n)
    inputs[1][17], inputs[2][4000] = -float("nan"), float("-inf")
    (output, *_), info = run(inputs, [(n, None)], **DIRECT)
    assert info["algorithm"] == "direct"
    assert torch.isnan(output[17]) and output[4000] == float("-inf")
    assert output.view(torch.int32)[17] == 0x7FC00000
    assert torch.isfinite(output).sum() == n - 2


def algorithm_of(ranks, layers, dtype=torch.float32, **group):
    n = sum(numel for numel, _ in layers)
    return run(gaussian(ranks, n, dtype), layers, **group)[1]["algorithm"]


def test_direct_is_for_long_exact_tensors():
    n = (512 << 10) // 4
    over_gloo = {"direct": True}
    assert algorithm_of(2, [(n, None)], **over_gloo) == "direct"
    assert algorithm_of(2, [(n - 1, None)], **over_gloo) == "oneshot"
    assert algorithm_of(4, [(n - 1, None)], **over_gloo) == "sra"
    assert algorithm_of(4, [(n, None)], torch.float16, **over_gloo) == "sra"
    assert algorithm_of(4, [(2 * n, None)], torch.float16, **over_gloo) == "direct"
    assert algorithm_of(2, [(n, None)]) == "oneshot"
    # Not with a codec anywhere, on several levels, or where somebody looks at the messages.
    bits = _C.Codec(bits=4)
    assert algorithm_of(2, [(n, None), (64, bits)], **over_gloo) == "oneshot"
    assert algorithm_of(4, [(4 * n, None)], hosts=list("aabb"), **over_gloo) == "sra"
    assert algorithm_of(2, [(n, None)], raise_nonfinite=True, **over_gloo) == "oneshot"


def test_one_rank_sums_a_few_values():
    """N (N - 1) messages of one-shot against 2 (N - 1)."""
    over_gloo = {"direct": True}
    for n in (1, 16):
        assert algorithm_of(4, [(n, None)], **over_gloo) == "sra"
        assert algorithm_of(2, [(n, None)], **over_gloo) == "oneshot"
        assert algorithm_of(4, [(n, None)]) == "oneshot"
    assert algorithm_of(4, [(17, None)], **over_gloo) == "oneshot"
    assert algorithm_of(4, [(1, None), (1, None)], **over_gloo) == "oneshot"
    inputs = gaussian(4, 3)
    _, info = run(inputs, [(3, None)], **over_gloo)
    assert [one["messages_sent"] for one in info["stats"]] == [3, 1, 1, 1]


def test_rounds_are_of_one_size():
    """A tensor of a power of two is not cut into as many long rounds and a short one."""
    megabytes = 1 << 18  # values
    for ranks, size, rounds in [(2, 4, 1), (2, 16, 4), (4, 64, 8), (9, 64, 8), (2, 17, 5)]:
        plan = _machinery.describe_plan([(size * megabytes, None)], 0, ranks=ranks, direct=True)
        assert len(plan) == rounds
        counts = [piece[1] for shards in plan for pieces in shards[0] for piece in pieces]
        assert len(counts) == ranks * rounds and max(counts) - min(counts) <= 32
        if ranks <= 4:  # and the same between hosts
            hosts = list("abcd")[:ranks]
            between = [(size * megabytes, None)], 0
            assert _machinery.describe_plan(*between, hosts=hosts, direct=True) == plan
