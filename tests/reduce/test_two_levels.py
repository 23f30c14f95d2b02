"""Hosts of several ranks, simulated: bit for bit against the numpy model; what leaves a host."""

from __future__ import annotations

import pytest
import torch

from tests.reduce import model
from tests.reduce.simulation import MIXED_LAYERS, check, gaussian, run, run_shards
from torch_cgx import _C

# The host of every rank.
LAYOUTS = {
    "2x2": "aabb",
    "2+1+1": "aabc",
    "4x1": "abcd",
    "5+2+1": "aaaaabbc",
    "1+3": "abbb",
    "3x2 alternating": "abcabc",
}
ALGORITHMS = ["oneshot", "sra", "ring"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TINY = {"segment_bytes": 1024, "slot_bytes": 16384}  # dozens of rounds for a few thousand values


# Between their own borders, sizes differ by nothing that an algorithm sees.
BORDERS = {*range(10), 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 399, 400}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_small_sizes(layout, algorithm):
    """Each size with each layout, and with each algorithm in one of two layouts at least."""
    hosts = list(LAYOUTS[layout])
    turn = ALGORITHMS.index(algorithm) + list(LAYOUTS).index(layout)
    for n in [*range(401), 511, 512, 513, 1023, 1024, 1025]:
        if n < 400 and n not in BORDERS and (n // 8 + turn) % 3:
            continue
        bits, dtype = n % 8 + 1, DTYPES[n // 24 % 3]
        inputs = gaussian(len(hosts), n, dtype)
        check(inputs, [(n, _C.Codec(bits=bits, bucket_size=64))], algorithm, hosts=hosts)
        if n % 4 == 0:
            check(inputs, [(n, None)], algorithm, hosts=hosts)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_rounds_under_way(layout, algorithm, average):
    # Each dtype with each layout, with each algorithm, and with both kinds of sum.
    turn = ALGORITHMS.index(algorithm) + list(LAYOUTS).index(layout) + average
    dtype = DTYPES[turn % 3]
    hosts = list(LAYOUTS[layout])
    layers = [*MIXED_LAYERS, (3001, None)]
    n = sum(numel for numel, _ in layers)
    inputs = gaussian(len(hosts), n, dtype)
    for more in ({}, {"leader_only": True}, {"inner_exact": False}):
        check(inputs, layers, algorithm, average, hosts=hosts, **TINY, **more)
    check(inputs, layers, algorithm, average, hosts=hosts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bucket_larger_than_a_segment_has_a_round_of_its_own(algorithm):
    n = 10_000
    spec = _C.Codec(bits=8, bucket_size=4000)
    for hosts in ("aabb", "abc"):
        group = {"hosts": list(hosts), "segment_bytes": 1024, "slot_bytes": 1 << 17}
        check(gaussian(len(hosts), n), [(n, spec)], algorithm, **group)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reduce_scatter(layout):
    hosts = list(LAYOUTS[layout])
    size = len(hosts)
    ways: list[dict] = [{}, {"leader_only": True}, {"inner_exact": False}]
    for shard in [*range(130), 511, 512, 513, 2000]:
        dtype = DTYPES[shard // 8 % 3]
        inputs = gaussian(size, shard * size, dtype)
        all_ways = shard in BORDERS or shard > 400
        for more in ways if all_ways else [ways[shard // 24 % 3]]:
            group = {"hosts": hosts, "segment_bytes": 2048, "slot_bytes": 1 << 17, **more}
            spec = _C.Codec(bits=shard % 8 + 1, bucket_size=64)
            outputs, _ = run_shards("reduce_scatter", inputs, spec, average=shard % 2 == 0, **group)
            expected = model.reduce_scatter(inputs, spec, average=shard % 2 == 0, **group)
            for output, wanted in zip(outputs, expected, strict=True):
                assert model.same_bits(output, wanted), (shard, more)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bucket", [1, 3])
def test_reduce_scatter_of_buckets_that_are_longer_encoded_than_exact(bucket, dtype):
    hosts = list("acbc")
    inputs = gaussian(4, 4 * 9000, dtype)
    spec = _C.Codec(bits=3, bucket_size=bucket)
    for leader_only in (False, True):
        group = {"hosts": hosts, "slot_bytes": 17 << 10, "inner_exact": False}
        group["leader_only"] = leader_only
        outputs, _ = run_shards("reduce_scatter", inputs, spec, **group)
        expected = model.reduce_scatter(inputs, spec, **group)
        for output, wanted in zip(outputs, expected, strict=True):
            assert model.same_bits(output, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_gather(layout):
    hosts = list(LAYOUTS[layout])
    size = len(hosts)
    for shard in [*range(130), 511, 512, 513, 2000]:
        dtype = DTYPES[shard // 8 % 3]
        inputs = gaussian(size, shard, dtype)
        for more in ({}, {"leader_only": True}):
            group = {"hosts": hosts, "segment_bytes": 2048, "slot_bytes": 1 << 17, **more}
            spec = _C.Codec(bits=shard % 8 + 1, bucket_size=64)
            outputs, _ = run_shards("all_gather", inputs, spec, **group)
            coded = [
                model.through_codec(model.to_float32(x), spec, dtype, source=model.to_float32(x))
                for x in inputs
            ]
            expected = torch.cat([torch.from_numpy(x).to(dtype) for x in coded])
            for output in outputs:
                assert model.same_bits(output, expected), (shard, more)


def test_auto_takes_what_fits_where_communicators_make_no_room():
    n = 400_000
    layers = [(n, _C.Codec(bits=8, bucket_size=n))]
    inputs = gaussian(24, n, torch.bfloat16)
    group = {"hosts": [str(rank // 8) for rank in range(24)], "inner_limit": 1 << 20}
    assert run(inputs, layers, "auto", **group)[1]["algorithm"] == "sra"
    with pytest.raises(ValueError, match="one bucket of 400000 values"):
        run(inputs, layers, "oneshot", **group)


@pytest.mark.parametrize("hosts", ["aab", "aaab", "aaaab", "aabb"])
def test_large_shards_with_a_compressed_inside(hosts):
    inputs = gaussian(len(hosts), 150_000 * len(hosts))
    spec = _C.Codec(bits=4, bucket_size=512)
    group = {"hosts": list(hosts), "inner_exact": False, "leader_only": hosts == "aabb"}
    outputs, _ = run_shards("reduce_scatter", inputs, spec, **group)
    expected = model.reduce_scatter(inputs, spec, **group)
    for output, wanted in zip(outputs, expected, strict=True):
        assert (output - wanted).norm() / wanted.norm() < 0.01


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_exact_shards(operation):
    for hosts in LAYOUTS.values():
        size = len(hosts)
        inputs = gaussian(size, 3000 * (size if operation == "reduce_scatter" else 1))
        outputs, _ = run_shards(operation, inputs, None, hosts=list(hosts), **TINY)
        exact = sum(x.double() for x in inputs)
        for rank, output in enumerate(outputs):
            if operation == "all_gather":
                assert torch.equal(output, torch.cat(inputs))
            else:
                mine = exact[rank * 3000 : (rank + 1) * 3000]
                torch.testing.assert_close(output.double(), mine, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nan_stays_in_its_bucket_and_raises_where_asked(layout, algorithm):
    hosts = list(LAYOUTS[layout])
    n, bucket = 4096, 64
    layers = [(n, _C.Codec(bits=4, bucket_size=bucket))]
    group = {"hosts": hosts, **TINY}
    clean = run(gaussian(len(hosts), n), layers, algorithm, **group)[0][0]
    for rank in range(len(hosts)):
        for position in (0, 2000, n - 1):
            inputs = gaussian(len(hosts), n)
            inputs[rank][position] = float("nan")
            mine = torch.zeros(n, dtype=torch.bool)
            mine[position // bucket * bucket : (position // bucket + 1) * bucket] = True
            for output in run(inputs, layers, algorithm, **group)[0]:
                assert not torch.isfinite(output[mine]).any()
                assert model.same_bits(output[~mine], clean[~mine])
            with pytest.raises(_C.NonFiniteError):
                run(inputs, layers, algorithm, raise_nonfinite=True, **group)


@pytest.mark.parametrize("leader_only", [False, True])
@pytest.mark.parametrize("layout", ["2x2", "2+1+1", "5+2+1", "3x2 alternating"])
@pytest.mark.parametrize("bits", [4, 32])
def test_nothing_leaves_a_host_twice(layout, leader_only, bits):
    hosts = list(LAYOUTS[layout])
    n, bucket = 1 << 18, 512
    spec = None if bits == 32 else _C.Codec(bits=bits, bucket_size=bucket)
    _, info = run(gaussian(len(hosts), n), [(n, spec)], "sra", hosts=hosts, leader_only=leader_only)
    count = len(set(hosts))
    encoded = 4 * n * (1 if spec is None else (bits + 64 / bucket) / 32)
    for host in set(hosts):
        left = sum(
            stats["bytes_sent_across"]
            for label, stats in zip(hosts, info["stats"], strict=True)
            if label == host
        )
        assert left == pytest.approx(2 * (count - 1) / count * encoded, rel=0.03)
    senders = [label for label, s in zip(hosts, info["stats"], strict=True) if s["messages_sent"]]
    assert len(senders) == len(hosts)
    talkers = sum(s["bytes_sent_across"] > 0 for s in info["stats"])
    smallest = min(hosts.count(host) for host in set(hosts))
    assert talkers == count * (1 if leader_only else smallest)


def relative_error(hosts, algorithm, n=1 << 16):
    inputs = gaussian(len(hosts), n, seed=len(hosts))
    outputs, _ = run(inputs, [(n, _C.Codec(bits=4, bucket_size=512))], algorithm, hosts=hosts)
    exact = sum(x.double() for x in inputs)
    return ((outputs[0].double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 32, 64])
def test_error_of_sra_does_not_grow_with_ranks(ranks):
    assert relative_error([str(r) for r in range(ranks)], "sra") < 0.17


def test_error_of_eight_hosts_of_eight_ranks():
    hosts = [str(rank // 8) for rank in range(64)]
    assert relative_error(hosts, "sra") < 0.17
    assert relative_error(hosts, "oneshot") < 0.125


def test_error_of_the_ring_grows_as_documented():
    errors = [relative_error([str(r) for r in range(ranks)], "ring") for ranks in (2, 8, 32)]
    assert errors[0] < 0.17
    assert errors[1] == pytest.approx(0.253, rel=0.1)
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stochastic_rounding_replays_and_agrees_on_all_ranks(algorithm):
    layers = [(5000, _C.Codec(bits=2, bucket_size=64, rounding="stochastic", seed=3))]
    group = {"hosts": list("aabbc"), **TINY}
    inputs = gaussian(5, 5000)
    first = run(inputs, layers, algorithm, sequence=7, **group)[0]
    assert all(model.same_bits(x, first[0]) for x in first)
    again = run(inputs, layers, algorithm, sequence=7, **group)[0][0]
    assert model.same_bits(again, first[0])
    other = run(inputs, layers, algorithm, sequence=8, **group)[0][0]
    assert not model.same_bits(other, first[0])
