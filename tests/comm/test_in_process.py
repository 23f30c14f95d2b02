"""The exchange protocol, with ranks as threads of this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests import _machinery
from torch_cgx import _C


def later(seconds: float, action: Callable[[], Any]) -> threading.Thread:
    def body() -> None:
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("size", range(1, 10))
def test_random_exchanges(size: int, slots: int) -> None:
    group = _machinery.make_in_process_group(size, 40000, slots)
    assert all(comm.in_flight == slots for comm in group)
    checked = _machinery.stress(group, exchanges=150, seed=size, max_bytes=40000)
    assert (checked > 0) == (size > 1)


@pytest.mark.parametrize("slot_bytes", [9, 63, 64, 65, 1000])
def test_small_slots(slot_bytes: int) -> None:
    group = _machinery.make_in_process_group(9, slot_bytes)
    assert _machinery.stress(group, exchanges=100, seed=3) > 1000


@pytest.mark.parametrize("slots", [1, 5])
def test_wrong_number_of_slots(slots: int) -> None:
    with pytest.raises(ValueError, match=f"slots per rank is {slots}, allowed: 2 to 4"):
        _machinery.make_in_process_group(2, 1000, slots)


def test_peek_takes_nothing() -> None:
    a, b = _machinery.make_in_process_group(2, 1000)
    a.open([b"", b"text"])
    a.post()
    assert b.peek(0) == b.peek(0) == b"text"
    assert b.receive(0) == b"text"
    b.release(0)


def test_large_group_is_cheap_until_used() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    group = _machinery.make_in_process_group(64, 64 << 20)
    assert resident() - before < 16 << 20
    assert _machinery.stress(group, exchanges=4, max_bytes=1000) > 1000


def test_messages_are_fifo_and_skip_empty_ones() -> None:
    a, b, c = _machinery.make_in_process_group(3, 100)
    for round_ in range(5):
        a.open([b"", b"", b"to c %d" % round_])
        a.post()
        a.open([b"", b"to b %d" % round_, b""])
        a.post()
        assert c.receive(0) == b"to c %d" % round_
        c.release(0)
        assert b.receive(0) == b"to b %d" % round_
        b.release(0)


def test_broadcast_is_one_copy() -> None:
    group = _machinery.make_in_process_group(4, 1000)
    group[2].open_broadcast(b"x" * 1000)  # four times as much would not fit
    group[2].post()
    for rank in (0, 1, 3):
        assert group[rank].receive(2) == b"x" * 1000
        group[rank].release(2)


def test_open_again_discards_what_was_not_posted() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    a.open([b"", b"first"])
    a.open([b"", b"second"])
    a.post()
    assert b.receive(0) == b"second"


def test_open_waits_for_release() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    for text in (b"1", b"2"):
        a.open([b"", text])
        a.post()
    b.receive(0)

    def release() -> None:
        time.sleep(0.2)
        b.release(0)

    thread = threading.Thread(target=release)
    thread.start()
    start = time.monotonic()
    a.open([b"", b"3"])
    assert time.monotonic() - start > 0.15
    thread.join()
    assert b.receive(0) == b"2"


def test_open_times_out_when_nobody_releases() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    for _ in range(2):
        a.open([b"", b"x"])
        a.post()
    with pytest.raises(
        _C.TimeoutError, match="rank 0 waited .* for rank 1 to release an earlier message"
    ):
        a.open([b"", b"x"], timeout=0.1)
    with pytest.raises(_C.TimeoutError, match="rank 0 failed: rank 0 waited"):
        b.receive(0)


@pytest.mark.quiet
def test_deadline_and_first_cause() -> None:
    a, b, c = _machinery.make_in_process_group(3, 100)
    start = time.monotonic()
    with pytest.raises(
        TimeoutError, match="rank 0 waited 0.3.* s for rank 2 to send a message"
    ) as first:
        a.receive(2, timeout=0.3)
    assert 0.29 < time.monotonic() - start < 1
    assert isinstance(first.value, _C.TimeoutError) and isinstance(first.value, _C.CgxError)
    b.abort("a later cause")
    for call in (
        lambda: a.receive(1),
        a.post,
        lambda: a.open([b"", b"", b""]),
        lambda: a.release(1),
    ):
        with pytest.raises(_C.TimeoutError, match="for rank 2 to send a message"):
            call()
    with pytest.raises(_C.TimeoutError, match="rank 0 failed: rank 0 waited"):
        c.receive(0)


@pytest.mark.quiet
def test_abort_reaches_a_waiter_here_and_there() -> None:
    a, b, c = _machinery.make_in_process_group(3, 100)
    texts: dict[int, str] = {}

    def wait(rank: int, comm: Any) -> None:
        try:
            comm.receive(2, timeout=20)
        except _C.AbortedError as error:
            texts[rank] = str(error)

    threads = [threading.Thread(target=wait, args=item) for item in enumerate((a, b))]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    start = time.monotonic()
    a.abort("enough")
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 0.5
    assert texts[0] == "enough"
    assert texts[1] == "rank 0 failed: enough"
    with pytest.raises(_C.AbortedError, match="enough"):
        c.open([b"", b"", b""])


def test_long_abort_reason_is_cut() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    a.abort("y" * 100000)
    with pytest.raises(_C.AbortedError) as error:
        b.receive(0)
    assert 500 < len(str(error.value)) < 2000


@pytest.mark.quiet
def test_closing_is_noticed_at_once() -> None:
    a, b, _ = _machinery.make_in_process_group(3, 100)
    thread = later(0.2, b.close)
    start = time.monotonic()
    with pytest.raises(_C.PeerLostError, match="for rank 1 to send a message: it has closed"):
        a.receive(1, timeout=20)
    assert time.monotonic() - start < 0.7
    thread.join()


def test_messages_of_a_closed_rank_can_still_be_read() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    b.open([b"last words", b""])
    b.post()
    b.close()
    assert a.receive(1) == b"last words"
    a.release(1)
    with pytest.raises(_C.PeerLostError):
        a.receive(1)


def test_closed_reader_frees_no_slot() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    for _ in range(2):
        a.open([b"", b"x"])
        a.post()
    b.close()
    with pytest.raises(_C.PeerLostError, match="release an earlier message"):
        a.open([b"", b"x"], timeout=20)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.open([b"", b"x"]), "sizes for 2 ranks, the group has 3"),
        (lambda c: c.open([b"x", b"", b""]), "1 bytes to itself"),
        (lambda c: c.open([b"", b"x" * 60, b"x" * 41]), "41 bytes for rank 2 after 60 bytes"),
        (lambda c: c.open_sizes([0, 2**64 - 1, 2]), "allowed: 100 bytes"),
        (lambda c: c.open_broadcast(b"x" * 101), "101 bytes does not fit, allowed: 100"),
        (lambda c: c.post(), "without open"),
        (lambda c: c.receive(0), "peer is 0, allowed on rank 0: 0 to 2 except 0"),
        (lambda c: c.receive(3), "peer is 3"),
        (lambda c: c.receive(-1), "peer is -1"),
        (lambda c: c.release(1), r"release\(1\) without receive"),
    ],
)
def test_wrong_arguments_leave_the_group_usable(call: Callable[[Any], Any], text: str) -> None:
    group = _machinery.make_in_process_group(3, 100)
    with pytest.raises(ValueError, match=text):
        call(group[0])
    assert _machinery.stress(group, exchanges=20) > 10


def test_receive_twice_without_release() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    for text in (b"1", b"2"):
        a.open([b"", text])
        a.post()
    b.receive(0)
    with pytest.raises(ValueError, match="before the release"):
        b.receive(0)


@pytest.mark.parametrize(("size", "slot_bytes"), [(0, 100), (-1, 100), (2, 0)])
def test_wrong_group(size: int, slot_bytes: int) -> None:
    with pytest.raises(ValueError, match="is -?0|is -1"):
        _machinery.make_in_process_group(size, slot_bytes)


def test_absurd_group() -> None:
    with pytest.raises(_C.ResourceError, match="address space"):
        _machinery.make_in_process_group(2, 2**61)


@pytest.mark.parametrize(
    ("offset", "length", "posted"),
    [
        (8, 101, 1),  # longer than a slot
        (8, 0, 1),
        (8, 2**64 - 1, 1),
        (2**63 + 8, 10, 1),
        (2**64 - 56, 64, 1),
        (16384 + 8, 10, 1),  # beyond the last slot
        (9, 10, 1),  # not aligned
        (8, 10, 5),  # more in flight than there are slots
    ],
)
def test_damaged_table_is_an_error(offset: int, length: int, posted: int) -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    a.damage(1, offset, length, posted)
    with pytest.raises(_C.MismatchError, match="rank 1: message 1 of .* from rank 0 .*damaged"):
        b.receive(0)
    with pytest.raises(_C.MismatchError, match="damaged"):
        a.open([b"", b"x"])


def test_damaged_release_counter_is_an_error() -> None:
    a, b = _machinery.make_in_process_group(2, 100)
    for _ in range(2):
        a.open([b"", b"x"])
        a.post()
    b.damage_released(0, 77)
    with pytest.raises(_C.MismatchError, match="rank 1 has released 77 messages, 2 were sent"):
        a.open([b"", b"x"])


def test_two_groups_do_not_meet() -> None:
    first = _machinery.make_in_process_group(4, 5000)
    second = _machinery.make_in_process_group(4, 5000)
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(_machinery.stress(second, 200, seed=2)))
    thread.start()
    results.append(_machinery.stress(first, 200, seed=1))
    thread.join()
    assert len(results) == 2 and min(results) > 500
    second[0].abort("only the second")
    assert _machinery.stress(first, 20, seed=5) > 20


def test_forked_child_cannot_use_or_end_the_parents_group() -> None:
    group = _machinery.make_in_process_group(2, 100)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            group[0].receive(1, timeout=1)
        except ValueError as error:
            code = 0 if "forked child" in str(error) else 2
        group[0].abort("from the child")
        group[0].close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert _machinery.stress(group, 20, max_bytes=100) > 10
