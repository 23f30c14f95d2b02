"""The SHM communicator with real processes: exchanges, deaths, signals, errors, leftovers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import _machinery
from tests.calls import on_threads
from tests.comm.ranks import FileRendezvous, Outcome, Rank, run, shared_blocks, shm, stays_empty
from tests.distributed import ROOT
from tests.hosts.marks import needs_hosts
from torch_cgx import _C

Say = Callable[[Any], None]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = shared_blocks()
    yield
    assert stays_empty(before)


def stress(_say: Say, directory: str, size: int, exchanges: int, rank: int) -> int:
    return _machinery.stress([shm(directory, rank, size)], exchanges, seed=size)


def wait_for_peer(say: Say, directory: str, size: int, peer: int, timeout: float, rank: int) -> Any:
    comm = shm(directory, rank, size)
    say("ready")
    start = time.time()
    try:
        comm.receive(peer, timeout)
    except _C.CgxError as error:
        return type(error).__name__, str(error), time.time(), time.time() - start
    return None


def sleep(say: Say, directory: str, size: int, rank: int) -> None:
    comm = shm(directory, rank, size)
    say("ready")
    time.sleep(60)
    comm.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_exchanges(tmp_path: pathlib.Path, size: int) -> None:
    outcomes = run(stress, size, str(tmp_path), size, 400)
    assert all(not outcome.error for outcome in outcomes), outcomes
    assert all((outcome.value > 100) == (size > 1) for outcome in outcomes)


def test_name_is_gone_before_first_use(tmp_path: pathlib.Path) -> None:
    before = shared_blocks()
    rank = Rank(sleep, str(tmp_path), 2, 0)
    comm = shm(str(tmp_path), 1, 2)
    assert rank.receive() == "ready"
    assert stays_empty(before)
    assert (comm.name, comm.rank, comm.size, comm.capacity) == ("shm", 1, 2, 65536)
    rank.process.kill()
    rank.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_of_a_peer_is_noticed(tmp_path: pathlib.Path, how: signal.Signals) -> None:
    victim = Rank(sleep, str(tmp_path), 3, 1)
    waiters = [Rank(wait_for_peer, str(tmp_path), 3, 1, 30.0, rank) for rank in (0, 2)]
    for rank in (victim, *waiters):
        assert rank.receive() == "ready"
    time.sleep(0.3)
    killed = time.time()
    os.kill(victim.pid, how)
    for waiter in waiters:
        kind, text, noticed, _ = waiter.value()
        assert kind == "PeerLostError" and "rank 1" in text and "process has ended" in text
        assert noticed - killed < 1
    victim.end()


def test_death_reaches_a_rank_that_waits_for_a_waiter(tmp_path: pathlib.Path) -> None:
    victim = Rank(sleep, str(tmp_path), 3, 2)
    middle = Rank(wait_for_peer, str(tmp_path), 3, 2, 30.0, 1)
    last = Rank(wait_for_peer, str(tmp_path), 3, 1, 30.0, 0)
    for rank in (victim, middle, last):
        assert rank.receive() == "ready"
    killed = time.time()
    victim.process.kill()
    kind, text, noticed, _ = last.value()
    assert kind == "PeerLostError" and "rank 1 failed" in text and "rank 2" in text
    assert noticed - killed < 1
    middle.value()
    victim.end()


def fork_then_sleep(say: Say, directory: str, size: int, rank: int) -> None:
    comm = shm(directory, rank, size)
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    say(child)
    time.sleep(60)
    comm.close()


def test_forked_child_does_not_keep_a_dead_parent_alive(tmp_path: pathlib.Path) -> None:
    victim = Rank(fork_then_sleep, str(tmp_path), 2, 1)
    waiter = Rank(wait_for_peer, str(tmp_path), 2, 1, 30.0, 0)
    child = victim.receive()
    assert waiter.receive() == "ready"
    killed = time.time()
    victim.process.kill()
    kind, text, noticed, _ = waiter.value()
    os.kill(child, 0)  # the child lives on
    os.kill(child, signal.SIGKILL)
    assert kind == "PeerLostError" and noticed - killed < 1, text
    victim.end()


def fork_close_then_stress(_say: Say, directory: str, size: int, rank: int) -> int:
    comm = shm(directory, rank, size)
    child = os.fork()
    if child == 0:
        comm.close()
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.3)
    return _machinery.stress([comm], 200, seed=4)


def test_forked_child_that_cleans_up_does_no_harm(tmp_path: pathlib.Path) -> None:
    outcomes = run(fork_close_then_stress, 2, str(tmp_path), 2)
    assert all(outcome.value > 100 for outcome in outcomes), outcomes


def test_clean_close_is_noticed_at_once(tmp_path: pathlib.Path) -> None:
    waiter = Rank(wait_for_peer, str(tmp_path), 2, 1, 30.0, 0)
    comm = shm(str(tmp_path), 1, 2)
    assert waiter.receive() == "ready"
    time.sleep(0.2)
    closed = time.time()
    comm.close()
    kind, text, noticed, _ = waiter.value()
    assert kind == "PeerLostError" and "closed" in text
    assert noticed - closed < 0.5


def test_stopped_peer_is_not_dead(tmp_path: pathlib.Path) -> None:
    worker = Rank(stress, str(tmp_path), 2, 15000, 1)
    waiter = Rank(stress, str(tmp_path), 2, 15000, 0)
    for _ in range(3):
        time.sleep(0.1)
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.3)
        assert not waiter.pipe.poll(0)  # still waiting for the stopped one
        os.kill(worker.pid, signal.SIGCONT)
    assert waiter.value() > 1000 and worker.value() > 1000


def test_deadline_ends_the_wait_for_a_stopped_peer(tmp_path: pathlib.Path) -> None:
    stopped = Rank(sleep, str(tmp_path), 2, 1)
    waiter = Rank(wait_for_peer, str(tmp_path), 2, 1, 0.8, 0)
    assert stopped.receive() == "ready"
    os.kill(stopped.pid, signal.SIGSTOP)
    kind, text, _, waited = waiter.value()
    assert kind == "TimeoutError" and "rank 1" in text
    named = re.search(r"rank 0 waited (\d\.\d+) s", text)
    assert named and 0.8 <= float(named[1]) < 1.5, text
    assert 0.75 < waited < 1.5
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.end()


def abort_later(say: Say, directory: str, size: int, rank: int) -> Any:
    comm = shm(directory, rank, size)
    threading.Timer(0.2, lambda: comm.abort("by request")).start()
    try:
        comm.receive((rank + 1) % size, 30)
    except _C.AbortedError as error:
        return str(error)


def test_abort_from_another_thread(tmp_path: pathlib.Path) -> None:
    waiter = Rank(wait_for_peer, str(tmp_path), 2, 1, 30.0, 0)
    aborter = Rank(abort_later, str(tmp_path), 2, 1)
    assert aborter.value() == "by request"
    kind, text, _, waited = waiter.value()
    assert kind == "AbortedError" and "by request" in text and "rank 1" in text
    assert waited < 1.5


def stress_under_signals(say: Say, directory: str, size: int, rank: int) -> Any:
    caught = 0

    def count(_number: int, _frame: Any) -> None:
        nonlocal caught
        caught += 1

    signal.signal(signal.SIGUSR1, count)
    say("armed")
    checked = _machinery.stress([shm(directory, rank, size, 1 << 20)], 2000, seed=9)
    return checked, caught


def test_signal_storm(tmp_path: pathlib.Path) -> None:
    ranks = [Rank(stress_under_signals, str(tmp_path), 3, rank) for rank in range(3)]
    for rank in ranks:
        assert rank.receive() == "armed"
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR1)
        time.sleep(0.0005)
    for rank in ranks:
        checked, caught = rank.value()
        assert checked > 1000 and caught > 0


def test_sigkill_of_all_leaves_nothing(tmp_path: pathlib.Path) -> None:
    before = shared_blocks()
    ranks = [Rank(sleep, str(tmp_path), 3, rank) for rank in range(3)]
    for rank in ranks:
        assert rank.receive() == "ready"
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.end()
    assert stays_empty(before)


def local_group(directory: str, size: int, slot_bytes: int = 65536) -> list[Any]:
    """All ranks in this process, as threads while they meet."""
    return on_threads(size, lambda rank: shm(directory, rank, size, slot_bytes))


def test_ranks_of_one_process(tmp_path: pathlib.Path) -> None:
    comms = local_group(str(tmp_path), 3)
    assert _machinery.stress(comms, 300) > 500


def hold_two_ranks(say: Say, directory: str) -> Any:
    comms = on_threads(2, lambda rank: shm(directory, rank, 3))
    comms[1].close()  # must not drop the life sign of rank 0
    say("closed")
    time.sleep(1)
    comms[0].open([b"", b"", b"alive"])
    comms[0].post()
    time.sleep(0.5)


def test_closing_one_of_two_ranks_of_a_process(tmp_path: pathlib.Path) -> None:
    other = Rank(hold_two_ranks, str(tmp_path))
    comm = shm(str(tmp_path), 2, 3)
    assert other.receive() == "closed"
    assert comm.receive(0) == b"alive"
    other.value()


def test_no_leak_of_descriptors_or_mappings(tmp_path: pathlib.Path) -> None:
    def count() -> tuple[int, int]:
        with open("/proc/self/maps") as file:
            maps = sum("/dev/shm/" in line for line in file)
        return len(os.listdir("/proc/self/fd")), maps

    start = count()
    for i in range(200):
        comms = local_group(str(tmp_path / str(i)), 2, 4096)
        if i % 10 == 0:
            assert _machinery.stress(comms, 5) > 0
        for comm in comms:
            comm.close()
    assert count() == start


def test_two_groups_at_once(tmp_path: pathlib.Path) -> None:
    ranks = [
        Rank(stress, str(tmp_path / group), 2, 1500, rank) for rank in range(2) for group in "ab"
    ]
    assert all(rank.value() > 500 for rank in ranks)


def make(_say: Say, directory: str, size: int, slots: list[int], timeout: float, rank: int) -> str:
    return shm(directory, rank, size, slots[rank], timeout).name


def make_and_fill(
    _say: Say, directory: str, size: int, slots: list[int], timeout: float, rank: int
) -> str:
    """A slot takes its memory when a message needs it."""
    comm = shm(directory, rank, size, slots[rank], timeout)
    comm.open_sizes([0 if peer == rank else slots[rank] // size for peer in range(size)])
    return comm.name


def assert_all_fail(outcomes: list[Outcome], kind: str, text: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome.error == kind, (rank, outcome)
        assert text in outcome.text, (rank, outcome)


def test_too_large_for_dev_shm(tmp_path: pathlib.Path) -> None:
    start = time.monotonic()
    outcomes = run(make_and_fill, 2, str(tmp_path), 2, [1 << 45] * 2, 20.0)
    assert_all_fail(outcomes, "ResourceError", "/dev/shm is too small")
    for advice in ("MiB free", "--shm-size", "CGX_SHM_SEGMENT_KB", "needed"):
        assert advice in outcomes[0].text
    assert time.monotonic() - start < 10


def make_with_limit(say: Say, directory: str, size: int, rank: int) -> str:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return make_and_fill(say, directory, size, [1 << 24] * size, 20.0, rank)


def test_failure_in_the_middle_of_the_allocation(tmp_path: pathlib.Path) -> None:
    assert_all_fail(
        run(make_with_limit, 2, str(tmp_path), 2), "ResourceError", "/dev/shm is too small"
    )


def test_ranks_disagree_on_the_slot_size(tmp_path: pathlib.Path) -> None:
    outcomes = run(make, 3, str(tmp_path), 3, [4096, 4096, 8192], 20.0)
    assert_all_fail(outcomes, "MismatchError", "rank 0 has world size 3 and slots of 4096 bytes")
    assert "rank 2 has world size 3 and slots of 8192 bytes" in outcomes[1].text


def test_bad_argument_on_one_rank_is_an_error_on_all(tmp_path: pathlib.Path) -> None:
    outcomes = run(make, 3, str(tmp_path), 3, [4096, 0, 4096], 20.0)
    assert outcomes[1].error == "ValueError"
    for rank in (0, 2):
        assert outcomes[rank].error == "CgxError" and "slot size is 0" in outcomes[rank].text


@pytest.mark.quiet
def test_missing_rank_is_named_to_all(tmp_path: pathlib.Path) -> None:
    ranks = [Rank(make, str(tmp_path), 4, [4096] * 4, 4.0, rank) for rank in (0, 1, 3)]
    outcomes = [rank.outcome() for rank in ranks]
    assert_all_fail(outcomes, "TimeoutError", "for rank 2 to attach")


def test_missing_leader_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(_C.TimeoutError, match="rank 1 waited .* for rank 0 to make an area"):
        shm(str(tmp_path), 1, 2, timeout=0.3)


ATTACH = """
import sys
from tests.comm.ranks import shm
comm = shm(sys.argv[1], int(sys.argv[2]), 3)
assert comm.receive(0) == b"hello"
comm.release(0)
comm.open([b"yes", b"", b""])
comm.post()
comm.receive(0)
"""


@pytest.mark.alone
@needs_hosts
def test_ranks_of_other_pid_namespaces_attach_by_a_name_that_is_gone_afterwards(
    tmp_path: pathlib.Path,
) -> None:
    """As containers with a common --ipc: their /proc does not have the rank that made the file."""
    before = shared_blocks()
    inside = ["unshare", "--fork", "--pid", "--mount-proc"]
    others = [
        subprocess.Popen([*prefix, sys.executable, "-c", ATTACH, tmp_path, str(rank)], cwd=ROOT)
        for rank, prefix in ((1, inside), (2, []))
    ]
    comm = shm(str(tmp_path), 0, 3)
    assert shared_blocks() == before
    assert (tmp_path / "shm_name").exists()  # it was needed: the address alone did not do
    comm.open([b"", b"hello", b"hello"])
    comm.post()
    for rank in (1, 2):
        assert comm.receive(rank) == b"yes"
        comm.release(rank)
    comm.open([b"", b"bye", b"bye"])
    comm.post()
    assert [other.wait(60) for other in others] == [0, 0]


@pytest.mark.parametrize("name", ["/etc/passwd", "/cgx-../x", "cgx-1", ""])
def test_strange_names_of_blocks_are_refused(tmp_path: pathlib.Path, name: str) -> None:
    FileRendezvous(str(tmp_path)).set("shm/area", b"ok " + name.encode())
    with pytest.raises(_C.MismatchError, match="area name is"):
        shm(str(tmp_path), 1, 2, timeout=1)


@pytest.mark.parametrize(
    ("mode", "content"), [(0o666, b"x" * 9999), (0o600, b"x" * 9999), (0o600, b"x"), (0o600, b"")]
)
def test_foreign_files_are_refused(tmp_path: pathlib.Path, mode: int, content: bytes) -> None:
    file = pathlib.Path(f"/dev/shm/cgx-test-{os.getpid()}")
    file.write_bytes(content)
    file.chmod(mode)
    FileRendezvous(str(tmp_path)).set("shm/area", b"ok /" + file.name.encode())
    try:
        with pytest.raises((_C.MismatchError, _C.ResourceError), match="magic|belongs to|area has"):
            shm(str(tmp_path), 1, 2, timeout=1)
    finally:
        file.unlink(missing_ok=True)


def test_symbolic_links_are_not_followed(tmp_path: pathlib.Path) -> None:
    link = pathlib.Path(f"/dev/shm/cgx-link-{os.getpid()}")
    link.symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"x" * 9999)
    FileRendezvous(str(tmp_path)).set("shm/area", b"ok /" + link.name.encode())
    try:
        with pytest.raises(_C.ResourceError, match="cannot open"):
            shm(str(tmp_path), 1, 2, timeout=1)
    finally:
        link.unlink(missing_ok=True)
