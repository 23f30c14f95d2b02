"""CUDA tensors over NCCL, and across hosts, on the fake device with a double of NCCL's backend."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.backend.test_all_reduce import data, digest
from tests.device import fake_cuda

pytestmark = fake_cuda.needed

CONFIGS = [{"bits": 4, "bucket_size": 64}, {"bits": 32}, {"bits": 3, "bucket_size": 7}]
SIZES = [0, 1, 2, 3, 15, 16, 17, 100, 400, 513, 4097, 70_001]


def reduce_over(rank, world_size, hosts, settings, communicators):
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(hosts[rank]), **settings)
        group = dist.new_group(backend="cgx", pg_options=options)
        digests = []
        for n in SIZES:
            for config in CONFIGS:
                tensor = data(rank, n, seed=n).to("cuda")
                torch_cgx.all_reduce(tensor, config=config, group=group)
                digests.append(digest(tensor.cpu()))
        part = torch.empty(1000, device="cuda")
        whole = data(rank, 1000 * world_size).to("cuda")
        torch_cgx.reduce_scatter_single(part, whole, group=group, config={"bits": 8})
        torch_cgx.all_gather_single(whole, part, group=group, config={"bits": 8})
        digests.append(digest(whole.cpu()))
        assert torch_cgx.stats(group)["cuda_communicator"] == communicators[rank]
        dist.destroy_process_group(group)
        return digests


@pytest.mark.parametrize("algorithm", ["ONESHOT", "SRA", "RING"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_all_reduce_on_one_host(world_size, algorithm):
    settings = {"inner_communicator": "NCCL", "inner_reduction": algorithm}
    hosts = [0] * world_size
    results = fake_cuda.run(reduce_over, world_size, hosts, settings, ["nccl"] * world_size)
    assert all(result == results[0] for result in results), "ranks differ"
    options = torch_cgx.Options(inner_communicator="GLOO")
    assert results[0][:-1] == simulated(hosts, options, algorithm.lower())


@pytest.mark.parametrize(
    ("hosts", "communicators"),
    [
        ([0, 1, 2], ["nccl"] * 3),
        ([0, 0, 1, 1], ["cuda-ipc+nccl"] * 4),
        # Two ranks of the first host talk to no other host.
        ([0, 0, 0, 1], ["cuda-ipc+nccl", "cuda-ipc", "cuda-ipc", "nccl"]),
    ],
)
def test_across_hosts(hosts, communicators):
    """By default: shared memory inside hosts, NCCL between them."""
    results = fake_cuda.run(reduce_over, len(hosts), hosts, {}, communicators)
    assert all(result == results[0] for result in results), "ranks differ"
    options = torch_cgx.Options(shm_segment_kb=4096, segment_kb=4096)
    assert results[0][:-1] == simulated(hosts, options)


def test_across_hosts_over_gloo():
    hosts = [0, 0, 1, 1]
    settings = {"cross_communicator": "GLOO"}
    results = fake_cuda.run(reduce_over, 4, hosts, settings, ["cuda-ipc+gloo(pinned)"] * 4)
    assert all(result == results[0] for result in results), "ranks differ"
    options = torch_cgx.Options(shm_segment_kb=4096)
    assert results[0][:-1] == simulated(hosts, options)


def simulated(hosts, options, algorithm="auto"):
    digests = []
    for n in SIZES:
        for config in CONFIGS:
            inputs = [data(rank, n, seed=n) for rank in range(len(hosts))]
            simulation = torch_cgx.simulate(inputs, config, algorithm, hosts=hosts, options=options)
            digests.append(digest(simulation.result))
    return digests


def never_waits(rank, world_size):
    """Rank 0 waits for its work before rank 1 has begun its own."""
    store = dist.distributed_c10d._get_default_store()
    with fake_cuda.nccl():
        options = torch_cgx.Options(inner_communicator="NCCL", bits=4)
        group = dist.new_group(backend="cgx", pg_options=options)
        warm = torch.ones(100, device="cuda")
        dist.all_reduce(warm, group=group)  # connects
        warm.cpu()
        for turn in range(5):
            tensor = torch.full((50_000,), rank + 1.0, device="cuda")
            if rank == 1:
                store.wait([f"rank 0 has waited {turn}"])
            work = dist.all_reduce(tensor, group=group, async_op=True)
            work.wait()
            future = work.get_future()
            if rank == 0:
                assert not work.is_completed()
                store.set(f"rank 0 has waited {turn}", "")
            assert tensor.cpu().unique().tolist() == [3.0]
            assert work.is_completed() and future.wait()[0].cpu()[0] == 3.0
        dist.destroy_process_group(group)


def test_no_thread_waits_for_a_peer():
    fake_cuda.run(never_waits, 2)


def calls_after_the_first(rank, world_size, folder):
    os.environ["STUB_DRIVER_LOG"] = f"{folder}/{rank}.log"
    with fake_cuda.nccl():
        options = torch_cgx.Options(inner_communicator="NCCL", bits=4)
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(70_000, device="cuda")
        dist.all_reduce(tensor, group=group)  # connects, and allocates
        torch.cuda.synchronize()
        log = Path(os.environ["STUB_DRIVER_LOG"])
        before = len(log.read_text().splitlines())
        for _ in range(6):  # exchanges take four slots in turn
            dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
        dist.barrier()
        return [line.split()[0] for line in log.read_text().splitlines()[before:]]


def test_calls_after_the_first_allocate_nothing(tmp_path):
    """The driver may wait for the device when it allocates."""
    for names in fake_cuda.run_fresh(calls_after_the_first, 2, str(tmp_path)):
        assert names.count("cgx_sum") == 6, names
        assert "cuMemAlloc" not in names and "cuMemHostAlloc" not in names


def everything_else(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(cuda_backend="NCCL")
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.full((7,), float(rank), device="cuda")
        dist.broadcast(tensor, 1, group=group)
        assert tensor.cpu().tolist() == [1.0] * 7
        gaps = torch.full((4, 6), float(rank + 1), device="cuda")[:, ::2]
        dist.all_reduce(gaps, dist.ReduceOp.MAX, group=group)  # by way of a dense copy
        assert gaps.cpu().unique().tolist() == [2.0]
        dist.destroy_process_group(group)


def test_what_the_engine_does_not_reduce_goes_to_nccl():
    fake_cuda.run(everything_else, 2)


def refusals(rank, world_size):
    with fake_cuda.nccl():
        tensor = torch.ones(100, device="cuda")
        for settings, text in [
            ({"inner_communicator": "NCCL", "nonfinite": "raise"}, "nonfinite='raise'.*NCCL"),
            ({"inner_communicator": "NCCL", "checksum": True}, "CGX_CHECKSUM=1"),
        ]:
            group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**settings))
            with pytest.raises(ValueError, match=text):
                dist.all_reduce(tensor, group=group)
            dist.destroy_process_group(group)


def test_what_cannot_be_had_over_nccl_is_refused():
    fake_cuda.run(refusals, 2)


def other_bits(rank, world_size):
    with fake_cuda.nccl():
        group = dist.new_group(
            backend="cgx", pg_options=torch_cgx.Options(inner_communicator="NCCL")
        )
        tensor = torch.ones(1000, device="cuda")
        torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})
        torch.cuda.synchronize()
        if rank == 1:  # so that there is something to compare with
            dist.distributed_c10d._get_default_store().wait(["begun"])
            with pytest.raises(torch_cgx.MismatchError, match=r"disagree(.|\n)*, 5 bits"):
                torch_cgx.all_reduce(tensor, group=group, config={"bits": 5})
            return "refused"
        torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})
        dist.distributed_c10d._get_default_store().set("begun", "")
        return None


def test_ranks_of_a_host_with_other_bits_get_an_error():
    """Messages over NCCL carry no headers; ranks of a host compare calls before they start."""
    outcomes = fake_cuda.run_fresh(other_bits, 2, check=False)
    assert outcomes[1].value == "refused", [(o.error, o.log) for o in outcomes]


def go_on(group):
    """For a rank that has done its part without waiting for another: the error of the others comes
    while it does nothing, and its next call raises it.
    """
    time.sleep(8)
    dist.all_reduce(torch.ones(1), group=group)


def other_layers(rank, world_size, hosts, known):
    """`known`: the ranks that have run with their layers before; the others have not."""
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(hosts[rank]))
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(1000, device="cuda")
        shared = [(n, {"bits": 4}) for n in (400, 600)]
        if known:
            for layers in (shared, [(1000, {"bits": 5})], shared):
                torch_cgx.all_reduce(tensor, group=group, layers=layers)
        last = rank == world_size - 1
        start = time.monotonic()
        with pytest.raises(torch_cgx.MismatchError, match="disagree") as refused:
            torch_cgx.all_reduce(
                tensor, group=group, layers=shared[::-1] if last else shared, async_op=True
            ).wait()
            go_on(group)
        assert time.monotonic() - start < 20
        with pytest.raises(torch_cgx.CgxError):
            torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})
        return str(refused.value)


@pytest.mark.parametrize("known", [False, True], ids=["new", "known-to-the-others"])
@pytest.mark.parametrize("hosts", [[0, 1], [0, 1, 2], [0, 0, 1, 1]], ids=str)
def test_ranks_of_different_hosts_with_other_layers_get_an_error(hosts, known):
    """Their messages have equal lengths, and would be taken for each other."""
    for text in fake_cuda.run_fresh(other_layers, len(hosts), hosts, known):
        assert "disagree on the layers" in text, text
        assert text.count("all_reduce SUM of 1000 float32 values on CUDA, 4 bits") == 2, text


def other_steps(rank, world_size, hosts, known):
    """`known`: all ranks have agreed on an earlier step; the last one then goes on with another."""
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(hosts[rank]))
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(1000, device="cuda")
        config = {"bits": 4, "rounding": "stochastic"}
        if known:
            for step in (0, 1, 2):
                torch_cgx.all_reduce(tensor, group=group, config=config, step=step)
        last = rank == world_size - 1
        with pytest.raises(torch_cgx.MismatchError, match="disagree") as refused:
            step = 50 if last else 3
            torch_cgx.all_reduce(
                tensor, group=group, config=config, step=step, async_op=True
            ).wait()
            go_on(group)
        return str(refused.value)


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_ranks_of_different_hosts_with_other_steps_get_an_error(known):
    for text in fake_cuda.run_fresh(other_steps, 2, [0, 1], known):
        lines = [line for line in text.splitlines() if "runs all_reduce" in line]
        assert [line.rpartition(", ")[2] for line in lines] == ["step 3", "step 50"], text


def mean_or_sum(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(rank))
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(1000, device="cuda")
        torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})  # the same plan
        with pytest.raises(torch_cgx.MismatchError, match="disagree"):
            op = dist.ReduceOp.AVG if rank == 0 else dist.ReduceOp.SUM
            torch_cgx.all_reduce(tensor, op, group=group, config={"bits": 4})
            go_on(group)


def on_the_host_or_not(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(rank))
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(1000, device="cuda")
        torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})
        start = time.monotonic()
        with pytest.raises(torch_cgx.MismatchError, match=r"disagree(.|\n)*on CUDA"):
            if rank == 0:
                torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})  # waits for nobody
                go_on(group)
            torch_cgx.all_reduce(tensor.cpu(), group=group)
        assert time.monotonic() - start < 20


def while_a_receive_is_under_way(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(rank))
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(1000, device="cuda")
        torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            torch_cgx.all_reduce(tensor, group=group, config={"bits": 4})  # waits for nobody
            never = dist.irecv(torch.ones(1), 1, group=group)
            deadline = time.monotonic() + 20
            # wait() would keep the store's connection from all other threads of this process.
            while not store.check(["rank 1 has its error"]) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert never is not None
        start = time.monotonic()
        with pytest.raises(torch_cgx.MismatchError, match=r"disagree(.|\n)*on CUDA"):
            torch_cgx.all_reduce(tensor.cpu(), group=group)
        assert time.monotonic() - start < 18  # rank 0 does nothing else
        store.set("rank 1 has its error", "")


@pytest.mark.parametrize("job", [mean_or_sum, on_the_host_or_not, while_a_receive_is_under_way])
def test_other_disagreements_between_hosts_are_errors(job):
    fake_cuda.run_fresh(job, 2)


def read_before_the_sum(rank, world_size):
    """Rank 1 receives before it joins the sum that rank 0 has begun, with a plan that is new."""
    with fake_cuda.nccl():
        options = torch_cgx.Options(host_id=str(rank // 2))
        group = dist.new_group(backend="cgx", pg_options=options)
        x, y = (
            torch.full((5000,), 1.0, device="cuda"),
            torch.full((10,), float(rank), device="cuda"),
        )
        dist.broadcast(y, 0, group=group)  # makes what carries sends
        y.fill_(float(rank))
        torch_cgx.all_reduce(torch.ones(10, device="cuda"), group=group)
        if rank == 0:
            work = torch_cgx.all_reduce(x, group=group, config={"bits": 4}, async_op=True)
            dist.send(y + 1, 1, group=group)
            work.wait()
        else:
            if rank == 1:
                dist.recv(y, 0, group=group)
                assert y.cpu().tolist() == [1.0] * 10
            torch_cgx.all_reduce(x, group=group, config={"bits": 4})
        assert x.cpu().unique().tolist() == [float(world_size)]
        dist.destroy_process_group(group)


def test_a_new_plan_holds_up_no_other_call():
    fake_cuda.run_fresh(read_before_the_sum, 4, timeout=60)


def crossing(rank, world_size):
    with fake_cuda.nccl():
        group = dist.new_group(backend="cgx")
        peer = 1 - rank
        for n in (10, 100_000):
            mine = torch.full((n,), rank + 1.0, device="cuda")
            theirs = torch.zeros(n, device="cuda")
            batch = [dist.P2POp(dist.isend, mine, peer, group)]
            batch.append(dist.P2POp(dist.irecv, theirs, peer, group))
            for work in dist.batch_isend_irecv(batch):
                work.wait()
                assert work.is_success()
            assert theirs.cpu().unique().tolist() == [peer + 1.0]
            # With gaps, which stay: received into other memory, copied after the batch.
            wide = torch.zeros(n, 2, device="cuda")
            batch[1] = dist.P2POp(dist.irecv, wide[:, 0], peer, group)
            for work in dist.batch_isend_irecv(batch):
                work.wait()
                work.wait()
            assert wide.cpu().unique(dim=0).tolist() == [[peer + 1.0, 0.0]]
        dist.destroy_process_group(group)


def test_batches_of_sends_and_receives_that_cross():
    """NCCL runs them one after the other, unless they are marked as a batch."""
    fake_cuda.run_fresh(crossing, 2, timeout=60)


def watched(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(cuda_backend="NCCL")
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.full((7,), float(rank), device="cuda")
        work = dist.broadcast(tensor, 1, group=group, async_op=True)
        time.sleep(1)  # the group's watch looks at the work
        assert work.is_success()
        work.wait()
        assert tensor.cpu().tolist() == [1.0] * 7
        dist.broadcast(tensor, 1, group=group, async_op=True)
        dist.destroy_process_group(group)


def test_works_that_do_not_know_whether_they_succeeded():
    """Those of NCCL throw where isSuccess() is asked."""
    fake_cuda.run_fresh(watched, 2, timeout=60)


def destroyed(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(inner_communicator="NCCL")
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(3, device="cuda")
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, 0, group=group)
        dist.destroy_process_group(group)
        del group
        return fake_cuda.unclosed_nccl()


def test_the_end_of_a_group_lets_its_last_calls_end():
    """NCCL's backend, destroyed without shutdown(), aborts them, and warns."""
    assert fake_cuda.run_fresh(destroyed, 2, timeout=60) == [0, 0]


def failing(rank, world_size):
    with fake_cuda.nccl():
        options = torch_cgx.Options(cuda_backend="NCCL")
        group = dist.new_group(backend="cgx", pg_options=options)
        tensor = torch.ones(3, device="cuda")
        dist.broadcast(tensor, 0, group=group)
        fake_cuda.fail_nccl_once()
        with pytest.raises(torch_cgx.CgxError, match="told to fail"):
            dist.broadcast(tensor, 0, group=group)
        with pytest.raises(torch_cgx.CgxError, match="told to fail"):
            dist.all_reduce(torch.ones(3), group=group)  # the peers may be anywhere
        dist.destroy_process_group(group)


def test_an_error_of_nccl_ends_the_group():
    fake_cuda.run_fresh(failing, 2, timeout=60)
