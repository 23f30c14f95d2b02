"""The relay over a mock library that is stricter than real ones."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests import _machinery
from torch_cgx import _C

EAGER = 72 << 10  # bytes of the first frame, 8 of which are the length


def relays(
    size: int, capacity: int = 300000, delay: int = 0, lazy: bool = False, tags: int = 1 << 20
) -> tuple[Any, Any]:
    network = _machinery.MockNetwork(size)
    network.set_delay(delay, size)
    network.set_lazy(lazy)
    network.set_tags(tags)
    return network, _machinery.make_relay_group(network, size, capacity)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("delay", [0, 300])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_random_exchanges(size: int, delay: int, lazy: bool) -> None:
    network, group = relays(size, delay=delay, lazy=lazy)
    checked = _machinery.stress(group, exchanges=40, seed=size + delay, max_bytes=60000)
    assert (checked > 0) == (size > 1)
    assert network.overruns == 0


@pytest.mark.parametrize("tags", [8, 1 << 20])
@pytest.mark.parametrize("call_length", [1, 3, 40])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("delay", [0, 300])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_random_exchanges_in_calls(
    size: int, delay: int, lazy: bool, call_length: int, tags: int
) -> None:
    network, group = relays(size, delay=delay, lazy=lazy, tags=tags)
    seed = size + delay + call_length
    checked = _machinery.stress(
        group, exchanges=40, seed=seed, max_bytes=60000, call_length=call_length
    )
    assert checked > 0
    assert network.overruns == 0


def test_only_the_first_message_of_a_call_is_announced() -> None:
    network, (a, b) = relays(2)
    texts = [bytes([i]) * n for i, n in enumerate([100, 40000, 7, 300000, 1])]
    for _ in range(3):
        a.begin_call()
        b.begin_call()
        b.expect([0], len(texts[0]))
        for text in texts[:4]:
            a.open([b"", text])
            a.post()
        assert b.peek(0) == texts[0]
        for text in texts[1:]:
            b.expect([0], len(text))
        for number, text in enumerate(texts):
            if number == 4:
                a.open([b"", text])
                a.post()
            assert b.receive(0) == text
            b.release(0)
    assert network.overruns == 0


def test_later_messages_of_a_call_must_be_expected_with_their_length() -> None:
    _, (a, b) = relays(2)
    for comm in (a, b):
        comm.begin_call()
    for text in (b"one", b"two"):
        a.open([b"", text])
        a.post()
    assert b.receive(0) == b"one"
    b.release(0)
    with pytest.raises(ValueError, match=r"rank 1: receive\(0\).*not expected"):
        b.receive(0)
    with pytest.raises(ValueError, match=r"expect\(0, 0\).*allowed: 1 to 300000"):
        b.expect([0])
    b.expect([0], 3)
    assert b.receive(0) == b"two"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "believed, sent", [(140000, 170000), (170000, 140000), (100, 170000), (170000, 5)]
)
def test_who_believes_in_another_length_sees_the_beginning_and_then_an_error(
    believed: int, sent: int, lazy: bool
) -> None:
    network, (a, b) = relays(2, lazy=lazy)
    texts = [bytes([1]) * sent, bytes([2]) * 20000]
    for comm in (a, b):
        comm.begin_call()
    b.expect([0], believed)
    b.expect([0], 190000)
    for text in texts:
        a.open([b"", text])
        a.post()
    assert b.peek(0) == texts[0][: EAGER - 8]
    with pytest.raises(
        _C.MismatchError, match=f"rank 0 announces a message of {sent} bytes, expected.*{believed}"
    ):
        b.receive(0)
    assert network.overruns == 0


def test_all_messages_of_a_call_travel_before_the_reader_looks() -> None:
    """No round trip: what the sender has posted can leave it while the reader does nothing."""
    _, (a, b) = relays(2)
    texts = [bytes([i]) * n for i, n in enumerate([100000, 40000, 7])]
    for comm in (a, b):
        comm.begin_call()
    for text in texts:
        b.expect([0], len(text))
    for text in texts:
        a.open([b"", text])
        a.post()
    a.flush(timeout=5)
    for text in texts:
        assert b.receive(0) == text
        b.release(0)


def test_the_first_receive_of_a_call_is_posted_before_the_call() -> None:
    """And every message arrives whole, the shorter and the longer ones in turns."""
    network, (a, b) = relays(2)
    for number, length in enumerate([5, EAGER - 8, EAGER - 7, 5, 200_000, 90_000, 5, 1]):
        text = bytes([number]) * length
        for comm in (a, b):
            comm.begin_call()
        if number > 0:
            assert network.receives(1) == 1
        b.expect([0], length)
        a.open([b"", text])
        a.post()
        assert b.peek(0) == text[: EAGER - 8]
        assert b.receive(0) == text
        b.release(0)
        a.flush(timeout=5)
    assert network.overruns == 0
    assert b.staging_bytes < 400_000


def test_memory_is_that_of_the_most_messages_at_once() -> None:
    _, (a, b) = relays(2)
    held = set()
    for length in [90000] * 20 + [100, 50000, 90000] * 7:
        for comm in (a, b):
            comm.begin_call()
        b.expect([0], length)
        a.open([b"", b"x" * length])
        a.post()
        assert len(b.receive(0)) == length
        b.release(0)
        a.flush()
        held.add((a.staging_bytes, b.staging_bytes))
    assert len(held) == 1
    (sender, reader) = held.pop()
    for bytes_held in (sender, reader):
        assert 90000 <= bytes_held <= 90000 * 9 / 8 + EAGER + 4096


def test_peek_shows_the_beginning_and_takes_nothing() -> None:
    _, (a, b) = relays(2)
    text = bytes(i * 7 % 251 for i in range(50000))
    a.open([b"", text])
    a.post()
    for _ in range(2):
        assert b.peek(0) == text[: EAGER - 8]
    assert b.receive(0) == text


@pytest.mark.parametrize(
    "length", [1, 8, EAGER - 9, EAGER - 8, EAGER - 7, EAGER, EAGER + 1, 299999, 300000]
)
def test_lengths_around_the_first_frame(length: int) -> None:
    network, (a, b) = relays(2)
    text = bytes(i * 7 % 251 for i in range(length))
    for _ in range(3):
        b.expect([0])
        a.open([b"", text])
        a.post()
        assert b.receive(0) == text
        b.release(0)
    assert network.overruns == 0


def test_expect_is_only_a_hint() -> None:
    _, (a, b) = relays(2)
    for text in (b"1", b"2" * 50000):
        a.open([b"", text])
        a.post()
    for text in (b"1", b"2" * 50000):
        assert b.receive(0) == text
        b.release(0)


def test_frame_bytes_and_name() -> None:
    _, (a, _b) = relays(2, capacity=777)
    assert (a.frame_bytes, a.name, a.capacity) == (8, "mock", 777)


@pytest.mark.parametrize("length", [0, 300001, 2**63, 2**64 - 1])
def test_forged_length_is_refused(length: int) -> None:
    network, (a, b, c) = relays(3)
    network.forge_length(0, length)
    a.open([b"", b"x" * 100, b""])
    a.post()
    with pytest.raises(
        _C.MismatchError,
        match=f"rank 0 announces a message of {length} bytes, allowed: 1 to 300000",
    ):
        b.receive(0)
    with pytest.raises(_C.MismatchError, match="announces"):
        b.receive(2)
    with pytest.raises(_C.AbortedError, match="announces"):  # the others learn of it
        c.receive(0)
    assert network.overruns == 0


def test_longer_than_expected_arrives_whole() -> None:
    network, (a, b) = relays(2)
    b.expect([0])
    a.open([b"", b"x" * 200000])  # whatever b believed: it learns the true length
    a.post()
    assert len(b.receive(0)) == 200000
    assert network.overruns == 0


@pytest.mark.quiet
@pytest.mark.parametrize("lazy", [False, True])
def test_deadline(lazy: bool) -> None:
    _, (a, b, _c) = relays(3, lazy=lazy)
    a.expect([1, 2])
    start = time.monotonic()
    with pytest.raises(
        _C.TimeoutError, match=f"rank 0 over mock, receiving from rank {'[12]' if lazy else 2}"
    ):
        a.receive(2, timeout=0.3)
    assert 0.25 < time.monotonic() - start < 1
    with pytest.raises(_C.TimeoutError, match="receiving from rank"):
        a.open([b"", b"", b""])
    with pytest.raises(_C.AbortedError, match="receiving from rank"):
        b.receive(0)


@pytest.mark.quiet
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_abort_from_another_thread(lazy: bool, others: bool) -> None:
    _, (a, _b, _c) = relays(3, lazy=lazy)
    a.expect([1, 2] if others else [1])
    timer = threading.Timer(0.2, lambda: a.abort("enough"))
    timer.start()
    start = time.monotonic()
    with pytest.raises(_C.AbortedError, match="^enough$"):
        a.receive(1, timeout=20)
    assert time.monotonic() - start < 1
    timer.join()


@pytest.mark.parametrize("operations", range(0, 40, 3))
def test_errors_of_the_library_end_everybody(operations: int) -> None:
    network, group = relays(4, delay=100)
    network.fail_after(1, operations)
    start = time.monotonic()
    with pytest.raises(_C.CgxError, match="lost|aborted|abort"):
        _machinery.stress(group, exchanges=200, max_bytes=60000, timeout=20)
    assert time.monotonic() - start < 5
    assert network.overruns == 0


def test_first_cause_is_kept() -> None:
    network, (a, b) = relays(2)
    network.fail_after(1, 0)
    with pytest.raises(_C.PeerLostError, match="receiving from rank 1.*lost"):
        a.receive(1)
    a.abort("later")
    for call in (
        lambda: a.expect([1]),
        a.post,
        lambda: a.release(1),
        lambda: a.open_broadcast(b"x"),
    ):
        with pytest.raises(_C.PeerLostError, match="receiving from rank 1.*lost"):
            call()


def test_closing_with_transfers_under_way() -> None:
    _, (a, b) = relays(2)
    a.expect([1])
    a.open([b"", b"x" * 100000])
    a.post()
    a.close()
    with pytest.raises(_C.PeerLostError, match="has gone|lost"):
        b.receive(0, timeout=20)


@pytest.mark.parametrize("capacity", [0, 2**60])
def test_capacity_is_checked(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity of a relay is"):
        relays(2, capacity=capacity)


def test_too_large_an_exchange() -> None:
    _, (a, _b, _c) = relays(3, capacity=100)
    with pytest.raises(ValueError, match="51 bytes for rank 2 after 50"):
        a.open([b"", b"x" * 50, b"x" * 51])
    with pytest.raises(ValueError, match="101 bytes does not fit"):
        a.open_broadcast(b"x" * 101)
