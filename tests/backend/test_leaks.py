"""Nothing is left behind: by many calls and groups, by ranks that are killed, in a /dev/shm that is
too small; and nobody else gets at what there is.
"""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import resource
import signal
import subprocess
import textwrap

import pytest
import torch
import torch.distributed as dist

from tests import warm
from tests.distributed import ROOT, run_pooled
from tests.hosts.marks import needs_hosts
from tests.stress import leaks

COMMUNICATORS = ["SHM", "GLOO"]


@pytest.mark.slow
@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_many_all_reduces_leak_nothing(communicator):
    calls = leaks.COUNTS[communicator][1][0] // 2  # `make stress` makes them all
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator}
    results = run_pooled(leaks.all_reduces, 2, calls, env=env, timeout=240)
    assert leaks.complaints(f"{calls} all-reduces", results, leaks.PER_CALL) == []


@pytest.mark.slow
@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_many_groups_leak_nothing(communicator):
    rounds = leaks.COUNTS[communicator][1][1]
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator}
    results = run_pooled(leaks.groups, 2, rounds, env=env, timeout=240)
    assert leaks.complaints(f"{rounds} groups", results, leaks.PER_GROUP) == []


def leaking(rank, world_size, kept):
    """As leaks.groups does it, with something that stays."""
    before = leaks.held()
    kept += [os.open("/dev/null", os.O_RDONLY)]
    memory, samples = [], []
    for _ in range(leaks.SAMPLES):
        # Mapped: the heap may have room that is resident already.
        memory.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        memory[-1].write(b"x" * (1 << 20))
        samples.append(leaks.resident_memory())
    grown = leaks.growth(samples, 1000)
    after = leaks.held()
    os.close(kept[-1])
    return {"before": before, "after": after, "bytes": grown, "rounds": 1000}


def test_the_counts_see_a_leak():
    results = run_pooled(leaking, 1, [])
    found = leaks.complaints("it", results, leaks.PER_GROUP)
    assert len(found) == 2 and "'fds'" in found[0] and "memory grows" in found[1], found
    # 40 MiB in 1000 rounds
    assert 0.8 < results[0]["bytes"] / (40 * 1024 * 1024 / 1000) < 1.2, results


