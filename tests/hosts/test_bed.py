"""The test bed itself: hosts come and go, links keep their rate and count, ranks start where they
should.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import mpi_installation, needs_hosts
from torch_cgx.testbed import mpi, network, processes
from torch_cgx.testbed.bed import BedError, Hosts, HostsFailed, hosts
from torch_cgx.testbed.watchdog import pids_inside

FRAME, PAYLOAD = 1514, 1448  # bytes of a full Ethernet frame, and of the data that TCP puts in one


@pytest.fixture(scope="module")
def bed():
    with hosts(3, rate="1gbit") as h:
        yield h


def _namespaces() -> list[str]:
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in said.stdout.splitlines()]


def _traces(name: str) -> list[str]:
    """What is left of the bed `name`."""
    places = [*Path("/tmp").glob(f"hosts-{name}-*"), *Path("/dev/shm").glob(f"hosts-{name}-*")]
    return [*map(str, places), *(n for n in _namespaces() if n.startswith(name + "-"))]


def _wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def _program(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]


def _script(folder: Path, text: str) -> list[str]:
    file = folder / "script.py"
    file.write_text(text)
    return [sys.executable, str(file)]


# ---- coming and going


@needs_hosts
@pytest.mark.parametrize("raises", [False, True])
def test_hosts_are_there_within_the_block_only(raises):
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(KeyError) if raises else contextlib.nullcontext():
        with hosts(2, rate="200mbit") as h:
            name = h.names[0].rsplit("-", 1)[0]
            assert set(h.namespaces) <= set(_namespaces())
            assert len({*h.names, *h.namespaces}) == 3
            assert h.addresses == ["10.77.0.1", "10.77.0.2"]
            assert len(_traces(name)) == 5
            sleeper = h.popen(0, ["sleep", "600"])
            _wait_until(lambda: sleeper.pid in pids_inside(h.names))
            # The end of a bed removes the scripts on the way there before it kills.
            _wait_until(lambda: _program(sleeper.pid) == b"sleep")
            # Nothing appears in the namespace that everything else on this machine uses.
            now = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True)
            assert now.stdout == links
            if raises:
                raise KeyError("in the block")
    assert _traces(name) == []
    assert sleeper.wait(timeout=10) == -signal.SIGKILL


_KILLED = """
import json, os, signal, sys, time
from torch_cgx.testbed.bed import hosts

