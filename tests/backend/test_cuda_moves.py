"""Moves of CUDA tensors, on the fake device: broadcast, gathers, scatter and all-to-alls."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.device import fake_cuda

pytestmark = fake_cuda.needed

SHM = {"CGX_INNER_COMMUNICATOR_TYPE": "SHM"}
GLOO = {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}
# Short messages, so that values take several.
SHORT = {**SHM, "CGX_SHM_SEGMENT_KB": "16"}
SIZES = [0, 1, 7, 257, 9_001, 70_003]
DTYPES = [torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]


def sent(rank, to, n, dtype):
    """What a rank sends to another one; the same in every process."""
    numbers = (torch.arange(n) * 7 + rank * 31 + to * 13) % 11
    return numbers.to(torch.float32).to(dtype)


def same(found, expected):
    return torch.equal(found.cpu().view(torch.uint8), expected.contiguous().view(torch.uint8))


def move_all(rank, size, n, dtype, group):
    """One call of each collective; how many there were."""

    def empty(count):
        return torch.empty(count, dtype=dtype, device="cuda")

    root = n % size
    mine = [sent(rank, to, n, dtype).to("cuda") for to in range(size)]
    x = sent(rank, 0, n, dtype).to("cuda")
    dist.broadcast(x, root, group=group)
    assert same(x, sent(root, 0, n, dtype))
    outputs = [empty(n) for _ in range(size)]
    dist.all_gather(outputs, mine[0], group=group)
    assert all(same(outputs[r], sent(r, 0, n, dtype)) for r in range(size))
    uneven = [empty(n + r) for r in range(size)]
    dist.all_gather(uneven, sent(rank, 0, n + rank, dtype).to("cuda"), group=group)
    assert all(same(uneven[r], sent(r, 0, n + r, dtype)) for r in range(size))
    whole = empty(n * size)
    dist.all_gather_into_tensor(whole, mine[0], group=group)
    assert same(whole, torch.cat([sent(r, 0, n, dtype) for r in range(size)]))
    outputs = [empty(n) for _ in range(size)] if rank == root else None
    dist.gather(mine[root], outputs, root, group=group)
    assert rank != root or all(same(outputs[r], sent(r, root, n, dtype)) for r in range(size))
    x = empty(n)
    dist.scatter(x, mine if rank == root else None, root, group=group)
    assert same(x, sent(root, rank, n, dtype))
    counts = [[(n + r * 5 + p) % (n + 1) for p in range(size)] for r in range(size)]
    gets = [counts[r][rank] for r in range(size)]
    inputs = [sent(rank, p, counts[rank][p], dtype).to("cuda") for p in range(size)]
    expected = [sent(r, rank, gets[r], dtype) for r in range(size)]
    outputs = [empty(count) for count in gets]
    dist.all_to_all(outputs, inputs, group=group)
    assert all(same(found, one) for found, one in zip(outputs, expected, strict=True))
    x = empty(sum(gets))
    pieces = torch.cat([one.cpu() for one in inputs]).to("cuda")
    dist.all_to_all_single(x, pieces, gets, counts[rank], group=group)
    assert same(x, torch.cat(expected))
    return 8


def moves(rank, size, hosts, communicator):
    options = torch_cgx.Options(host_id=f"host {rank}") if hosts else None
    group = dist.new_group(backend="cgx", pg_options=options)
    calls = 0
    for number, n in enumerate(SIZES):
        for dtype in DTYPES[number % 2 :: 2]:
            calls += move_all(rank, size, n, dtype, group)
    stats = torch_cgx.stats(group)
    dist.destroy_process_group(group)
    assert stats["cuda_communicator"] == communicator, stats
    ways = [entry["way"] for entry in torch_cgx.flight_record()["entries"][-calls:]]
    assert {way.split(" over ")[-1] for way in ways} == {f"{communicator}, exact"}, ways


@pytest.mark.parametrize(
    ("env", "hosts", "communicator"),
    [
        (SHORT, False, "cuda-ipc"),
        (GLOO, False, "gloo(pinned)"),
        ({"CGX_CROSS_COMMUNICATOR_TYPE": "GLOO"}, True, "gloo(pinned)"),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_moves_reach_the_right_rank(env, hosts, communicator, size):
    fake_cuda.run(moves, size, hosts, communicator, env=env, timeout=120)


def alone(rank, size):
    return move_all(rank, size, 5, torch.float32, None)


def test_a_group_of_one_rank():
    assert fake_cuda.run(alone, 1) == [8]


def through_pinned_memory(rank, size):
    if rank == 1:
        os.environ["STUB_DRIVER_FAIL"] = "cuIpcOpenMemHandle"
    move_all(rank, size, 9_001, torch.float32, None)
    return torch_cgx.stats()["cuda_communicator"]


def test_gpus_that_do_not_reach_each_other():
    assert fake_cuda.run_fresh(through_pinned_memory, 2, env=SHM) == ["shm(pinned)"] * 2


def elsewhere(rank, size, settings):
    with fake_cuda.nccl():
        options = torch_cgx.Options(**settings)
        if "inner_communicator" not in settings and "cuda_backend" not in settings:
            options = torch_cgx.Options(host_id=str(rank // 2), **settings)
        group = dist.new_group(backend="cgx", pg_options=options)
        x = torch.full((65,), float(rank), device="cuda")
        dist.broadcast(x, 1, group=group)
        assert x.cpu().unique().tolist() == [1.0]
        stats = torch_cgx.stats(group)
        dist.destroy_process_group(group)
        return stats["calls"], stats["cuda_communicator"]


@pytest.mark.parametrize(
    "settings",
    [{"inner_communicator": "NCCL"}, {"cuda_backend": "NCCL"}, {"cross_communicator": "GLOO"}],
)
def test_nccl_and_two_levels_stay_with_the_inner_backend(settings):
    for calls, communicator in fake_cuda.run(elsewhere, 3, settings):
        assert (calls, communicator) == (0, None)


def pending(rank, size):
    stream, consumer = fake_cuda.new_stream(), fake_cuda.new_stream()
    found = []
    for turn in range(10):
        with stream:
            x = torch.full((3000,), float(turn), device="cuda")
            whole = torch.empty(3000 * size, device="cuda")
            x.add_(rank + 1.0)
            work = dist.all_gather_into_tensor(whole, x, async_op=True)
            del x
            torch.full((3000,), -1.0, device="cuda")  # where its memory was
        with consumer:
            work.wait()
            doubled = whole * 2
            whole.record_stream(consumer)
            del whole
            found.append(doubled.cpu().unique().tolist())
    return found


@pytest.mark.parametrize("env", [SHM, GLOO])
def test_streams_wait_for_each_other(env):
    expected = [[2.0 * (turn + 1), 2.0 * (turn + 2)] for turn in range(10)]
    assert fake_cuda.run(pending, 2, env=env) == [expected] * 2


def gaps(rank, size):
    x = torch.full((4, 6), float(rank), device="cuda")
    dist.broadcast(x[:, ::2], 1)
    rows = torch.zeros(2, 5, device="cuda")
    dist.all_gather([rows[0], rows[1]], torch.full((5,), rank + 1.0, device="cuda"))
    own = torch.arange(4.0, device="cuda") + 4 * rank
    dist.all_to_all_single(own, own)
    return x.cpu().unique(dim=1).tolist(), rows.cpu().tolist(), own.cpu().tolist()


def test_gaps_and_tensors_that_share_memory():
    found = fake_cuda.run(gaps, 2, env=SHM)
    rows = [[1.0] * 5, [2.0] * 5]
    assert found[0] == ([[0.0, 1.0]] * 4, rows, [0.0, 1.0, 4.0, 5.0])
    assert found[1] == ([[1.0]] * 4, rows, [2.0, 3.0, 6.0, 7.0])


def refusals(rank, size):
    on_host, on_gpu = torch.ones(4), torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="same device|must be alike"):
        dist.all_gather([on_host, on_gpu], on_gpu)
    with pytest.raises(ValueError, match="same device|must be alike"):
        dist.all_to_all([on_gpu, on_gpu], [on_gpu, on_host])
    long = torch.ones(200_000, device="cuda")
    with pytest.raises(ValueError, match="one bucket of 100000 values"):
        torch_cgx.broadcast(long, 0, config={"bits": 8, "bucket_size": 100_000})
    dist.broadcast(on_gpu, 0)  # the group goes on
    return on_gpu.cpu().tolist() == [1.0] * 4


def test_what_cannot_be_moved_is_an_error_before_anything_is_sent():
    assert fake_cuda.run(refusals, 2, env=SHORT) == [True] * 2


def on_different_devices(rank, size, used_before):
    if used_before:
        for device in ("cpu", "cuda"):
            dist.broadcast(torch.ones(10, device=device), 0)
    x = torch.ones(3000, device="cuda" if rank == 0 else "cpu")
    with pytest.raises(torch_cgx.MismatchError, match="disagree") as refused:
        dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
    return str(refused.value)


@pytest.mark.parametrize("used_before", [True, False])
def test_ranks_on_different_devices_get_an_error(used_before):
    for text in fake_cuda.run_fresh(on_different_devices, 2, used_before, env=SHM):
        assert "rank 0 runs" in text and "CUDA" in text, text


def other_sizes(rank, size):
    rows = [[5, 5], [4, 6]][rank]
    x, y = torch.ones(10, device="cuda"), torch.empty(10, device="cuda")
    with pytest.raises(torch_cgx.MismatchError, match="disagree"):
        dist.all_to_all_single(y, x, rows, rows)
        dist.broadcast(x, 0)  # a rank that has done its part learns it here


@pytest.mark.parametrize("env", [SHM, GLOO])
def test_sizes_that_differ_are_an_error(env):
    fake_cuda.run_fresh(other_sizes, 2, env=env)


def orphaned(rank, size):
    x = torch.ones(3000, device="cuda")
    dist.broadcast(x, 0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(torch_cgx.PeerLostError):
        dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
    return time.monotonic() - start < 5


def test_a_peer_that_dies():
    outcomes = fake_cuda.run_fresh(orphaned, 2, env=SHM, check=False)
    assert outcomes[0].value is True, outcomes[0]


def repeated(rank, size, folder):
    log = Path(os.environ.setdefault("STUB_DRIVER_LOG", f"{folder}/{rank}.log"))
    config = {"bits": 4, "bucket_size": 64}
    x, y = torch.ones(5_000, device="cuda"), torch.empty(5_000, device="cuda")
    torch_cgx.broadcast(x, 0, config=config)
    torch_cgx.all_to_all_single(y, x, config=config)
    torch.cuda.synchronize()
    before = len(log.read_text().splitlines())
    for _ in range(6):
        torch_cgx.broadcast(x, 0, config=config)
        torch_cgx.all_to_all_single(y, x, config=config)
    torch.cuda.synchronize()
    return [line.split()[0] for line in log.read_text().splitlines()[before:]]


def test_calls_after_the_first_make_no_tables(tmp_path):
    for names in fake_cuda.run_fresh(repeated, 2, str(tmp_path), env=SHM):
        assert any("decode" in name for name in names), names
        for name in ("cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync"):
            assert name not in names, name
