"""Failures on CUDA tensors, on the fake device: what is missing is said, and nobody hangs."""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.device import fake_cuda
from tests.distributed import ROOT
from torch_cgx import _backend

pytestmark = fake_cuda.needed

SHM = {"CGX_INNER_COMMUNICATOR_TYPE": "SHM"}


def reduce_once(rank, world_size):
    tensor = torch.full((30_000,), rank + 1.0, device="cuda")
    torch_cgx.all_reduce(tensor, config={"bits": 4})
    return tensor.cpu().unique().tolist(), torch_cgx.stats()["cuda_communicator"]


@pytest.mark.parametrize("call", ["cuIpcOpenMemHandle", "cuIpcGetMemHandle", "cuIpcGetEventHandle"])
def test_gpus_that_do_not_reach_each_other_go_through_pinned_memory(call):
    """On one rank is enough."""
    results = fake_cuda.run_fresh(fail_one_call, 2, call, env={"CGX_LOG": "warn"})
    assert results == [([3.0], "shm(pinned)")] * 2


def fail_one_call(rank, world_size, call):
    if rank == 1:
        os.environ["STUB_DRIVER_FAIL"] = call
    return reduce_once(rank, world_size)


def refused_launch(rank, world_size):
    tensor = torch.ones(3000, device="cuda")
    dist.all_reduce(tensor)
    if rank == 0:
        os.environ["STUB_DRIVER_FAIL"] = "cuLaunchKernel"
    error = torch_cgx.ResourceError if rank == 0 else torch_cgx.CgxError
    with pytest.raises(error, match="cuLaunchKernel failed with 719"):
        torch_cgx.all_reduce(tensor, config={"bits": 4})


def test_a_call_that_the_driver_refuses_is_named_on_every_rank():
    fake_cuda.run_fresh(refused_launch, 2, env=SHM)


def lonely(rank, world_size):
    group = dist.new_group(backend="cgx", timeout=datetime.timedelta(seconds=4))
    tensor = torch.ones(3000, device="cuda")
    dist.all_reduce(tensor, group=group)
    dist.barrier()
    if rank == 1:
        time.sleep(6)
        return True
    start = time.monotonic()
    with pytest.raises(torch_cgx.TimeoutError, match="rank 1"):
        dist.all_reduce(tensor, group=group)
    return time.monotonic() - start < 8


@pytest.mark.parametrize("communicator", ["SHM", "GLOO"])
def test_a_peer_that_does_not_come(communicator):
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator}
    assert fake_cuda.run_fresh(lonely, 2, env=env, timeout=90) == [True, True]


def orphaned(rank, world_size):
    tensor = torch.ones(3000, device="cuda")
    dist.all_reduce(tensor)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(torch_cgx.PeerLostError):
        dist.all_reduce(tensor)
    assert time.monotonic() - start < 10
    return True


def test_a_peer_that_dies():
    outcomes = fake_cuda.run_fresh(orphaned, 2, env=SHM, check=False)
    assert outcomes[0].value is True, outcomes[0]


def orphaned_at_the_first_call(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(torch_cgx.PeerLostError):
        dist.all_reduce(torch.ones(3000, device="cuda"))
    assert time.monotonic() - start < 15
    return True


def test_a_peer_that_dies_before_its_first_call():
    outcomes = fake_cuda.run_fresh(orphaned_at_the_first_call, 2, env=SHM, check=False)
    assert outcomes[0].value is True, outcomes[0]


def on_different_devices(rank, world_size, late, used_before, hosts):
    host = "one" if hosts == 1 else f"of {rank}"
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(host_id=host))
    if used_before:
        for device in ("cpu", "cuda"):
            dist.all_reduce(torch.ones(10, device=device), group=group)
    tensor = torch.ones(3000, device="cuda" if rank == 0 else "cpu")
    if rank == late:
        time.sleep(1)
    start = time.monotonic()
    with pytest.raises(torch_cgx.MismatchError, match="disagree") as refused:
        dist.all_reduce(tensor, group=group)
    assert time.monotonic() - start < 15
    with pytest.raises(torch_cgx.CgxError):
        dist.all_reduce(torch.ones(10), group=group)
    return str(refused.value)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("hosts, used_before", [(1, True), (1, False), (2, False)])
def test_ranks_on_different_devices_get_an_error(hosts, late, used_before):
    for text in fake_cuda.run_fresh(on_different_devices, 2, late, used_before, hosts, env=SHM):
        assert "rank 0 runs" in text and "rank 1 runs all_reduce SUM of 3000 float32 " in text, text
        assert "CUDA" in text, text


def leaves_late(rank, world_size, aborts, folder):
    """Ranks 0 and 1 destroy their groups more than half a second apart."""
    group = dist.new_group(backend="cgx")
    dist.all_reduce(torch.ones(3000, device="cuda"), group=group)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["rank 0 has left"])
    if aborts:
        group.abort()
    with open(log := f"{folder}/{rank}.log", "wb") as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        os.dup2(stderr, 2)
    if rank == 0:
        dist.distributed_c10d._get_default_store().set("rank 0 has left", "")
    return Path(log).read_text()


