"""Other Python threads run while a codec works on a long tensor."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from torch_cgx.codecs import Half, MaxMin

NUMEL = 1 << 22  # milliseconds of work
# A thread that may run does so during the first call or, on a busy machine, one of the next.
CALLS = 200


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """A thread that counts, and may do so only where the caller releases the GIL: the interpreter
    takes it from nobody meanwhile."""
    count, stop = [0], threading.Event()
    before = sys.getswitchinterval()

    def work() -> None:
        while not stop.is_set():
            count[0] += 1
            time.sleep(0.0002)  # gives the GIL back

    thread = threading.Thread(target=work)
    thread.start()
    while count[0] == 0:  # runs
        time.sleep(0.001)
    sys.setswitchinterval(1000)
    try:
        yield lambda: count[0]
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()


def calls_until_progress(call: Callable[[], object], most: int) -> int | None:
    """After how many calls the other thread has counted; None where it never did."""
    with counting() as count:
        time.sleep(0.001)
        start = count()
        for number in range(1, most + 1):
            call()
            if count() != start:
                return number
    return None


def test_encode_and_decode_release_the_gil(level: str) -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(NUMEL).to(dtype)
        y = torch.empty_like(x)
        for codec in (MaxMin(bits=4), Half()):
            # No tensor is made or freed inside the calls.
            payload = codec.encode(x)
            for call in (
                partial(codec.encode, x, out=payload),
                partial(codec.decode, payload, y),
                partial(codec.decode, payload, y, add=True),
            ):
                assert calls_until_progress(call, CALLS) is not None, (codec, dtype)


def test_a_call_that_holds_the_gil_stops_other_threads() -> None:
    """The same check on a function of C: ctypes.PyDLL holds the GIL, ctypes.CDLL releases it."""
    for library, released in ((ctypes.PyDLL(None), False), (ctypes.CDLL(None), True)):
        assert (calls_until_progress(partial(library.usleep, 20_000), 20) is not None) == released
