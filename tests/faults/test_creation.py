"""A group that cannot be made, where one of its ranks serves the store and ends with its error: all
others still get the cause.
"""

from __future__ import annotations

import datetime
import os
import re
import resource
import signal
import time

import pytest
import torch.distributed as dist

from tests.distributed import run_pooled
from tests.faults.forked import Lost, Ranks

TIMEOUT = 20.0
LEAVING = (
    3.0  # seconds that a rank which fails waits for the others: csrc/backend/config/handshake.cc
)
SLACK = 4.0


class FarStore(dist.Store):
    """A store whose answers take their time, as those of a busy host do."""

    def __init__(self, store):
        super().__init__()
        self._store = store

    def wait(self, keys, *timeout):
        self._store.wait(keys, *timeout)
        time.sleep(0.2)

    def get(self, key):
        return self._store.get(key)

    def set(self, key, value):
        self._store.set(key, value)

    def add(self, key, value):
        return self._store.add(key, value)

    def check(self, keys):
        return self._store.check(keys)

    def compare_set(self, key, expected, desired):
        return self._store.compare_set(key, expected, desired)


class OtherBuild(FarStore):
    """The store of a rank whose build has another `fact` than the others'."""

    def __init__(self, store, fact):
        super().__init__(store)
        self._fact = f"{fact}=".encode()

    def get(self, key):
        return super().get(key).replace(self._fact, self._fact + b"other ")

    def set(self, key, value):
        super().set(key, value.replace(self._fact, self._fact + b"other "))


def no_room(limit=4096):
    """Files, those of shared memory too, cannot be longer."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def make(rank, world_size, store, host, cramped, absent, timeout, fact):
    """What the rank got. The process, and what it serves, ends right after this."""
    if rank == host:
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("port", str(served.port))
    else:
        served = dist.TCPStore("127.0.0.1", int(store.get("port")), is_master=False)
        store.set(f"connected/{rank}", "")
    store.wait([f"connected/{r}" for r in range(world_size) if r != host])
    if rank == absent:
        os._exit(9)
    if rank == cramped:
        no_room()
    mine = served if rank == host else FarStore(served)  # C++ does not keep the Python half of it
    if fact and rank == 1:
        mine = OtherBuild(served, fact)
    start = time.monotonic()
    try:
        dist.init_process_group(
            "cgx",
            store=mine,
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout),
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "made", time.monotonic() - start


def made_by(_rank, _world_size, host, env, cramped=-1, absent=-1, timeout=TIMEOUT, fact=""):
    with Ranks(3, make, host, cramped, absent, timeout, fact, env=env) as ranks:
        return ranks.outcomes(timeout=TIMEOUT + 30)


BAD = {"CGX_COMPRESSION_QUANTIZATION_BITS": "99"}
LEVEL = {"CGX_CPU_LEVEL": "sse"}


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("host", "env", "cramped", "own", "others"),
    [
        (0, [{}, {"CGX_COMPRESSION_SEED": "5"}, {}], -1, (), "seed: rank 0, 2: '0'; rank 1: '5'"),
        (0, [BAD, {}, {}], -1, (0, "ValueError", "='99'"), "rank 0 cannot take part.*BITS='99'"),
        (0, [{}, {}, BAD], -1, (2, "ValueError", "='99'"), "rank 2 cannot take part.*BITS='99'"),
        (1, [{}, BAD, {}], -1, (1, "ValueError", "='99'"), "rank 1 cannot take part.*BITS='99'"),
        (0, [{}, LEVEL, {}], -1, (1, "ValueError", "scalar"), "rank 1 cannot.*CPU_LEVEL='sse'"),
        (0, [{}, {}, {}], 0, (0, "ResourceError", "too small"), "shared memory failed on rank 0"),
    ],
    ids=["settings", "value-on-the-host", "value", "host-1", "level", "communicator"],
)
def test_all_ranks_get_the_reason_why_a_group_is_not_made(host, env, cramped, own, others):
    (outcomes,) = run_pooled(made_by, 1, host, env, cramped, backend=None, timeout=100)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, tuple), (rank, outcome)
        text, seconds = outcome
        kind, words = ("MismatchError", others)
        if own and rank == own[0]:
            kind, words = own[1:]
        elif cramped >= 0:
            kind = "ResourceError"
        assert text.startswith(kind), (rank, text)
        assert re.search(words, text), (rank, text)
        # All ranks have confirmed that they got the cause, so none waits for another.
        assert seconds < LEAVING, (rank, seconds, text)


@pytest.mark.quiet
def test_a_rank_that_never_comes_holds_nobody_longer():
    (outcomes,) = run_pooled(made_by, 1, 0, [{}] * 3, -1, 2, 1.0, backend=None, timeout=100)
    assert isinstance(outcomes[2], Lost), outcomes
    for rank in (0, 1):
        text, seconds = outcomes[rank]
        assert text.startswith(("TimeoutError", "MismatchError")), (rank, text)
        assert "rank 2" in text or "handshake/2" in text, (rank, text)
        assert seconds < 1.0 + LEAVING + SLACK, (rank, seconds, text)


@pytest.mark.quiet
@pytest.mark.parametrize("fact", ["torch_cgx version", "wire format", "codec families"])
def test_ranks_of_other_builds_get_an_error(fact):
    arguments = (0, [{}] * 3, -1, -1, TIMEOUT, fact)
    (outcomes,) = run_pooled(made_by, 1, *arguments, backend=None, timeout=100)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, tuple), (rank, outcome)
        text, _ = outcome
        assert text.startswith("MismatchError"), (rank, text)
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {fact}: ")]
        assert "rank 1: " in line and "rank 0, 2: " in line and line.count("'other ") == 1, line
