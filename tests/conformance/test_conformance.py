"""Every operation of torch.distributed, with every type and size, over every communicator, against
NumPy: results to the bit, inputs and the memory beside the tensors as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

import torch_cgx
from tests.conformance import sweeps
from tests.conformance.catalogue import CATALOGUE, Case, Place, start
from tests.conformance.values import MOVED
from tests.distributed import run_pooled

# Hosts of the ranks, how they communicate inside a host, and the number of levels.
GROUPS = {
    "shm, 2 ranks": ("aa", "SHM", 1),
    "shm, 3 ranks": ("aaa", "SHM", 1),
    "gloo, 3 ranks": ("aaa", "GLOO", 1),
    "2 hosts": ("ab", "SHM", 1),
    "2 hosts, 1 + 2 ranks": ("abb", "SHM", 2),
    "2 hosts, 2 + 2 ranks": ("aabb", "SHM", 2),
    "shm, 4 ranks": ("aaaa", "SHM", 1),
}
IN_FLIGHT = (1, 8, 3, 16)  # cases that are started before the first of them is waited for
_SHOWN = 20


def run(cases: Iterable[Case], place: Place) -> tuple[int, list[str]]:
    """Runs the cases; how many, and what was wrong. Ends at an error that breaks the group."""
    wrong: list[str] = []
    done = 0
    left = iter(cases)
    for window in itertools.cycle(IN_FLIGHT):
        some = list(itertools.islice(left, window))
        if not some:
            return done, wrong
        started = []
        for case in some:
            try:
                started.append((case, start(case, place)))
            except torch_cgx.CgxError as error:
                return done, [*wrong, f"{case}: {error}"]
            except Exception as error:  # refused, on all ranks
                wrong.append(f"{case}: {type(error).__name__}: {error}")
        for case, one in started:
            try:
                one.wait()
            except Exception as error:
                return done, [*wrong, f"{case}: {type(error).__name__}: {error}"]
            done += 1
            if text := one.complaint():
                wrong.append(f"{case}: {text}")
        if len(wrong) >= _SHOWN:
            return done, wrong
    raise AssertionError


def borders_of(turn: int) -> range:
    """All groups together get all borders; the last two, of four ranks, one each."""
    each = [2, 2, 2, 2, 2, 1, 1]
    return range(sum(each[:turn]), sum(each[: turn + 1]))


def job(rank: int, size: int, turn: int, levels: int) -> tuple[int, list[str]]:
    place = Place.of()
    cases = itertools.chain(
        sweeps.small(turn, size, levels, every=1 if turn == 0 else 16),
        sweeps.borders(turn, size, levels, borders_of(turn)),
        sweeps.long(turn, size, levels),
    )
    return run(cases, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_every_operation_type_and_size(name: str) -> None:
    hosts, communicator, levels = GROUPS[name]
    env = [{"CGX_HOST_ID": host, "CGX_INNER_COMMUNICATOR_TYPE": communicator} for host in hosts]
    turn = list(GROUPS).index(name)
    results = run_pooled(job, len(hosts), turn, levels, env=env, timeout=120)
    wrong = [f"rank {rank}: {text}" for rank, (_, found) in enumerate(results) for text in found]
    assert not wrong, "\n".join(wrong[:_SHOWN])
    assert min(done for done, _ in results) > 500, results


def test_every_kind_is_drawn() -> None:
    kinds = sweeps.kinds()
    assert {op for op, *_ in kinds} == set(CATALOGUE) - set(sweeps.SIZELESS)
    assert {dtype for _, _, dtype, _ in kinds} == set(MOVED)
    chosen = [k for turn in range(len(GROUPS)) for k in borders_of(turn)]
    assert chosen == list(range(len(sweeps.BORDERS)))