with hosts(2) as h:
    sleepers = [h.popen(i, ["setsid", "sleep", "600"]) for i in range(2)]
    while b"sleep" not in open(f"/proc/{sleepers[1].pid}/cmdline", "rb").read()[:6]:
        time.sleep(0.01)
    child = os.fork() if sys.argv[1] == "fork" else 0
    if child == 0 and sys.argv[1] == "fork":
        time.sleep(600)  # holds all files of its parent open
    facts = {"names": h.namespaces, "sleepers": [s.pid for s in sleepers], "child": child}
    print(json.dumps(facts), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_hosts
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_nothing_is_left_when_the_process_is_killed(tmp_path, how):
    file = tmp_path / "killed.py"
    file.write_text(_KILLED)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(file), how]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    process.stdout.close()
    try:
        assert process.wait(timeout=30) == -signal.SIGKILL
        name = facts["names"][0].rsplit("-", 1)[0]
        _wait_until(lambda: _traces(name) == [])
        assert not any(_runs(pid) for pid in facts["sleepers"])
    finally:
        if facts["child"]:
            os.kill(facts["child"], signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@needs_hosts
def test_two_beds_do_not_meet(bed):
    with hosts(1) as other:
        assert not set(other.namespaces) & set(bed.namespaces)
        alone = ["sh", "-c", "ip -br neigh; ip -br link; ! ip -br link | grep -q br0"]
        other.run(alone)
    assert set(bed.namespaces) <= set(_namespaces())


# ---- the links


_STREAM = """
import json, os, socket, sys, time

size = int(sys.argv[1])
if os.environ["RANK"] == "1":
    with socket.create_server(("", 5000)) as server:
        peer = server.accept()[0]
    buffer = bytearray(1 << 20)
    got, start = 0, None
    while n := peer.recv_into(buffer):
        start = start or time.perf_counter()
        got += n
    print(json.dumps({"got": got, "seconds": time.perf_counter() - start}))
elif os.environ["RANK"] == "0":
    to = socket.socket()
    while to.connect_ex((sys.argv[2], 5000)):  # not there yet
        time.sleep(0.01)
    for _ in range(size >> 16):
        to.sendall(bytes(1 << 16))
    to.close()
"""


@pytest.mark.alone
@needs_hosts
@pytest.mark.parametrize("rate", ["200mbit", "1gbit", "10gbit", None])
def test_links_keep_their_rate_and_count_what_crosses_them(tmp_path, rate):
    bits = network.parse_rate(rate) if rate else 0
    size = (bits // 8 // 4 if rate and bits <= 10**9 else 1 << 28) >> 16 << 16
    with hosts(3, rate) as h:
        command = [*_script(tmp_path, _STREAM), str(size), h.addresses[1]]
        outputs, traffic = h.traffic_of(lambda: h.run(command, 1))
    received = json.loads(outputs[1])
    assert received["got"] == size
    if rate:
        # A quarter of a second's worth cannot come faster than the link allows, but for what may
        # be saved up at either end; how much slower is the machine's affair.
        assert received["seconds"] > 0.9 * size * FRAME / PAYLOAD * 8 / bits
    if rate and bits <= 10**9:
        assert received["seconds"] < 4 * size * 8 / bits
    wire = size * FRAME / PAYLOAD
    assert wire <= traffic[0].sent_bytes <= 1.06 * wire
    assert wire <= traffic[1].received_bytes <= 1.06 * wire
    assert size / PAYLOAD <= traffic[0].sent_packets <= 1.06 * size / PAYLOAD
    # The way back carries acknowledgements only, and the third host gets nothing.
    assert 0 < traffic[1].sent_bytes < 0.05 * wire
    assert traffic[2].sent_bytes < 5000 and traffic[2].received_bytes < 5000


@pytest.mark.alone
@needs_hosts
def test_an_idle_bed_is_silent(bed):
    _, traffic = bed.traffic_of(lambda: time.sleep(0.3))
    assert all(one.sent_packets <= 2 and one.received_packets <= 4 for one in traffic)


@needs_hosts
def test_nothing_but_the_hosts_can_be_reached(bed):
    code = (
        "import errno, socket\n"
        "s = socket.socket(); s.settimeout(5)\n"
        "assert s.connect_ex(('192.0.2.1', 80)) == errno.ENETUNREACH"
    )
    bed.run([sys.executable, "-c", code])


# ---- ranks

_RANK = """
import json, os, socket, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
x = torch.full((1000,), 2.0 ** dist.get_rank())
dist.all_reduce(x)
# Names in /dev/shm: seen by the ranks of the same host.
open(f"/dev/shm/rank{dist.get_rank()}", "w").close()
dist.barrier()
found = {
    "rank": dist.get_rank(), "size": dist.get_world_size(), "sum": x[0].item(),
    "local": [os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]],
    "host": socket.gethostname(), "address": socket.gethostbyname(socket.gethostname()),
    "id": os.environ["CGX_HOST_ID"], "net": os.stat("/proc/self/ns/net").st_ino,
    "shm": sorted(n for n in os.listdir("/dev/shm") if n.startswith("rank")),
    "threads": torch.get_num_threads(), "note": os.environ.get("NOTE"),
}
dist.barrier()
dist.destroy_process_group()
print("FOUND " + json.dumps(found) + "\\n", end="", flush=True)
"""


def _found(outputs: list[str]) -> dict[int, dict]:
    lines = [line for output in outputs for line in output.splitlines()]
    found = [json.loads(line[6:]) for line in lines if line.startswith("FOUND ")]
    return {one["rank"]: one for one in found}


def _inode(name: str) -> int:
    return os.stat(f"/run/netns/{name}").st_ino


@needs_hosts
@pytest.mark.parametrize("launcher", ["run", "torchrun"])
@pytest.mark.parametrize("ranks", [[2, 1, 1]], ids=str)
def test_ranks_run_on_their_hosts(bed, tmp_path, launcher, ranks):
    start = getattr(bed, launcher)
    command = [*warm.python(), _script(tmp_path, _RANK)[-1]]
    outputs, traffic = bed.traffic_of(lambda: start(command, ranks, env={"NOTE": "a 'b"}))
    assert len(outputs) == (4 if launcher == "run" else 3)
    found = _found(outputs)
    assert sorted(found) == [0, 1, 2, 3]
    places = [(0, 0), (0, 1), (1, 0), (2, 0)]
    for rank, (host, local) in enumerate(places):
        one = found[rank]
        assert one["size"] == 4 and one["sum"] == 15.0
        assert one["host"] == one["id"] == bed.names[host]
        assert one["net"] == _inode(bed.names[host])
        assert one["address"] == bed.addresses[host]
        assert one["local"] == [str(local), str(ranks[host])]
        assert one["shm"] == (["rank0", "rank1"] if host == 0 else [f"rank{rank}"])
        assert one["threads"] == 1 and one["note"] == "a 'b"
    assert all(one.sent_bytes > 4000 for one in traffic)  # the vector crossed every link
    subprocess.run(bed.command_on(0, ["sh", "-c", "rm /dev/shm/rank*"]), check=True)


_MPI_RANK = """
import json, os, socket
from mpi4py import MPI

world = MPI.COMM_WORLD
other = world.sendrecv(bytes(1 << 20), dest=(world.rank + 2) % world.size,
                       source=(world.rank - 2) % world.size)
found = {
    "rank": world.rank, "size": world.size, "got": len(other),
    "sum": world.allreduce(2**world.rank),
    "host": socket.gethostname(), "id": os.environ["CGX_HOST_ID"],
    "net": os.stat("/proc/self/ns/net").st_ino, "note": os.environ.get("NOTE"),
    "cores": len(os.sched_getaffinity(0)),
}
for line in world.gather("FOUND " + json.dumps(found)) or []:
    print(line, flush=True)
"""


@needs_hosts
@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_mpirun_starts_ranks_on_their_hosts(bed, tmp_path, kind):
    prefix = mpi_installation(kind)
    command = [str(prefix / "bin" / "python"), _script(tmp_path, _MPI_RANK)[-1]]
    output, traffic = bed.traffic_of(
        lambda: bed.mpirun(command, [2, 1, 1], prefix / "bin" / "mpirun", env={"NOTE": "a 'b"})
    )
    found = _found([output])
    assert sorted(found) == [0, 1, 2, 3], output
    for rank, host in enumerate([0, 0, 1, 2]):
        one = found[rank]
        assert (one["size"], one["sum"], one["got"], one["note"]) == (4, 15, 1 << 20, "a 'b")
        assert one["host"] == one["id"] == bed.names[host]
        assert one["net"] == _inode(bed.names[host])
        assert one["cores"] == len(os.sched_getaffinity(0))  # bound to none
    # Rank r sends a MiB to rank r + 2: all messages go over links, none through memory.
    wire = (1 << 20) * FRAME / PAYLOAD
    for one, messages in zip(traffic, (2, 1, 1), strict=True):
        assert messages * wire < one.sent_bytes < 1.2 * messages * wire
    assert pids_inside(bed.names) == []


# ---- failures

_FAILS = """
import os, sys, time
names = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
if "1" in [os.environ.get(name) for name in names]:
    print("out of order", file=sys.stderr, flush=True)
    if sys.argv[1:]:
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(7)  # Hydra goes on waiting for the others if a rank just ends
    sys.exit(7)
if sys.argv[1:]:
    from mpi4py import MPI
time.sleep(600)
"""


@needs_hosts
@pytest.mark.parametrize("launcher", ["run", "torchrun", "openmpi", "mpich"])
def test_a_failing_rank_ends_the_run_and_is_shown(bed: Hosts, tmp_path, launcher):
    command = _script(tmp_path, _FAILS)
    if launcher in ("run", "torchrun"):
        options: dict = {"ranks": [1, 1, 2], "grace": 0.5}
        call = getattr(bed, launcher)
    else:
        prefix = mpi_installation(launcher)
        command = [str(prefix / "bin/python"), command[-1], "mpi"]
        options = {"ranks": 1, "grace": 0.5, "mpirun": prefix / "bin/mpirun"}
        call = bed.mpirun
    with pytest.raises(HostsFailed) as caught:
        call(command, timeout=60, **options)
    failure = caught.value
    assert not failure.timed_out and "failed" in str(failure)
    assert "out of order" in str(failure) and any("out of order" in out for out in failure.outputs)
    if launcher == "run":
        assert failure.fates == [
            "still running, killed",
            "status 7",
            *["still running, killed"] * 2,
        ]
        assert f"rank 1 on {bed.names[1]}: status 7" in str(failure)
    elif launcher == "torchrun":
        assert failure.fates[1] == "status 1" and f"torchrun on {bed.names[1]}" in str(failure)
    assert pids_inside(bed.names) == []


@needs_hosts
@pytest.mark.parametrize("launcher", ["run", "torchrun", "openmpi", "mpich"])
def test_a_run_that_takes_too_long_is_killed_with_all_it_started(bed: Hosts, tmp_path, launcher):
    # A daemon of its own session and parent, as prted is one.
    text = "import os, time\nprint('begun', flush=True)\nos.system('setsid -f sleep 600')\n"
    command = _script(tmp_path, text + "time.sleep(600)\n")
    options: dict = {}
    call = getattr(bed, launcher, bed.mpirun)
    if launcher not in ("run", "torchrun"):
        options = {"mpirun": mpi_installation(launcher) / "bin/mpirun"}
    bystander = bed.popen(0, ["sleep", "600"])
    try:
        with pytest.raises(HostsFailed, match="did not end within 5 s") as caught:
            call(command, timeout=5, **options)
        assert caught.value.timed_out
        assert set(caught.value.fates) == {"still running, killed"}
        assert any("begun" in output for output in caught.value.outputs)
        assert pids_inside(bed.names) == [bystander.pid]  # the bed's other processes stay
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    ("reads", "carries"),
    [
        (["HOSTBED_RUN=m\0"], True),
        (["A=b\0"], False),
        (["", ""], None),  # ends, or exec() has not filled it
        ([ProcessLookupError()], None),  # ends; so says Linux 6
        ([FileNotFoundError()], False),
        (["", "sh\0", "HOSTBED_RUN=m\0"], True),  # exec() filled it between two reads
        (["", "sh\0"] * (processes._LOOKS - 1) + ["HOSTBED_RUN=m\0"], True),  # several in a row
        (["", "sh\0"] * processes._LOOKS, False),  # a program without variables
    ],
)
def test_a_process_amid_exec_is_not_overlooked(monkeypatch, reads, carries):
    files = iter(reads)

    class Proc:
        def __init__(self, path):
            self.path = path

        def read_text(self):
            assert self.path.endswith("/comm")
            return "sh\n"

        def read_bytes(self):
            found = next(files)
            if isinstance(found, OSError):
                raise found
            return found.encode()

    monkeypatch.setattr(processes, "Path", Proc)
    assert processes._carries(7, "m") is carries
    assert list(files) == []


def test_a_warm_process_counts_until_it_is_gone(monkeypatch):
    """Its client, whose variables are read, may have ended before it has been killed."""
    with subprocess.Popen(["true"]) as client:
        pass
    texts = {f"/proc/{os.getpid()}/comm": f"warm-{client.pid}\n"}
    monkeypatch.setattr(processes.Path, "read_text", lambda path: texts[str(path)])
    assert processes._carries(os.getpid(), "m") is True


@needs_hosts
def test_bad_arguments_are_named(bed, tmp_path):
    for n in (0, 251):
        with pytest.raises(ValueError, match=f"{n} hosts; allowed: 1 to 250"), hosts(n):
            pass
    for rate in ("1", "fast", "0gbit", "1gbps", "-1gbit"):
        with pytest.raises(ValueError, match=f"{rate!r}; allowed"), hosts(2, rate):
            pass
    for ranks in (0, [1, 1], [1, 0, 1]):
        with pytest.raises(ValueError, match="one number from 1 for each of the 3 hosts"):
            bed.run(["true"], ranks)
    with pytest.raises(BedError, match="/nowhere/mpirun"):
        bed.mpirun(["true"], mpirun="/nowhere/mpirun")
    with pytest.raises(BedError, match="neither Open MPI's nor MPICH's"):
        mpi.kind("true")
