"""The cost model: cases computed by hand; bytes and buckets as the engine and torch have them."""

import math

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests import _machinery
from torch_cgx import _C
from torch_cgx.cost import (
    Compute,
    Cost,
    Layer,
    Payload,
    Speed,
    Work,
    all_reduce,
    buckets_of,
    measure_speed,
    predict,
)
from torch_cgx.cost.allreduce import FRAMES, KERNEL


def exact(nbytes):
    return Payload(((nbytes // 4, None),))


def cost(seconds, processor=0.0):
    return Cost(seconds, 100.0, Work(seconds, processor))


def test_buckets_overlap_with_the_backward_pass():
    compute = Compute(10.0, (4.0, 8.0))
    # Hidden but for the last: begins at 8, ends at 9, then what follows the backward pass.
    step = predict(compute, [cost(3.0), cost(1.0)])
    assert (step.seconds, step.exposed, step.host_bytes) == (11.0, 1.0, 200.0)
    # The first one blocks the link: 4 + 6 + 2 = 12, then 2.
    assert predict(compute, [cost(6.0), cost(2.0)]).seconds == 14.0
    assert predict(compute, [cost(0.0), cost(0.0)]).exposed == 0.0


def test_on_busy_cores_work_delays_the_next_bucket():
    compute = Compute(10.0, (4.0, 8.0))
    costs = [cost(1.0, processor=0.5), cost(1.0, processor=0.5)]
    assert predict(compute, costs).seconds == 11.0
    assert predict(compute, costs, busy_cores=True).seconds == 11.5


def test_a_step_needs_costs_and_moments_that_fit():
    with pytest.raises(ValueError, match="2 costs; allowed: one for each of 1 buckets"):
        predict(Compute(1.0, (0.5,)), [cost(1), cost(1)])
    with pytest.raises(ValueError, match="ready="):
        Compute(1.0, (2.0,))


def test_a_slow_link_is_what_takes_the_time():
    found = all_reduce(exact(10**7), 1e8, hosts=2, latency=0.0)
    assert found.host_bytes == 10**7
    assert found.work.wire == pytest.approx(FRAMES * 0.8)
    assert found.work.processor == pytest.approx(2 * KERNEL * 10**7)
    # Some rounds overlap; they hide no more than the work.
    assert found.work.wire < found.seconds < found.work.wire + found.work.processor
    slow = all_reduce(exact(10**7), 1e8, hosts=2, latency=1.0)
    assert slow.seconds == pytest.approx(found.seconds + 2.0)  # there and back


@pytest.mark.parametrize("hosts, ranks_per_host", [(2, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize("bits_per_second", [1e7, 1e12])
def test_rounds_hide_the_shorter_of_wire_and_work(hosts, ranks_per_host, bits_per_second):
    layers = ((5_000_000, _C.Codec(bits=4)),)
    speed = Speed(encode=1e-9, decode=2e-9)
    found = all_reduce(Payload(layers), bits_per_second, hosts, ranks_per_host, speed, latency=0.0)
    labels = [f"host {rank // ranks_per_host}" for rank in range(hosts * ranks_per_host)]
    rounds = len(_machinery.describe_plan(layers, 0, **_C.simulated_group(labels)))
    wire, work = found.work.wire, found.work.processor
    assert rounds > 1
    assert found.seconds == pytest.approx(max(wire, work) + min(wire, work) / rounds)


def test_a_slow_codec_is_what_takes_the_time():
    speed = Speed(encode=1e-6, decode=2e-6)
    codec = _C.Codec(bits=4, bucket_size=100)
    payload = Payload(((1000, codec),))
    assert (payload.values, payload.nbytes) == (1000, 580)
    two = all_reduce(payload, 1e12, hosts=2, speed=speed, latency=0.0)
    # Each side encodes its values, and decodes those of both in rank order.
    assert two.work.processor == pytest.approx(1000 * 1e-6 + 2000 * 2e-6 + 2 * KERNEL * 580)
    payload = Payload(((1_000_000, codec),))  # so many that they are scattered
    four = all_reduce(payload, 1e12, hosts=4, speed=speed, latency=0.0)
    assert four.work.processor == pytest.approx(1.25 + 2 * 2.0 + 2 * KERNEL * four.host_bytes)


def test_exact_values_cost_no_codec():
    speed = Speed(encode=1e-6, decode=1e-6)
    codec = _C.Codec(bits=4, bucket_size=100)
    mixed = all_reduce(Payload(((1000, codec), (1000, None))), 1e12, 2, speed=speed, latency=0.0)
    assert mixed.work.processor == pytest.approx(3000e-6 + 2 * KERNEL * mixed.host_bytes)
    assert mixed.host_bytes == pytest.approx(4580, abs=16)  # aligned in the message


def test_ranks_of_a_host_share_its_link():
    codec = _C.Codec(bits=4)
    payload = Payload(((1 << 20, codec),))
    one = all_reduce(payload, 1e9, hosts=2)
    four = all_reduce(payload, 1e9, hosts=2, ranks_per_host=4)
    assert four.host_bytes == pytest.approx(one.host_bytes)
    assert four.work.wire == pytest.approx(one.work.wire)
    assert four.work.processor == pytest.approx(one.work.processor / 4)


def test_a_flat_ring_goes_over_all_ranks():
    found = all_reduce(exact(1 << 20), 1e8, hosts=2, ranks_per_host=4, latency=0.0, flat=True)
    assert found.host_bytes == pytest.approx(2 * 7 / 8 * (1 << 20))
    assert found.work.wire == pytest.approx(FRAMES * 8 * found.host_bytes / 1e8)
    late = all_reduce(exact(1 << 20), 1e8, hosts=2, ranks_per_host=4, latency=1.0, flat=True)
    assert late.seconds == pytest.approx(found.seconds + 14)


def test_one_host_has_no_link():
    assert all_reduce(exact(10), 1.0, hosts=1).seconds == 0.0


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("numel", [1 << 18, 1 << 20])  # small ones go to all peers at once
def test_bytes_are_those_of_the_reducers(hosts, ranks_per_host, bits, numel):
    ranks = hosts * ranks_per_host
    config = {"bits": bits}
    found = torch_cgx.simulate(
        [torch.randn(numel)] * ranks,
        config,
        hosts=[rank // ranks_per_host for rank in range(ranks)],
    )
    per_host = [
        sum(found.bytes_sent_across[host * ranks_per_host :][:ranks_per_host])
        for host in range(hosts)
    ]
    codec = None if bits == 32 else _C.Codec(bits=bits)
    expected = all_reduce(Payload(((numel, codec),)), 1e9, hosts, ranks_per_host).host_bytes
    assert max(per_host) == pytest.approx(expected, rel=0.03)  # whole buckets of the codec


@pytest.mark.parametrize("seed", range(8))
def test_buckets_are_those_of_torch(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 900_000, (30,), generator=generator).tolist()
    widths = [4 if seed < 4 or size % 3 else 2 for size in sizes]
    layers = [Layer(str(i), (n,), w) for i, (n, w) in enumerate(zip(sizes, widths, strict=True))]
    dtypes = {4: torch.float32, 2: torch.float16}
    tensors = [torch.empty(layer.numel, dtype=dtypes[layer.width]) for layer in reversed(layers)]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 << 20]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * 30)
    found = [[29 - int(layer.name) for layer in bucket] for bucket in buckets_of(layers)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


def test_speeds_are_measured():
    for config in ({"bits": 4}, {"codec": "rotated", "bits": 2}, {"bits": 16}):
        speed = measure_speed(config)
        assert 0 < speed.encode < 1e-6 and 0 < speed.decode < 1e-6
        assert measure_speed(dict(config)) is speed
    assert measure_speed({"bits": 32}).encode == 0.0
    assert math.isfinite(measure_speed({"bits": 8}).decode)
