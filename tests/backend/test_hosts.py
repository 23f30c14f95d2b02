"""Groups on several hosts, played by CGX_HOST_ID on this one: plans with odd borders; failures that
must reach ranks on other hosts.
"""

from __future__ import annotations

import resource
import signal
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, store
from tests.reduce import model
from torch_cgx._backend import backend_of


def on(hosts: str, **env: str) -> list[dict[str, str]]:
    return [{"CGX_HOST_ID": host, **env} for host in hosts]


def data(rank: int, n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(rank))


def reduce_layers(rank, world_size, layers, algorithm):
    n = sum(numel for numel, _ in layers)
    inputs = [data(r, n) for r in range(world_size)]
    mine = inputs[rank].clone()
    torch_cgx.all_reduce(mine, layers=layers)
    wanted = torch_cgx.simulate(
        inputs, layers=layers, algorithm=algorithm, hosts=backend_of().hosts()
    ).result
    return model.same_bits(mine, wanted)


@pytest.mark.parametrize("reduction", ["SRA", "RING", "ONESHOT"])
@pytest.mark.parametrize("hosts", ["abc", "abab", "aabb"])
def test_chunks_that_are_empty_in_the_first_round_only(hosts, reduction):
    layers = [(8192, {"bits": 8, "bucket_size": 8192}), (20_000, {"bits": 8, "bucket_size": 64})]
    env = on(hosts, CGX_SEGMENT_KB="1", CGX_CROSS_REDUCTION_TYPE=reduction)
    algorithm = {"SRA": "sra", "RING": "ring", "ONESHOT": "oneshot"}[reduction]
    arguments = (reduce_layers, len(hosts), layers, algorithm)
    assert run_pooled(*arguments, env=env, timeout=30) == [True] * len(hosts)


@pytest.mark.parametrize(
    "hosts, layers",
    [
        ("aabb", [(200_000, 1 << 18), (100_000, 1 << 18), (100_000, 1 << 18)]),
        ("abc", [(4_000_000, 1 << 22), *[(600_000, 1 << 20)] * 6]),
    ],
)
def test_layers_of_one_bucket(hosts, layers):
    layers = [(numel, {"bits": 4, "bucket_size": bucket}) for numel, bucket in layers]
    arguments = (reduce_layers, len(hosts), layers, "auto")
    assert run_pooled(*arguments, env=on(hosts), timeout=30) == [True] * len(hosts)


