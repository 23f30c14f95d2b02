"""The MPI communicator over a mock MPI: what it asks of MPI, and how groups are made."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest
import torch.distributed as dist

from tests.calls import on_threads
from tests.comm.mpi_endpoint import make_mpi_endpoint
from tests.comm.mpi_mock import LONG, NOTE, OTHER, MockMpi, settle, text
from torch_cgx import _C

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


def test_tags_and_peers_are_kept_apart(mock: MockMpi) -> None:
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
    settle(mock, range(2), 1)  # what is left is the receive of aborts
    assert coming.done() and sent.done()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_exchanges(mock: MockMpi, size: int) -> None:
    group = mock.group(size, part_bytes=80_000)
    checked = on_threads(size, lambda rank: group[rank].stress(60, size, 250_000, 400_000))
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


def test_the_error_of_processes_that_are_no_mpi_job_says_how_to_start(mock: MockMpi) -> None:
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


def test_ranks_of_two_jobs_get_an_error(mock: MockMpi) -> None:
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
        return make_mpi_endpoint(mock.tables[rank], store, rank, 2, part_bytes=100 + rank)

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


@pytest.mark.quiet
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
        make_mpi_endpoint(thing, dist.HashStore(), 0, 1)
