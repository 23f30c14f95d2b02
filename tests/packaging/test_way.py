"""The way of a bucket, a table of docs/contributing.md: the files from `cgx_hook` to the wire."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed import ROOT

# By file: what it calls on the way, as its source writes it.
CALLS = {
    "cgx_utils/hook.py": ("state.plan(", "backend.all_reduce_layers("),
    "csrc/bindings/group.cc": ("group.all_reduce_layers(",),
    "csrc/backend/reductions.cc": ("executor_->run(engine_calls_->all_reduce(",),
    "csrc/backend/executor.cc": ("worker_->submit(", "engine.run("),
    "csrc/backend/work/task_queue.cc": ("task();",),
    "csrc/reduce/engine.cc": (": all_reduce(call, output);",),
    "csrc/reduce/schedule/one_level.cc": ("team->run(",),
    "csrc/reduce/schedule/scatter_reduce_allgather.cc": ("stages.encode(", "channel_.post("),
    "csrc/reduce/schedule/host_stages.cc": ("codec->encode(",),
    "csrc/codec/families/maxmin/maxmin.cc": (),
    "csrc/reduce/schedule/channel.cc": ("comm_.post(",),
    "csrc/comm/shm/slots.cc": (),
    "csrc/comm/relay/relay.cc": ("sender_.post(",),
    "csrc/comm/relay/sender.cc": ("point_to_point().send(",),
    "csrc/comm/gloo/point_to_point.cc": ("inner_->send(",),
}
WIRES = {
    "SHM": {"csrc/comm/shm/slots.cc"},
    "GLOO": {file for file in CALLS if file.startswith(("csrc/comm/relay/", "csrc/comm/gloo/"))},
}


def _table():
    """[(file, function)] as the table has them."""
    text = (ROOT / "docs/contributing.md").read_text()
    section = text.partition("### The way of a bucket\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| \[`([^`]+)`\]\(\.\./\1\) \| `([^`]+)` \|", section, re.MULTILINE)


def _way(communicator):
    others = set().union(*(files for name, files in WIRES.items() if name != communicator))
    return [(file, function) for file, function in _table() if file not in others]


def test_every_file_on_the_way_has_its_function_and_calls_the_next_one():
    assert [file for file, _ in _table()] == list(CALLS)
    for file, function in _table():
        source = (ROOT / file).read_text()
        in_class, _, name = function.rpartition("::")
        assert re.search(rf"\b{name}\(", source) and in_class in source, f"{file}: no {function}"
        for call in CALLS[file]:
            assert call in source, f"{file} does not call {call}"


@pytest.mark.parametrize("communicator", WIRES)
def test_the_way_is_short(communicator):
    text = (ROOT / "docs/contributing.md").read_text()
    assert len(_way(communicator)) <= 14
    assert f"{len(_way(communicator))} over `{communicator}`" in text


JOB = """
import datetime, sys, torch, torch.distributed as dist, torch_cgx
from cgx_utils import CGXState, cgx_hook
store = dist.FileStore(sys.argv[2], 2)
limit = datetime.timedelta(seconds=120)
dist.init_process_group("cgx", store=store, rank=int(sys.argv[1]), world_size=2, timeout=limit)
for communicator in ("SHM", "GLOO"):
    options = torch_cgx.Options(inner_communicator=communicator, inner_reduction="SRA")
    group = dist.new_group(backend="cgx", pg_options=options, timeout=limit)
    model = torch.nn.Linear(300, 300)
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    model.register_comm_hook(CGXState(group=group, config={"bits": 4}), cgx_hook)
    for _ in range(2):
        model(torch.randn(4, 300)).sum().backward()
dist.destroy_process_group()
"""
PLACES = (
    "TaskQueue::submit",
    "(anonymous namespace)::MaxMinCodec::encode",
    "SlotExchange::post",
    "(anonymous namespace)::C10dPointToPoint::send",
)


def _file_of(function, way):
    """The file of the way that a function of a stack belongs to: by its class, or its name."""
    scopes = {name.rpartition("::")[0] or name: file for file, name in way}
    # The table names one function a file; these are what else a file runs.
    scopes["Summing"] = "csrc/reduce/schedule/host_stages.cc"
    scopes["run_team"] = "csrc/reduce/schedule/one_level.cc"
    scopes["relay::Sender"] = "csrc/comm/relay/sender.cc"
    return scopes.get(function.rpartition("::")[0] or function)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory):
    """What way_trace.py has printed of a job that reduces over both communicators."""
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not here: apt-get install gdb")
    environment = {**os.environ, "WAY_BREAKS": ";".join(f"cgx::{place}" for place in PLACES)}
    job = [sys.executable, "-c", JOB]
    store = str(tmp_path_factory.mktemp("way") / "store")
    gdb = ["gdb", "-q", "-batch", "-x", str(Path(__file__).with_name("way_trace.py")), "--args"]
    with subprocess.Popen([*job, "1", store], env=environment, cwd=ROOT) as peer:
        try:
            traced = subprocess.run(
                [*gdb, *job, "0", store],
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=240,
            )
            if "Operation not permitted" in traced.stderr:
                peer.kill()
                pytest.skip("this machine does not allow gdb to trace a process")
        except BaseException:
            peer.kill()
            raise
    found = re.findall(r"^STACK (.*)$", traced.stdout, re.MULTILINE)
    assert found, traced.stdout[-2000:] + traced.stderr[-2000:]
    # The way back: futures complete on a thread of their own; and moves: DDP broadcasts parameters.
    others = ("EngineWork::", "Engine::run_move")
    return [stack.split() for stack in found if not any(other in stack for other in others)]


@pytest.mark.slow
@pytest.mark.parametrize("communicator", WIRES)
def test_a_bucket_goes_this_way_and_does_not_turn(communicator, stacks):
    """Each stack passes files of the way in their order: at the hand-over to the group's thread, in
    the codec, and at the wire. A function that ends with the call of another one may be missing.
    """
    order = [file for file, _ in _way(communicator)]
    others = set().union(*(files for name, files in WIRES.items() if name != communicator))
    queue = order.index("csrc/backend/work/task_queue.cc")
    seen = set()
    for stack in stacks:
        files = [_file_of(function, _table()) for function in stack]
        assert None not in files, stack
        if others & {*files}:
            continue
        if files[0] == order[queue]:  # its tasks are the executor's
            files = [file for file in files if file != order[queue - 1]]
        numbers = [order.index(file) for file in files]
        assert numbers == sorted(numbers), stack
        seen |= set(files)
    # gdb sees no functions of Python, and Relay::post ends with the call of Sender::post.
    assert set(order) - seen <= {order[0], "csrc/comm/relay/relay.cc"}
