"""The MPI communicator over a mock MPI: what it makes of every failure, and how it ends."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from tests.calls import on_threads
from tests.comm.mpi_endpoint import make_mpi_endpoint
from tests.comm.mpi_mock import LONG, OTHER, PEER_LOST, TRUNCATED, MockMpi, settle, text
from torch_cgx import _C

# --- failures


def test_creation_that_fails(mock: MockMpi) -> None:
    mock.set("create_error", OTHER)
    with pytest.raises(_C.CgxError, match="MPI_Comm_create_group: mock error 3"):
        mock.group(2)


@pytest.mark.quiet
def test_creation_that_hangs(mock: MockMpi) -> None:
    mock.set("hold_create", 1)
    start = time.monotonic()
    with pytest.raises(_C.TimeoutError, match="create_group over the ranks 2, 0 of MPI_COMM_WORLD"):
        mock.group(2, members=[2, 0], timeout=0.3)
    assert time.monotonic() - start < 2
    mock.set("hold_create", 0)
    mock.group(2, members=[2, 0])  # later ones are not affected


@pytest.mark.quiet
def test_a_member_that_does_not_come(mock: MockMpi) -> None:
    start = time.monotonic()
    with pytest.raises(_C.TimeoutError, match="mpi/rank/1"):
        make_mpi_endpoint(mock.tables[0], dist.HashStore(), 0, 2, timeout=0.3)
    assert time.monotonic() - start < 2


@pytest.mark.quiet
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


@pytest.mark.quiet
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


def test_memory_of_a_send_under_way_keeps_the_communicator(mock: MockMpi) -> None:
    a, b = mock.group(2)
    sent = a.send(1, 0, text(LONG))
    sent.drop()
    assert a.close() is True
    coming = b.receive(0, 0, LONG)  # a peer that is only late
    assert coming.wait() == text(LONG)
    settle(mock, range(1), 0)


@pytest.mark.quiet
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
