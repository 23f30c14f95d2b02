"""Diagnostics: flight record, log, profiler ranges."""

from __future__ import annotations

import json
import pickle
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.distributed import run_pooled, run_ranks
from torch_cgx import _C


def record(rank, world_size, path):
    x = torch.ones(4096)
    torch_cgx.all_reduce(x, config={"bits": 4})
    dist.all_reduce(x)
    dist.broadcast(x.double(), 1)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    dist.all_reduce(torch.ones(4).to_sparse())
    torch_cgx.dump_flight_record(f"{path}{rank}")
    torch_cgx.dump_flight_record(f"{path}{rank}.json")
    return [e for e in torch_cgx.flight_record()["entries"] if e["profiling_name"][:4] == "cgx:"]


def test_flight_record(tmp_path):
    results = run_ranks(record, 2, str(tmp_path / "trace_"))
    for rank, entries in enumerate(results):
        names = [entry["profiling_name"] for entry in entries]
        last = "cgx:recv" if rank else "cgx:send"
        assert names == ["cgx:all_reduce"] * 2 + ["cgx:broadcast", last, "cgx:all_reduce"]
        few, exact, moved, alone, sparse = entries
        assert [e["collective_seq_id"] for e in entries] == [1, 2, 3, 0, 4]
        assert alone["is_p2p"] and alone["p2p_seq_id"] == 1
        assert few["input_sizes"] == few["output_sizes"] == [[4096]]
        assert few["input_dtypes"] == ["Float"] and moved["input_dtypes"] == ["Double"]
        assert all(e["state"] == "completed" and e["retired"] for e in entries)
        assert few["bytes_before_compression"] == exact["bytes_before_compression"] == 4096 * 4
        # 4 bits and 8 bytes per bucket of 512, behind a header of 56 bytes.
        assert few["bytes_sent"] == 4096 // 2 + 8 * 8 + 56
        assert exact["bytes_sent"] == 4096 * 4 + 56
        assert "bits=4" in few["way"] and "shm" in few["way"]
        assert "exact" in exact["way"] and moved["way"] == "tree over shm, exact"
        assert alone["way"] == "shm" and sparse["way"] == "gloo"
        times = [e["time_created_ns"] for e in entries]
        assert times == sorted(times)
        assert few["time_created_ns"] <= few["time_discovered_completed_ns"]
        pickled = pickle.loads((tmp_path / f"trace_{rank}").read_bytes())
        written = json.loads((tmp_path / f"trace_{rank}.json").read_text())
        assert pickled["version"] == written["version"] == "2.10"
        # torch's own record of what gloo did stands beside it
        assert any(e["profiling_name"].startswith("gloo:") for e in written["entries"])


def failing(rank, world_size):
    with pytest.raises(torch_cgx.MismatchError):
        torch_cgx.all_reduce(torch.ones(100 + rank), config={"bits": 4})
    return torch_cgx.flight_record()["entries"][-1]


def test_a_failed_call_keeps_its_error():
    for entry in run_ranks(failing, 2):
        assert entry["state"] == "started" and entry["retired"]
        assert "disagree" in entry["error"]


def off(rank, world_size):
    dist.all_reduce(torch.ones(10))
    return torch_cgx.flight_record()["entries"]


def test_the_record_can_be_limited_and_switched_off():
    ours = [
        [e for e in entries if e["profiling_name"].startswith("cgx:")]
        for entries in run_ranks(off, 2, env={"TORCH_FR_BUFFER_SIZE": "0"})
    ]
    assert ours == [[], []]
    results = run_ranks(record_many, 2, env={"TORCH_FR_BUFFER_SIZE": "3"})
    assert results == [[6, 7, 8]] * 2


def record_many(rank, world_size):
    for _ in range(8):
        dist.all_reduce(torch.ones(10))
    ours = [e for e in torch_cgx.flight_record()["entries"] if e["profiling_name"][:4] == "cgx:"]
    return [e["collective_seq_id"] for e in ours]


def refused(rank, world_size):
    with pytest.raises(ValueError) as caught:
        dist.init_process_group("cgx", store=dist.HashStore(), rank=rank, world_size=world_size)
    return str(caught.value)


def test_a_bad_buffer_size_is_named():
    # Groups are made by the worker; a bad variable is an error there, on every rank.
    (text,) = run_ranks(refused, 1, backend=None, env={"TORCH_FR_BUFFER_SIZE": "many"})
    assert "TORCH_FR_BUFFER_SIZE='many' is not allowed" in text


def chatter(rank, world_size):
    x = torch.ones(1000)
    torch_cgx.all_reduce(x, config={"bits": 4})
    dist.all_reduce(x)
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    sys.stderr.flush()


def step_with_the_hook(rank, world_size):
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(CGXState(None, config={"bits": 4}), cgx_hook)
    model(torch.ones(2, 64)).sum().backward()


def lines_of(env, what=chatter):
    """What two ranks say; their stderr goes into the outcome's log only on failure."""
    outcomes = run_pooled(say, 2, what, env=env)
    return [line for text in outcomes for line in text.splitlines() if line.startswith("[cgx]")]


def say(rank, world_size, what):
    import os
    import tempfile

    with tempfile.TemporaryFile() as sink:
        before = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            group = dist.new_group([0, 1])
            default, dist.distributed_c10d.GroupMember.WORLD = dist.group.WORLD, group
            what(rank, world_size)
            dist.distributed_c10d.GroupMember.WORLD = default
        finally:
            os.dup2(before, 2)
            os.close(before)
        sink.seek(0)
        return sink.read().decode()


def test_the_log_names_the_communicator_of_a_call_and_the_reason():
    bits = {"CGX_COMPRESSION_QUANTIZATION_BITS": "8"}
    lines = lines_of({"CGX_LOG": "debug", **bits})
    text = "\n".join(lines)
    assert re.search(r"rank 0 of 2, group .*communicator shm", text), text
    assert re.search(r"one-shot over shm, maxmin bits=4 .*codec: given by the call", text), text
    assert re.search(r"maxmin bits=8 .*codec: compressed: bits=8", text), text
    assert re.search(r"exact: fewer values than min_size=16", text), text
    assert re.search(r"barrier.*: tree over shm", text), text
    assert "algorithm: inner_reduction=AUTO: two sides" in text
    assert "codec: ;" not in text  # of calls that have none
    assert len(lines) == 2 * (1 + 4)
    lines = lines_of({"CGX_LOG": "info"})
    made = (
        f"torch_cgx {_C.__version__}, SIMD level {_C.cpu_level()}, exact unless a call or a "
        "CGXState says otherwise (bits=32); communicator shm"
    )
    assert len(lines) == 2 and all(made in line for line in lines), lines
    assert "maxmin bits=8" in lines_of({"CGX_LOG": "info", **bits})[0]
    assert lines_of({}) == []


def test_the_log_says_who_chose_the_codec():
    lines = lines_of({"CGX_LOG": "debug"}, step_with_the_hook)
    reduced = [line for line in lines if "maxmin bits=4" in line]
    assert len(reduced) == 2, lines
    assert all("codec: chosen by cgx_hook;" in line for line in reduced), reduced


def profile(rank, world_size):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        torch_cgx.all_reduce(torch.ones(1000), config={"bits": 4})
        dist.broadcast(torch.ones(10), 0)
    return {event.name for event in profiler.events()}


def test_profiler_ranges():
    for names in run_pooled(profile, 2):
        assert {"cgx:all_reduce", "cgx:encode", "cgx:transfer", "cgx:decode"} <= names, names