@pytest.mark.parametrize("aborts", [False, True])
def test_memory_that_a_late_peer_has_open_is_kept(aborts, tmp_path):
    """The stub driver aborts a process that frees it."""
    said = fake_cuda.run_fresh(leaves_late, 2, aborts, str(tmp_path), env=SHM, timeout=60)
    line = r"\[cgx\] rank 0.*: \d+ MiB of GPU memory stay allocated until this process ends, .*\n"
    assert len(re.findall(line, said[0])) == 1, said


def leaves_in_step(rank, world_size):
    group = dist.new_group(backend="cgx")
    dist.all_reduce(torch.ones(3000, device="cuda"), group=group)
    torch.cuda.synchronize()
    bytes_there = ctypes.CDLL("libcuda.so.1").stub_own_bytes
    bytes_there.restype = ctypes.c_longlong
    before = bytes_there()
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return before - bytes_there() > 20 << 20


def test_memory_that_all_have_closed_is_freed():
    assert fake_cuda.run_fresh(leaves_in_step, 2, env=SHM, timeout=60) == [True, True]


MISSING = """
import torch_cgx
from tests import _machinery
try:
    _machinery.gpu_driver()
except torch_cgx.ResourceError as error:
    print(error)
"""


def test_no_driver_is_an_error_that_says_how_to_get_one():
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    if done.returncode == 0 and not done.stdout:
        pytest.skip("this machine has a driver")
    assert "libcuda.so.1" in done.stdout and "driver" in done.stdout, done


def traced(rank, world_size):
    tensor = torch.full((200_000,), 1.0, device="cuda")
    dist.all_reduce(tensor)  # connects
    torch_cgx.all_reduce(tensor, config={"bits": 4})
    tensor.cpu()
    log = os.environ["STUB_DRIVER_LOG"]
    before = len(open(log).readlines())
    torch_cgx.all_reduce(tensor, config={"bits": 4})
    tensor.cpu()
    return [line.split() for line in open(log).readlines()[before:]]


def test_what_the_driver_is_asked_for(tmp_path):
    """Launches per stage, all on one stream, and nothing that waits."""
    log = tmp_path / "driver.log"
    [calls] = fake_cuda.run_fresh(traced, 1, env={**SHM, "STUB_DRIVER_LOG": str(log)})
    names = [call[0] for call in calls]
    assert "cgx_encode" not in names  # nobody to send to
    [calls, _] = fake_cuda.run_fresh(
        traced_to_own_file, 2, str(tmp_path), env={**SHM, "CGX_INNER_REDUCTION_TYPE": "ONESHOT"}
    )
    names = [call[0] for call in calls]
    assert names.count("cgx_encode") == 1 and names.count("cgx_sum") == 1
    streams = {call[-1] for call in calls if call[0] in ("cgx_encode", "cgx_sum", "cuMemcpyAsync")}
    assert len(streams) == 1 and streams != {"0"}
    # The table of runs is there already, and memory is not asked for.
    for name in ("cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuModuleLoadData"):
        assert name not in names, name
    order = [n for n in names if n in ("cgx_encode", "cgx_sum", "cuMemcpyAsync", "cuEventRecord")]
    assert order.index("cgx_encode") < order.index("cuMemcpyAsync") < order.index("cgx_sum")


def traced_to_own_file(rank, world_size, folder):
    os.environ["STUB_DRIVER_LOG"] = f"{folder}/{rank}.log"
    return traced(rank, world_size)


def without_kernels(rank, world_size):
    load = _backend.load_kernels

    def missing(major, minor):
        raise RuntimeError("no kernels here")

    if rank == 1:
        _backend.load_kernels = missing
    group = dist.new_group(backend="cgx")
    tensor = torch.full((3000,), rank + 1.0, device="cuda")
    start = time.monotonic()
    with pytest.raises(Exception, match="no kernels here"):
        dist.all_reduce(tensor, group=group)
    assert time.monotonic() - start < 10
    on_host = torch.ones(10)
    dist.all_reduce(on_host, group=group)  # the group goes on
    _backend.load_kernels = load
    return on_host.tolist() == [2.0] * 10


def test_a_rank_that_cannot_use_its_gpu_is_not_waited_for():
    assert fake_cuda.run_fresh(without_kernels, 2, env=SHM, timeout=60) == [True, True]


def stats_while_it_connects(rank, world_size):
    loading, load = threading.Event(), _backend.load_kernels

    def slow(major, minor):
        loading.set()
        time.sleep(0.5)  # lets other threads run
        return load(major, minor)

    _backend.load_kernels = slow
    group = dist.new_group(backend="cgx")
    tensor = torch.ones(3000, device="cuda")
    thread = threading.Thread(target=dist.all_reduce, args=(tensor,), kwargs={"group": group})
    thread.start()
    assert loading.wait(10)
    assert torch_cgx.stats(group)["cuda_communicator"] is None
    thread.join()
    assert torch_cgx.stats(group)["cuda_communicator"] == "cuda-ipc"


def test_statistics_may_be_asked_for_while_the_gpu_is_made_ready():
    fake_cuda.run_fresh(stats_while_it_connects, 2, env=SHM, timeout=60)