def scatter(rank, world_size):
    shard = 600_000
    inputs = [data(r, shard * world_size) for r in range(world_size)]
    output = torch.empty(shard)
    torch_cgx.reduce_scatter_single(output, inputs[rank], config={"bits": 8})
    exact = sum(x[rank * shard : (rank + 1) * shard].double() for x in inputs)
    return ((output.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("leader_only", ["0", "1"])
@pytest.mark.parametrize("hosts", ["aaab", "aabb"])
def test_reduce_scatter_with_a_compressed_inside(hosts, leader_only):
    env = on(hosts, CGX_INTRA_COMPRESS="1", CGX_INTRA_BROADCAST=leader_only)
    assert max(run_pooled(scatter, 4, env=env)) < 0.012


MEAN = dist.ReduceOp.AVG
# Of one round on few ranks, and of two on any of the layouts below.
LONG_EXACT = [
    (262_145, torch.float32, MEAN),
    (262_145, torch.bfloat16, dist.ReduceOp.SUM),
    (2_200_001, torch.float32, dist.ReduceOp.SUM),
]


def exact(rank, world_size):
    """Long exact tensors over Gloo, on all ranks as simulated; what was held for them."""
    one_host = len(set(backend_of().hosts())) == 1
    options = torch_cgx.Options(inner_communicator="GLOO")
    group = dist.new_group(pg_options=options)
    before = torch_cgx.stats(group)
    sent = 0
    for n, dtype, op in LONG_EXACT:
        inputs = [data(r, n).to(dtype) for r in range(world_size)]
        mine = inputs[rank].clone()
        dist.all_reduce(mine, op=op, group=group)
        hosts = None if one_host else backend_of(group).hosts()
        wanted = torch_cgx.simulate(inputs, {"bits": 32}, op=op, hosts=hosts, options=options)
        assert wanted.algorithm == "direct"
        assert model.same_bits(mine, wanted.result), (n, dtype, op)
        whole = sum(x.double() for x in inputs) / (world_size if op == MEAN else 1)
        close = 2.0 ** (-23 if dtype == torch.float32 else -8) * world_size
        assert (mine.double() - whole).abs().max() <= close * whole.abs().max()
        # Over TCP, and only there, a frame stands before the header.
        sent += wanted.bytes_sent[rank] + 8 * (world_size - 1)
    after = torch_cgx.stats(group)
    assert after["bytes_sent"] - before["bytes_sent"] == sent
    assert (after["bytes_sent_across"] == 0) == one_host
    return after["staging_bytes"]


@pytest.mark.parametrize("hosts", ["aaa", "ab", "abcd"])
def test_long_exact_tensors_go_directly(hosts):
    chunk = 2 << 20
    for held in run_pooled(exact, len(hosts), env=on(hosts), timeout=60):
        # Room for the contributions of three rounds, and the blocks of headers.
        assert 0 < held <= 3 * chunk * (len(hosts) - 1) + (1 << 20)


def failing(rank, world_size, what):
    """Seconds until this rank got the error of rank 1, and its text."""
    group = dist.new_group()
    torch_cgx.all_reduce(torch.ones(5000), group=group, config={"bits": 4})
    dist.barrier()
    start = time.monotonic()
    try:
        if rank == 1 and what == "abort":
            backend_of(group).abort()
        size, config = 100_000, {"bits": 4}
        if what == "direct":
            size, config = 1_000_000, {"bits": 32}
        if what == "few":
            size, config = 2, {"bits": 32}
        if rank == 1 and what != "abort":
            size = size * 3 // 2
        torch_cgx.all_reduce(torch.ones(size), group=group, config=config)
    except torch_cgx.CgxError as error:
        return time.monotonic() - start, f"{type(error).__name__}: {error}"
    return time.monotonic() - start, "nothing was raised"


@pytest.mark.parametrize("hosts", ["aabb", "aaabbc", "abcd"])
@pytest.mark.parametrize("what", ["abort", "size", "direct", "few"])
def test_a_failure_reaches_all_hosts_while_the_failed_rank_lives_on(hosts, what):
    if what in ("direct", "few") and hosts != "abcd":
        pytest.skip("one level only")
    results = run_pooled(failing, len(hosts), what, env=on(hosts), group_timeout=25)
    for seconds, text in results:
        assert "Error" in text, results
        assert seconds < 5, results
        if what != "abort":
            assert "MismatchError" in text and "rank 1 runs" in text, results


def profiled(rank, world_size):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(100))
        dist.barrier()
        group = dist.new_group()
    dist.all_reduce(torch.ones(100), group=group)
    return sorted({event.name for event in profile.events() if "gloo" in event.name})


def test_a_receive_that_outlives_a_profile_is_not_in_it():
    """Its end would write to memory of the profile that is freed by then."""
    assert run_pooled(profiled, 2, env=on("ab")) == [[], []]


def killed(rank, world_size):
    torch_cgx.all_reduce(torch.ones(5000), config={"bits": 4})
    dist.barrier()
    if rank == 0:
        signal.raise_signal(signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(torch_cgx.CgxError):
        torch_cgx.all_reduce(torch.ones(100_000), config={"bits": 4})
    return time.monotonic() - start


@pytest.mark.parametrize("hosts", ["aabb", "aaabbc", "abcd"])
def test_a_killed_rank_is_noticed_on_all_hosts(hosts):
    outcomes = run_pooled(killed, len(hosts), env=on(hosts), group_timeout=25, check=False)
    assert outcomes[0].exit_code == -signal.SIGKILL
    for outcome in outcomes[1:]:
        assert outcome.error is None, outcome.report()
        assert outcome.value < 5, [o.value for o in outcomes]


def without_shared_memory(rank, world_size):
    if rank == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    start = time.monotonic()
    try:
        dist.init_process_group(
            "cgx", store=dist.PrefixStore("g", store()), rank=rank, world_size=world_size
        )
    except (torch_cgx.CgxError, ValueError) as error:
        return time.monotonic() - start, str(error)
    finally:
        if rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    return time.monotonic() - start, "nothing was raised"


def test_a_host_without_shared_memory_is_an_error_on_all():
    results = run_pooled(without_shared_memory, 4, backend=None, env=on("aabb"))
    for seconds, text in results:
        assert "/dev/shm" in text or "shared memory" in text, results
        assert seconds < 10, results


SEGMENT_KB = 64


def held(rank, world_size, sizes):
    """staging_bytes on a new group after 40 calls of each size, enough for every block to have
    served every kind of message, and after ten more.
    """
    seen = []
    for n in sizes:
        group = dist.new_group()
        held = []
        for calls in (40, 10):
            for _ in range(calls):
                torch_cgx.all_reduce(torch.ones(n), group=group, config={"bits": 4})
            held.append(torch_cgx.stats(group)["staging_bytes"])
        seen.append(held)
    return seen


@pytest.mark.parametrize("hosts", ["ab", "abcd"])
def test_memory_of_messages_is_bounded_and_does_not_grow(hosts):
    sizes = [1, 3000, 100_000, 200_000, 300_000, 600_000, 3_000_000]
    env = on(hosts, CGX_SEGMENT_KB=str(SEGMENT_KB))
    for of_rank in run_pooled(held, len(hosts), sizes, env=env, timeout=60):
        for n, (first, second) in zip(sizes, of_rank, strict=True):
            encoded = n // 2 + 8 * -(-n // 512)
            segments = 2 * (SEGMENT_KB << 10) * (len(hosts) - 1)
            assert 0 < first == second <= 3 * encoded + segments, (n, first, second)


def test_shared_memory_needs_no_memory_for_messages():
    assert run_pooled(held, 2, [100_000]) == [[[0, 0]]] * 2
