"""Every collective and message: a rank that is killed or stopped at any moment of a loop of calls.
`python -m tests.stress.kills` does hundreds of these experiments.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.distributed import run_pooled
from tests.faults import killing
from tests.faults.killing import Kill

SHORT = (4, 4 << 10)
LONG = (8 << 20, 16 << 20)
# A message between two ranks that live is theirs alone, and a rank that has given its values to the
# root has done its part (docs/reliability.md).
THEIR_OWN = ("send_recv", "batch", "any_source", "gather", "reduce")
EXPERIMENTS = {
    "shm": [("shm", SHORT), ("shm 4", LONG)],
    "gloo": [("gloo", (*SHORT, *LONG))],
    "hosts": [("hosts ab", SHORT), ("hosts aabb", LONG)],
}


def draw(name: str, calls: list[str], stop: bool = False) -> list[Kill]:
    """One of each call and entry. The same in each run of CI; else others each time."""
    rng = random.Random(1 if os.environ.get("CI") else None)
    found = []
    for layout, sizes in EXPERIMENTS[name]:
        for call in calls:
            nbytes = rng.choice(sizes)
            kill = killing.draw(rng, call, layout, nbytes)
            kill.stop = stop
            kill.restart = kill.restart and not stop
            found.append(kill)
    return found


def experiments(_rank: int, _size: int, kills: list[Kill]) -> tuple[float, list[str]]:
    worst, wrong = 0.0, []
    for kill in kills:
        print(kill, flush=True)  # what a failure needs
        seconds, found = killing.run(kill)
        worst = max(worst, seconds)
        wrong += found
        if len(wrong) > 5:
            break
    return worst, wrong


def check(name: str, kills: list[Kill]) -> None:
    ((worst, wrong),) = run_pooled(experiments, 1, kills, backend=None, timeout=170)
    print(f"{name}: {len(kills)} experiments, the last error after {worst:.2f} s at most")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_rank_killed_at_any_moment(name: str) -> None:
    check(name, draw(name, list(killing.CALLS)))


@pytest.mark.slow
def test_a_rank_killed_while_others_wait_for_one_that_lives() -> None:
    rng = random.Random(1 if os.environ.get("CI") else None)
    calls = [call for call in killing.CALLS if call not in THEIR_OWN]
    check("absent", [killing.draw(rng, c, "shm 4", rng.choice(SHORT), True) for c in calls])


@pytest.mark.slow
def test_a_rank_stopped_at_any_moment_is_an_error_at_the_deadline() -> None:
    calls = ["all_gather_single", "all_reduce_sum", "send_recv"]
    check("stopped", [*draw("shm", calls, True)[:3], *draw("hosts", calls, True)[:3]])
