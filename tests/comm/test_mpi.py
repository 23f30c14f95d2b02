"""The MPI carrier over a mock MPI: what it asks of MPI, and what it makes of every failure."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from tests.calls import on_threads
from tests.comm.mpi_mock import OTHER, PEER_LOST, TRUNCATED, MockMpi
from torch_cgx import _C

NOTE = 512  # bytes of the news of an abort, for which every rank listens
LONG = 50_000  # bytes; the mock holds messages of more than 4096 until their receive is there


@pytest.fixture
def mock() -> MockMpi:
    return MockMpi()


def text(length: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(length))


def settle(mock: MockMpi, ranks: range, live: int) -> None:
    """Waits until MPI has no more than `live` requests of each rank."""
    end = time.monotonic() + 5
    while any(mock.live(rank) > live for rank in ranks):
        assert time.monotonic() < end, [mock.live(rank) for rank in ranks]
        time.sleep(0.002)


# --- messages


@pytest.mark.parametrize("part", [1, 999, 1000, 1001, 2000, 1 << 30])
@pytest.mark.parametrize("length", [0, 1, 1000, 2000, 12345])
def test_messages_of_any_length_are_split(mock: MockMpi, length: int, part: int) -> None:
    if length // part > 3000:
        length = 3000
    a, b = mock.group(2, part_bytes=part)
    coming = b.receive(0, 3, length)
    sent = a.send(1, 3, text(length))
    assert coming.wait() == text(length)
    sent.wait()
    assert mock.get("longest_part", 0) == max(min(length, part), NOTE)
    parts = max(1, -(-length // part))
    assert (mock.get("isends", 0), mock.get("irecvs", 1)) == (parts, parts + 1)


def test_a_receive_may_be_longer_than_its_message(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = b.receive(0, 7, 100)
    a.send(1, 7, b"abc").wait()
    assert coming.wait()[:3] == b"abc"


def test_tags_and_peers_are_told_apart(mock: MockMpi) -> None:
    group = mock.group(4)
    coming = [
        (f"{peer} {tag}".encode(), group[0].receive(peer, tag, 3))
        for peer in (3, 1, 2)
        for tag in (7, 0, 4)
    ]
    for peer in (1, 2, 3):
        for tag in (4, 7, 0):
            group[peer].send(0, tag, f"{peer} {tag}".encode())
    for expected, receive in coming:
        assert receive.wait() == expected


def test_done_needs_no_wait(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = a.receive(1, 0, LONG)
    assert not coming.done()
    sent = b.send(0, 0, text(LONG))
    end = time.monotonic() + 5
    while not (coming.done() and sent.done()):
        assert time.monotonic() < end
    assert coming.wait(timeout=0) == text(LONG)
    assert coming.wait(timeout=0) == text(LONG)  # again


def test_progress_without_anybody_waiting(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming, sent = b.receive(0, 0, LONG), a.send(1, 0, text(LONG))
    settle(mock, range(2), 1)  # what is left listens for aborts
    assert coming.done() and sent.done()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_exchanges(mock: MockMpi, size: int) -> None:
    group = mock.group(size, part_bytes=20_000)
    checked = on_threads(size, lambda rank: group[rank].stress(60, size, 60_000, 200_000))
    assert all(isinstance(count, int) and (count > 0) == (size > 1) for count in checked), checked
    assert sum(mock.get("truncated", rank) for rank in range(size)) == 0


def test_groups_share_a_process(mock: MockMpi) -> None:
    members = [[0, 1, 2, 3], [0, 2], [3, 1, 0], [1, 2, 3]]
    groups = [mock.group(len(ranks), members=ranks) for ranks in members]
    jobs = [(group, rank) for group in groups for rank in range(len(group))]
    checked = on_threads(len(jobs), lambda job: jobs[job][0][jobs[job][1]].stress(40, 1, 30_000))
    assert all(isinstance(count, int) and count > 0 for count in checked), checked
    assert [mock.get("inits", rank) for rank in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_peers_are_checked(mock: MockMpi, peer: int) -> None:
    a, _ = mock.group(2)
    with pytest.raises(ValueError, match=f"{peer}"):
        a.send(peer, 0, b"x")


@pytest.mark.parametrize("tag", [-1, 8, 32768])
def test_tags_are_checked(mock: MockMpi, tag: int) -> None:
    a, _ = mock.group(2)
    with pytest.raises(ValueError, match=rf"tag is {tag}, allowed: 0 to 7"):
        a.receive(1, tag, 1)


@pytest.mark.parametrize("part", [0, 2**31])
def test_part_bytes_is_checked(mock: MockMpi, part: int) -> None:
    with pytest.raises(ValueError, match=f"part_bytes of MPI is {part}, allowed: 1 to 2147483647"):
        mock.group(1, part_bytes=part)


# --- communicators


def test_communicators_are_used_again_with_other_tags(mock: MockMpi) -> None:
    stale = []
    for turn in range(5):
        a, b = mock.group(2)
        coming = b.receive(0, 0, 10)
        a.send(1, 0, b"%d" % turn)
        assert coming.wait()[:1] == b"%d" % turn
        stale.append(a.send(1, 0, b"stale"))  # never received: no later group may get it
        a.close()
        b.close()
    assert [mock.get("creates", rank) for rank in (0, 1)] == [1, 1]


def test_a_communicator_is_left_when_its_tags_are_used_up(mock: MockMpi) -> None:
    mock.set("largest_tag", 47)  # three groups
    for _ in range(7):
        a, b = mock.group(2)
        a.send(1, 7, b"x")
        assert b.receive(0, 7, 1).wait() == b"x"
    assert mock.get("creates", 0) == 3


def test_other_members_or_another_order_need_their_own(mock: MockMpi) -> None:
    for members in ([0, 1], [1, 0], [0, 1, 2], [0, 1]):
        mock.group(len(members), members=members)
    assert mock.get("creates", 0) == 3


def test_ranks_that_disagree_on_what_they_have_make_a_new_one(mock: MockMpi) -> None:
    mock.group(2)
    mock.restart(1)  # has forgotten
    for expected in (2, 2):
        a, b = mock.group(2)
        a.send(1, 0, b"x")
        assert b.receive(0, 0, 1).wait() == b"x"
        assert mock.get("creates", 0) == expected


def test_groups_of_the_same_ranks_made_by_several_threads(mock: MockMpi) -> None:
    for _ in range(5):
        stores = [dist.HashStore() for _ in range(4)]
        groups = on_threads(4, lambda i, stores=stores: mock.group(2, stores[i]))
        jobs = [(group, rank) for group in groups for rank in range(2)]
        checked = on_threads(8, lambda j, jobs=jobs: jobs[j][0][jobs[j][1]].stress(20, j // 2))
        assert all(isinstance(count, int) for count in checked), checked


# --- ranks that do not fit together


def test_processes_that_are_no_mpi_job_are_told_how_to_start(mock: MockMpi) -> None:
    mock.set("world_rank", 0)
    mock.set("world_size", 1)
    with pytest.raises(
        ValueError,
        match=r"MPI, rank 0 of 3: .*not different processes of one MPI job.*"
        r"MPI_COMM_WORLD: ranks 0, 1, 2: 1; their ranks in it: ranks 0, 1, 2: 0.*"
        r"start all ranks by one `mpirun -np N python \.\.\.` or `srun.*torchrun",
    ):
        mock.group(3)
    assert mock.get("creates", 0) == 0


def test_two_jobs_are_told_apart(mock: MockMpi) -> None:
    mock.set("world_rank", 0, (2,))
    mock.set("world_rank", 1, (3,))
    outcomes = mock.outcomes(4)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, ValueError)
        assert f"rank {rank} of 4" in str(outcome) and "ranks 0, 2: 0; ranks 1, 3: 1" in str(
            outcome
        )


def test_libraries_have_to_be_the_same(mock: MockMpi) -> None:
    mock.set("library", 7, (1,))
    with pytest.raises(
        ValueError, match="different MPI libraries: ranks 0, 2: Mock MPI 0; rank 1: Mock MPI 7"
    ):
        mock.group(3)


def test_parts_have_to_be_the_same(mock: MockMpi) -> None:
    store = dist.HashStore()

    def make(rank: int) -> Any:
        return _C._make_mpi_endpoint(mock.tables[rank], store, rank, 2, part_bytes=100 + rank)

    for outcome in on_threads(2, make):
        assert isinstance(outcome, _C.MismatchError)
        assert "rank 0: 100; rank 1: 101" in str(outcome)


@pytest.mark.parametrize("by_us", [False, True])
@pytest.mark.parametrize(
    "level, name", [(0, "MPI_THREAD_SINGLE"), (1, "MPI_THREAD_FUNNELED"), (2, "MPI_THREAD_SERIAL")]
)
def test_thread_levels(mock: MockMpi, level: int, name: str, by_us: bool) -> None:
    mock.set("level", level, (1,))
    mock.set("initialized", 0 if by_us else 1)
    good, bad = mock.outcomes(2)
    assert isinstance(bad, ValueError) and name in str(bad) and "MPI_THREAD_MULTIPLE" in str(bad)
    assert ("mpi4py.rc" in str(bad)) == (not by_us)
    assert isinstance(good, _C.MismatchError) and f"rank 1 cannot take part: {bad}" in str(
        good
    ).replace("take part in the group", "take part")
    assert mock.get("inits", 0) == (1 if by_us else 0)


def test_mpi_that_was_finalised_before(mock: MockMpi) -> None:
    mock.set("initialized", 1)
    mock.set("finalized", 1)
    with pytest.raises(ValueError, match="MPI has been finalised in this process.*again"):
        mock.group(2)


def test_mpi_that_does_not_start(mock: MockMpi) -> None:
    mock.set("init_error", OTHER)
    with pytest.raises(_C.CgxError, match=r"MPI_Init_thread: mock error 3 \(mock: this is error 3"):
        mock.group(2)


def test_mpi_that_hangs_at_its_start(mock: MockMpi) -> None:
    mock.set("hold_init", 1)
    start = time.monotonic()
    with pytest.raises(_C.TimeoutError, match="MPI_Init_thread of mock has not ended.*every rank"):
        mock.group(2, timeout=0.3)
    assert time.monotonic() - start < 2
    mock.set("hold_init", 0)  # late, but there
    mock.group(2)
    assert mock.get("inits", 0) == 1


def test_a_table_of_another_version_is_refused(mock: MockMpi) -> None:
    ctypes.c_uint32.from_address(mock.tables[0]).value = 99
    with pytest.raises(ValueError, match="interface version 99, allowed: 1; reinstall torch_cgx"):
        mock.group(1)


@pytest.mark.parametrize("thing", [None, "x", 1.5])
def test_something_that_is_no_capsule_is_refused(thing: Any) -> None:
    with pytest.raises(ValueError, match=r"capsule of an MPI module.*got"):
        _C._make_mpi_endpoint(thing, dist.HashStore(), 0, 1)


# --- failures


def test_creation_that_fails(mock: MockMpi) -> None:
    mock.set("create_error", OTHER)
    with pytest.raises(_C.CgxError, match="MPI_Comm_create_group: mock error 3"):
        mock.group(2)


def test_creation_that_hangs(mock: MockMpi) -> None:
    mock.set("hold_create", 1)
    start = time.monotonic()
    with pytest.raises(_C.TimeoutError, match="create_group over the ranks 2, 0 of MPI_COMM_WORLD"):
        mock.group(2, members=[2, 0], timeout=0.3)
    assert time.monotonic() - start < 2
    mock.set("hold_create", 0)
    mock.group(2, members=[2, 0])  # later ones are not affected


def test_a_member_that_does_not_come(mock: MockMpi) -> None:
    start = time.monotonic()
    with pytest.raises(_C.TimeoutError, match="mpi/rank/1"):
        _C._make_mpi_endpoint(mock.tables[0], dist.HashStore(), 0, 2, timeout=0.3)
    assert time.monotonic() - start < 2


def test_deadline_of_a_receive(mock: MockMpi) -> None:
    group = mock.group(3, members=[3, 0, 2])
    coming = group[0].receive(2, 5, 100)
    start = time.monotonic()
    with pytest.raises(
        _C.TimeoutError,
        match=r"MPI, rank 0 \(3 in MPI_COMM_WORLD\) receiving up to 100 bytes, tag 5, from rank 2 "
        r"\(2\): not done after 0\.[34]",
    ):
        coming.wait(timeout=0.3)
    assert 0.25 < time.monotonic() - start < 1
    group[2].send(0, 5, b"late")
    assert coming.wait()[:4] == b"late"  # a deadline breaks nothing here


def test_deadline_of_a_send(mock: MockMpi) -> None:
    a, _ = mock.group(2)
    with pytest.raises(_C.TimeoutError, match=f"sending {LONG} bytes, tag 0, to rank 1"):
        a.send(1, 0, text(LONG)).wait(timeout=0.2)


def test_abort_ends_every_wait_and_reaches_the_peers(mock: MockMpi) -> None:
    group = mock.group(4)
    waits = [group[0].receive(1, 0, 10), group[1].send(2, 0, text(LONG))]
    waits += [group[2].receive(3, 0, 8), group[3].receive(2, 0, 9)]
    threading.Timer(0.2, lambda: group[0].abort("enough")).start()
    start = time.monotonic()

    def wait(index: int) -> None:
        waits[index].wait(timeout=20)

    own, *others = on_threads(4, wait)
    assert time.monotonic() - start < 2
    assert isinstance(own, _C.AbortedError) and str(own).endswith("rank 1 (1): enough")
    for other in others:
        assert isinstance(other, _C.AbortedError)
        assert str(other).endswith("aborted by rank 0: enough")
    for endpoint in group:
        with pytest.raises(_C.AbortedError, match="enough"):
            endpoint.send((endpoint.rank + 1) % 4, 0, b"x")
    settle(mock, range(1), 0)  # receives are cancelled
    settle(mock, range(2, 4), 0)
    assert mock.live(1) == 1  # nobody can call back a send


def test_abort_spares_other_groups_and_the_next(mock: MockMpi) -> None:
    first, second = mock.group(2), mock.group(2)
    first[0].abort("only this one")
    second[0].send(1, 0, b"x")
    assert second[1].receive(0, 0, 1).wait() == b"x"
    third = mock.group(2)
    third[0].send(1, 0, b"y")
    assert third[1].receive(0, 0, 1).wait() == b"y"


def test_what_has_come_before_an_abort_is_kept(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = b.receive(0, 0, 4)
    a.send(1, 0, b"good")
    settle(mock, range(1, 2), 1)
    b.abort("too late")
    assert coming.wait() == b"good"


def test_long_reasons_are_cut(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = b.receive(0, 0, 4)
    a.abort("x" * 2000)
    with pytest.raises(_C.AbortedError, match="aborted by rank 0: x{400,}"):
        coming.wait()


@pytest.mark.parametrize("operations", [0, 1, 3])
@pytest.mark.parametrize("knob", ["fail_isend_after", "fail_irecv_after"])
def test_calls_that_fail(mock: MockMpi, knob: str, operations: int) -> None:
    group = mock.group(2, part_bytes=1000)
    mock.set(knob, operations, (1,))
    what = "sending" if "isend" in knob else "receiving up to"
    with pytest.raises(
        _C.CgxError,
        match=rf"rank 1 \(1 in MPI_COMM_WORLD\) {what} 5000 bytes.*mock error 75 \(mock: this is",
    ):
        if "isend" in knob:
            group[1].send(0, 0, text(5000))
        else:
            group[1].receive(0, 0, 5000)
    settle(mock, range(1, 2), 1)  # parts of it that were posted do not stay


@pytest.mark.parametrize(
    "length, knob, error", [(20, "", _C.MismatchError), (4, "lose_after", _C.PeerLostError)]
)
def test_messages_that_fail(mock: MockMpi, length: int, knob: str, error: Any) -> None:
    a, b = mock.group(2)
    if knob:
        mock.set(knob, 0, (1,))
    coming = b.receive(0, 0, 10)
    a.send(1, 0, text(length))
    code = TRUNCATED if error is _C.MismatchError else PEER_LOST
    for _ in range(2):
        with pytest.raises(error, match=rf"from rank 0 \(0\): mock: this is error {code} \(mock"):
            coming.wait()
    assert coming.done()


def test_a_part_that_fails_ends_its_message(mock: MockMpi) -> None:
    a, b = mock.group(2, part_bytes=1000)
    mock.set("lose_after", 2, (1,))
    coming = b.receive(0, 0, 5000)
    a.send(1, 0, text(5000))
    with pytest.raises(_C.PeerLostError, match="this is error 75"):
        coming.wait()


def test_tests_of_requests_that_fail(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = b.receive(0, 0, 10)
    mock.set("test_error", OTHER, (1,))
    with pytest.raises(_C.CgxError, match="this is error 3"):
        coming.wait()
    assert coming.done()
    assert b.close()  # MPI may still write there: the memory stays
    a.close()


def test_errors_break_a_relay_on_all_ranks(mock: MockMpi) -> None:
    group = mock.group(3)
    mock.set("lose_after", 40, (1,))
    start = time.monotonic()
    outcomes = on_threads(3, lambda rank: group[rank].stress(300, 5, 30_000, timeout=20))
    assert time.monotonic() - start < 5
    assert all(isinstance(outcome, _C.CgxError) for outcome in outcomes), outcomes
    assert "(mock error 75)" in str(outcomes[1])
    assert "aborted by rank 1" in str(outcomes[0]) and "aborted by rank 1" in str(outcomes[2])


# --- ends


def test_closing_cancels_receives_and_frees_everything(mock: MockMpi) -> None:
    a, b = mock.group(2)
    pending = [a.receive(1, tag, 100) for tag in range(8)]
    for transfer in pending:
        transfer.drop()
    assert mock.live(0) == 1
    assert a.close() is False
    settle(mock, range(1), 0)
    b.close()


def test_memory_of_a_send_under_way_keeps_the_carrier(mock: MockMpi) -> None:
    a, b = mock.group(2)
    sent = a.send(1, 0, text(LONG))
    sent.drop()
    assert a.close() is True
    coming = b.receive(0, 0, LONG)  # a peer that is only late
    assert coming.wait() == text(LONG)
    settle(mock, range(1), 0)


def test_a_receive_that_cannot_be_cancelled(mock: MockMpi) -> None:
    a, _ = mock.group(2)
    mock.set("stubborn", 1, (0,))
    start = time.monotonic()
    a.receive(1, 0, 10).drop()
    assert time.monotonic() - start < 1
    assert a.close() is True  # MPI may still write there


def test_finalising_ends_all_groups(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = a.receive(1, 0, 10)
    outcome: list[Any] = []

    def wait() -> None:
        try:
            coming.wait(timeout=20)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    mock.finalize(0)
    thread.join(5)
    assert outcome and isinstance(outcome[0], _C.AbortedError)
    assert "MPI is being finalised" in str(outcome[0])
    assert mock.live(0) == 0
    with pytest.raises(_C.AbortedError, match="finalised"):
        a.send(1, 0, b"x")
    with pytest.raises(ValueError, match="MPI has been finalised in this process"):
        mock.group(1)
    coming.drop()
    a.abort("late")
    assert a.close() is False
    assert (mock.get("misused", 0), mock.get("finalizes", 0)) == (0, 1)
    b.close()


def test_a_long_wait_costs_little(mock: MockMpi) -> None:
    a, _ = mock.group(2)
    coming = a.receive(1, 0, 10)
    before = time.process_time()
    with pytest.raises(_C.TimeoutError):
        coming.wait(timeout=2)
    assert time.process_time() - before < 0.6  # of 2 s


def test_a_forked_child_is_refused(mock: MockMpi) -> None:
    a, b = mock.group(2)
    coming = a.receive(1, 0, 10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: a.send(1, 0, b"x"), lambda: mock.group(1)):
            try:
                call()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        coming.drop()
        a.close()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 10000).decode().splitlines()
    os.waitpid(child, 0)
    os.close(read)
    assert len(said) == 2
    assert all("CgxError" in line and "parent of this process" in line for line in said), said
    b.send(0, 0, b"parent")
    assert coming.wait()[:6] == b"parent"