def test_what_grows_once_is_no_leak():
    """Here by a huge page, at any sample. Steady growth is seen beside it."""
    for at in range(leaks.SAMPLES):
        once = [(100 + 2 * (number >= at)) << 20 for number in range(leaks.SAMPLES)]
        assert leaks.growth(once, leaks.SAMPLES) == 0, at
        steady = [sample + 30_000 * number for number, sample in enumerate(once)]
        assert leaks.growth(steady, leaks.SAMPLES) == 30_000, at
    # What doubles does not grow once.
    doubling = [1 << (24 + (number * 5 // leaks.SAMPLES)) for number in range(leaks.SAMPLES)]
    assert leaks.growth(doubling, leaks.SAMPLES) > 1 << 20


def single_threaded() -> dict[str, str]:
    """For programs that fork their ranks."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("communicator", COMMUNICATORS)
@pytest.mark.parametrize("phase", ["calls", "making"])
def test_ranks_that_are_killed_together_leave_nothing(phase, communicator):
    command = [*warm.python(), "-m", "tests.stress.leftovers", phase, communicator, "12"]
    done = subprocess.run(
        command, cwd=ROOT, env=single_threaded(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"killed": 36, "left": []}


def attack(rank, world_size):
    """Rank 0: what a process of another user gets of this one's shared-memory block."""
    import torch
    import torch.distributed as dist

    options = {}
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    if rank != 0:
        dist.barrier()
        return options
    places = []
    for entry in os.listdir("/proc/self/fd"):
        path = f"/proc/{os.getpid()}/fd/{entry}"
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue
        if target.startswith("/dev/shm/"):
            options[target] = oct(os.stat(path).st_mode & 0o7777)
            places.append(path)
    with open("/proc/self/maps") as maps:
        areas = [line.split()[0] for line in maps if "/dev/shm/" in line]
    places += [f"/proc/{os.getpid()}/map_files/{area}" for area in areas]
    places.append(f"/proc/{os.getpid()}/mem")
    script = """
        import os, sys
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        for place in sys.argv[1:]:
            for flags in (os.O_RDONLY, os.O_RDWR):
                try:
                    os.open(place, flags)
                except PermissionError:
                    continue
                print("opened", place, flags)
    """
    found = subprocess.run(
        ["/usr/bin/env", "python3", "-c", textwrap.dedent(script), *places],
        capture_output=True,
        text=True,
        timeout=60,
    )
    dist.barrier()
    return options, len(areas), found.returncode, found.stdout + found.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_user_cannot_attach():
    modes, areas, status, output = run_pooled(attack, 2)[0]
    assert modes and areas, "the block was not found"
    assert set(modes.values()) == {"0o600"}
    assert (status, output) == (0, "")


SMALL = """
import datetime, json, os, signal, sys
import torch, torch.distributed as dist, torch_cgx
from tests.stress.processes import StoreServer, fork

def attempt(found, name, what):
    try:
        what()
        found[name] = "done"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

def rank(channel, number, port):
    limit = datetime.timedelta(seconds=30)
    found = {}
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    def start(name):
        keys = dist.PrefixStore(name, store)
        dist.init_process_group("cgx", store=keys, rank=number, world_size=2, timeout=limit)
    start("large")
    attempt(found, "default", lambda: dist.all_reduce(torch.ones(2_000_000)))
    dist.destroy_process_group()
    os.environ["CGX_SHM_SEGMENT_KB"] = "64"
    start("small")
    dist.barrier()
    # Somebody else takes all that is left.
    if number == 0:
        file = os.open("/dev/shm/other", os.O_WRONLY | os.O_CREAT)
        try:
            while os.write(file, b"x" * 4096):
                pass
        except OSError:
            pass
    dist.barrier()
    for step in range(20):  # every page of the slots
        tensor = torch.full((200_000,), float(number + step))
        dist.all_reduce(tensor)
        assert torch.all(tensor == 2 * step + 1)
    found["sums in a full one"] = "done"
    attempt(found, "another group", lambda: dist.new_group([0, 1]))
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert torch.all(tensor == 2)
    found["the first group afterwards"] = "done"
    long = {"bits": 8, "bucket_size": 100_000}
    attempt(found, "a long bucket", lambda: torch_cgx.all_reduce(torch.ones(100_000), config=long))
    channel.send(json.dumps(found).encode())

log = sys.stderr.fileno()
server = StoreServer()
ranks = [fork(lambda end, n=n: rank(end, n, server.port), log) for n in range(2)]
answers = [channel.recv(1 << 16).decode() for _, channel in ranks]
statuses = [os.waitpid(pid, 0)[1] for pid, _ in ranks]
server.close()
os.unlink("/dev/shm/other")
print(json.dumps([statuses, [json.loads(a or "{}") for a in answers], os.listdir("/dev/shm")]))
"""


ADVICE = ("/dev/shm is too small", "needed", "--shm-size", "CGX_SHM_SEGMENT_KB")


@needs_hosts
def test_a_small_shared_memory_is_an_error_that_says_what_to_do(tmp_path: pathlib.Path):
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", *warm.python(), str(script)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=single_threaded(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    statuses, answers, left = json.loads(done.stdout)
    assert signal.SIGBUS not in statuses and statuses == [0, 0], done.stderr
    for answer in answers:
        for refused in ("default", "another group", "a long bucket"):
            assert answer[refused].startswith("ResourceError"), answer
            for word in (*ADVICE, "CGX_INNER_COMMUNICATOR_TYPE=GLOO"):
                assert word in answer[refused], answer
        assert answer["sums in a full one"] == answer["the first group afterwards"] == "done"
    assert left == []


def moves_with_a_limit(rank, world_size):
    # Places of longer exchanges than one segment lie behind this in the block.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, resource.RLIM_INFINITY))
    try:
        mine = torch.full((world_size << 20,), float(rank))
        outs = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(outs, mine)
        exchanged = torch.empty_like(mine)
        dist.all_to_all_single(exchanged, mine)
        dist.gather(mine, outs if rank == 0 else None)
        dist.broadcast(mine, 1)
        dist.scatter(mine, outs if rank == 0 else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    parts = [part.unique().tolist() for part in exchanged.chunk(world_size)]
    return parts == [[float(q)] for q in range(world_size)] and mine.unique().tolist() == [rank]


@pytest.mark.parametrize("ranks", [2, 3])
def test_long_moves_use_the_blocks_of_reductions(ranks):
    assert run_pooled(moves_with_a_limit, ranks) == [True] * ranks
