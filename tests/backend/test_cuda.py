"""Collectives on CUDA tensors, on the fake device: every communicator gives the bits of the CPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.backend.test_all_reduce import data, digest
from tests.device import fake_cuda

pytestmark = fake_cuda.needed

# Messages of CUDA tensors through shared memory are four times as large.
IPC = {"CGX_INNER_COMMUNICATOR_TYPE": "SHM"}
WAYS = {
    "SHM": (IPC, "cuda-ipc", torch_cgx.Options(shm_segment_kb=4096)),
    "GLOO": ({"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}, "gloo(pinned)", None),
}
CONFIGS = [
    {"bits": 4, "bucket_size": 64},
    {"bits": 32},
    {"bits": 16},
    {"bits": 3, "bucket_size": 7},
    {"bits": 8, "codec": "float", "exponent": 3, "mantissa": 2},
    {"bits": 4, "codec": "block", "format": "mxfp4"},
]
SIZES = [*range(0, 401, 7), 511, 512, 513, 4097, 70_001]


def reduce_all(rank, world_size, communicator, sizes, dtype, op):
    digests = []
    for n in sizes:
        for config in CONFIGS:
            tensor = data(rank, n, dtype, seed=n).to("cuda")
            torch_cgx.all_reduce(tensor, op=op, config=config)
            digests.append(digest(tensor.cpu()))
    assert torch_cgx.stats()["cuda_communicator"] == (
        communicator if world_size > 1 else "in-process"
    )
    return digests


def reduce_with_residuals(rank, world_size, dtype, residual_dtype):
    digests = []
    for n in (1, 400, 4097):
        for config in CONFIGS:
            residual = data(rank, n, residual_dtype, seed=n + 1).to("cuda")
            for _ in range(2):
                tensor = data(rank, n, dtype, seed=n).to("cuda")
                torch_cgx.all_reduce(tensor, config=config, residual=residual)
            digests += [digest(tensor.cpu()), digest(residual.cpu())]
    return digests


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [1, 3])
def test_residuals_equal_the_simulations(way, residual_dtype, world_size):
    env, _, options = WAYS[way]
    dtype = torch.float32 if way == "SHM" else torch.bfloat16
    results = fake_cuda.run(reduce_with_residuals, world_size, dtype, residual_dtype, env=env)
    expected = [[] for _ in range(world_size)]
    for n in (1, 400, 4097):
        for config in CONFIGS:
            residuals = [data(rank, n, residual_dtype, seed=n + 1) for rank in range(world_size)]
            for call in range(2):
                inputs = [data(rank, n, dtype, seed=n) for rank in range(world_size)]
                found = torch_cgx.simulate(
                    inputs, config, options=options, sequence=call, residuals=residuals
                )
            for rank in range(world_size):
                expected[rank] += [digest(found.result), digest(residuals[rank])]
    assert results == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_reduce_equals_the_simulation(way, world_size):
    env, communicator, options = WAYS[way]
    dtype = [torch.float32, torch.bfloat16, torch.float16][world_size % 3]
    op = dist.ReduceOp.AVG if world_size == 3 else dist.ReduceOp.SUM
    results = fake_cuda.run(reduce_all, world_size, communicator, SIZES, dtype, op, env=env)
    expected = []
    for n in SIZES:
        for config in CONFIGS:
            inputs = [data(rank, n, dtype, seed=n) for rank in range(world_size)]
            expected.append(
                digest(torch_cgx.simulate(inputs, config, op=op, options=options).result)
            )
    assert all(result == results[0] for result in results), "ranks differ"
    assert results[0] == expected


LONG = {"bits": 8, "bucket_size": 100_000}


def long_buckets(rank, world_size):
    """A bucket that is longer than the messages between GPUs: the group's, and a call's."""
    tensors = [data(r, 120_000, torch.float32, seed=1) for r in range(world_size)]
    own = dist.new_group(pg_options=torch_cgx.Options(shm_segment_kb=16, **LONG))
    x = tensors[rank].to("cuda")
    dist.all_reduce(x, group=own)
    asked = dist.new_group(pg_options=torch_cgx.Options(shm_segment_kb=16))
    y = tensors[rank].to("cuda")
    with pytest.raises(
        ValueError, match=r"one bucket of 100000 values .*100008 bytes encoded.*SEGMENT_KB"
    ):
        torch_cgx.all_reduce(y, group=asked, config=LONG)
    torch_cgx.all_reduce(y, group=asked, config={**LONG, "bucket_size": 1000})
    names = [torch_cgx.stats(group)["cuda_communicator"] for group in (own, asked)]
    return names, [digest(x.cpu()), digest(y.cpu())]


def test_a_bucket_that_gpus_have_no_room_for():
    results = fake_cuda.run(long_buckets, 2, env=IPC)
    tensors = [data(rank, 120_000, torch.float32, seed=1) for rank in range(2)]
    found = [torch_cgx.simulate(tensors, {**LONG, "bucket_size": b}) for b in (100_000, 1000)]
    expected = [digest(one.result) for one in found]
    assert results == [(["shm(pinned)", "cuda-ipc"], expected)] * 2


def reduce_shards(rank, world_size):
    torch.manual_seed(5)
    whole = torch.randn(world_size, 1000 * world_size)
    mine = whole[rank].to("cuda")
    part = torch.empty(1000, device="cuda")
    torch_cgx.reduce_scatter_single(part, mine, config={"bits": 8, "bucket_size": 64})
    gathered = torch.empty(1000 * world_size, device="cuda")
    torch_cgx.all_gather_single(gathered, part, config={"bits": 8, "bucket_size": 64})
    exact = whole.double().sum(0)
    return (gathered.cpu().double() - exact).abs().max().item(), digest(gathered.cpu())


@pytest.mark.parametrize("way", WAYS)
def test_reduce_scatter_and_all_gather(way):
    results = fake_cuda.run(reduce_shards, 3, env=WAYS[way][0])
    # Two roundings of buckets that span less than 8 and 14: 3 ranks' halves of a step each.
    assert results[0][0] < (2 * 8 + 14) / 255 / 2 * 1.2 and results[0][0] > 0
    assert len({digest for _, digest in results}) == 1


def wait_for_nobody(rank, world_size):
    stream = fake_cuda.new_stream()
    with stream:
        tensor = torch.full((5000,), 1.0, device="cuda")
        with fake_cuda.held(stream):  # what produces the input has not run
            tensor.mul_(rank + 1.0)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            early = fake_cuda.peek(tensor)[0].item()
            done_early = work.is_completed()
        result = tensor.cpu()
    return early, done_early, result.unique().tolist(), work.is_completed()


def test_wait_makes_the_stream_wait_and_not_the_thread():
    """Over CUDA IPC, nothing on the host waits for a device."""
    for early, done_early, result, done in fake_cuda.run(wait_for_nobody, 2, env=IPC):
        assert early == 1.0 and not done_early
        assert result == [3.0] and done


def consume_elsewhere(rank, world_size):
    producer, consumer = fake_cuda.new_stream(), fake_cuda.new_stream()
    results = []
    for turn in range(30):
        with producer:
            tensor = torch.full((3000,), float(rank + turn), device="cuda")
            work = dist.all_reduce(tensor, async_op=True)
        with consumer:
            work.wait()
            doubled = tensor * 2
            tensor.record_stream(consumer)
            del tensor  # the memory may be handed out again at once
            results.append(doubled.cpu().unique().tolist())
    return results


@pytest.mark.parametrize("way", WAYS)
def test_producers_and_consumers_on_streams_of_their_own(way):
    results = fake_cuda.run(consume_elsewhere, 2, env=WAYS[way][0])
    expected = [[2.0 * (2 * turn + 1)] for turn in range(30)]
    assert results == [expected, expected]


def drop_at_once(rank, world_size):
    """Inputs that nobody holds any more while the call is under way."""
    works = []
    for turn in range(20):
        part = torch.empty(500, device="cuda")
        whole = torch.full((500 * world_size,), float(turn + rank), device="cuda")
        work = torch_cgx.reduce_scatter_single(
            part, whole, config={"bits": 8, "bucket_size": 50}, async_op=True
        )
        del whole
        torch.full((500 * world_size,), -1.0, device="cuda")  # where its memory was
        works.append((work, part))
    for work, _ in works:
        work.wait()
    return [part.cpu().unique().tolist() for _, part in works]


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_a_call_is_not_handed_out_again(way):
    expected = [[float(2 * turn + 1)] for turn in range(20)]
    assert fake_cuda.run(drop_at_once, 2, env=WAYS[way][0]) == [expected] * 2


def futures(rank, world_size):
    tensor = torch.full((100,), rank + 1.0, device="cuda")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    then = future.then(lambda done: [t * 10 for t in done.value()])
    values = future.wait()[0].cpu().unique().tolist()
    return values, then.wait()[0].cpu().unique().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_futures(way):
    assert fake_cuda.run(futures, 2, env=WAYS[way][0]) == [([3.0], [30.0])] * 2


def strided(rank, world_size):
    tensor = torch.arange(24.0, device="cuda").view(4, 6)[:, ::2]
    dist.all_reduce(tensor)
    return tensor.cpu().flatten().tolist()


def test_a_tensor_with_gaps():
    expected = (2 * torch.arange(24.0).view(4, 6)[:, ::2]).flatten().tolist()
    assert fake_cuda.run(strided, 2, env=IPC) == [expected] * 2


def both_groups(rank, world_size):
    other = dist.new_group(backend="cgx")
    first = torch.full((4000,), 1.0, device="cuda")
    second = torch.full((4000,), 10.0, device="cuda")
    works = [
        dist.all_reduce(first, async_op=True),
        dist.all_reduce(second, group=other, async_op=True),
    ]
    for work in works:
        work.wait()
    return first.cpu().unique().tolist(), second.cpu().unique().tolist()


def test_groups_side_by_side():
    assert fake_cuda.run(both_groups, 2, env=IPC) == [([2.0], [20.0])] * 2


def host_and_device(rank, world_size):
    for _ in range(3):
        on_cpu, on_gpu = torch.full((999,), 1.0), torch.full((999,), 2.0, device="cuda")
        works = [dist.all_reduce(on_gpu, async_op=True), dist.all_reduce(on_cpu, async_op=True)]
        for work in works:
            work.wait()
        assert on_cpu.unique().tolist() == [2.0] and on_gpu.cpu().unique().tolist() == [4.0]
    stats = torch_cgx.stats()
    return stats["calls"], stats["communicator"], stats["cuda_communicator"]


def test_tensors_of_host_and_device_in_one_group():
    assert fake_cuda.run(host_and_device, 2, env=IPC) == [(6, "shm", "cuda-ipc")] * 2


def lazily(rank, world_size):
    fake_cuda.set_lazy_contexts(True)
    try:
        tensor = torch.full((999,), 2.0, device="cuda")
        dist.all_reduce(tensor)
        return tensor.cpu().unique().tolist()
    finally:
        fake_cuda.set_lazy_contexts(False)


def test_threads_without_a_context():
    assert fake_cuda.run(lazily, 2, env=IPC) == [[4.0]] * 2


def raise_on_nan(rank, world_size):
    tensor = torch.ones(5000, device="cuda")
    if rank == 1:
        tensor = torch.full((5000,), float("nan")).to("cuda")
    with pytest.raises(torch_cgx.NonFiniteError):
        torch_cgx.all_reduce(tensor, config={"bits": 4})
    again = torch.ones(5000, device="cuda")
    torch_cgx.all_reduce(again, config={"bits": 4})
    return again.cpu().unique().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_nonfinite_raises_on_every_rank_and_the_group_goes_on(way):
    env = {**WAYS[way][0], "CGX_NONFINITE": "raise"}
    assert fake_cuda.run(raise_on_nan, 2, env=env) == [[2.0]] * 2


def raise_on_overflow(rank, world_size, dtype, config, largest):
    """A finite value that the format rounds to an Inf."""
    raised = []
    for value in (largest, largest * 1.125):
        tensor = torch.full((5000,), value if rank == 1 else 1.0, dtype=dtype).to("cuda")
        try:
            torch_cgx.all_reduce(tensor, config=config)
            raised.append(False)
        except torch_cgx.NonFiniteError:
            raised.append(True)
    return raised


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nonfinite_raises_where_a_format_has_no_such_number(dtype):
    env = {**WAYS["SHM"][0], "CGX_NONFINITE": "raise"}
    for config, largest, raises in (
        ({"bits": 8, "codec": "float", "exponent": 4, "mantissa": 3}, 240.0, True),
        ({"bits": 8, "codec": "float", "exponent": 5, "mantissa": 2}, 240.0, False),
        ({"bits": 8, "codec": "float", "overflow": "saturate"}, 240.0, False),
        ({"bits": 8, "codec": "block"}, 240.0, False),
    ):
        found = fake_cuda.run(raise_on_overflow, 2, dtype, config, largest, env=env)
        assert found == [[False, raises]] * 2, config


def capture(rank, world_size):
    os.environ["STUB_DRIVER_CAPTURING"] = "1"
    try:
        with pytest.raises(RuntimeError, match="CUDA graph"):
            dist.all_reduce(torch.ones(10, device="cuda"))
    finally:
        del os.environ["STUB_DRIVER_CAPTURING"]
    tensor = torch.ones(10, device="cuda")
    dist.all_reduce(tensor)
    return tensor.cpu().tolist()


def test_capture_into_a_graph_is_refused():
    assert fake_cuda.run(capture, 2, env=IPC) == [[2.0] * 10] * 2


def mismatch(rank, world_size):
    tensor = torch.ones(1000 + rank, device="cuda")
    with pytest.raises(torch_cgx.MismatchError, match="disagree"):
        torch_cgx.all_reduce(tensor, config={"bits": 4})
    with pytest.raises(torch_cgx.CgxError):
        dist.all_reduce(torch.ones(4))  # the group is broken for tensors of the host, too
    return True


@pytest.mark.parametrize("way", WAYS)
def test_a_mismatch_is_an_error_on_all_ranks(way):
    assert fake_cuda.run_fresh(mismatch, 2, env=WAYS[way][0]) == [True] * 2


def without_checksum(rank, world_size):
    with pytest.raises(ValueError, match="CGX_CHECKSUM=1.*MPI or GLOO"):
        dist.all_reduce(torch.ones(100, device="cuda"))


def test_checksums_need_a_way_through_the_host():
    fake_cuda.run_fresh(without_checksum, 2, env={**IPC, "CGX_CHECKSUM": "1"})


def with_checksum(rank, world_size):
    tensor = torch.ones(100, device="cuda")
    dist.all_reduce(tensor)
    return tensor.cpu().unique().tolist()


def test_checksums_over_gloo():
    env = {**WAYS["GLOO"][0], "CGX_CHECKSUM": "1"}
    assert fake_cuda.run_fresh(with_checksum, 2, env=env) == [[2.0]] * 2


def refuse_two_devices(rank, world_size):
    with pytest.raises(ValueError, match="cuda:0.*cuda:1|cuda:1.*cuda:0"):
        dist.all_reduce(torch.ones(4, device="cuda:0"))
        dist.all_reduce(torch.ones(4, device="cuda:1"))


def test_a_rank_uses_one_gpu():
    fake_cuda.run_fresh(refuse_two_devices, 1, env={"STUB_DRIVER_DEVICES": "2"})


def train(rank, world_size, settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    ddp = DistributedDataParallel(model.to("cuda"), bucket_cap_mb=0.01)
    state = CGXState(None, min_size=100, config=settings)
    ddp.register_comm_hook(state, cgx_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    inputs, targets = torch.randn(64, 20), torch.randint(0, 3, (64,))
    inputs, targets = inputs[rank::world_size].to("cuda"), targets[rank::world_size].to("cuda")
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    compressed = torch_cgx.stats()["compressed_calls"]
    parameters = digest(torch.cat([p.detach().cpu().flatten() for p in ddp.parameters()]))
    return losses, compressed, parameters


@pytest.mark.parametrize("way", WAYS)
def test_ddp_with_the_hook(way):
    settings = {"bits": 4, "bucket_size": 64}
    (losses, compressed, first), (_, _, second) = fake_cuda.run(
        train, 2, settings, env=WAYS[way][0], timeout=180
    )
    assert first == second, "ranks differ"
    assert compressed >= 12 and losses[-1] < losses[0] * 0.9
