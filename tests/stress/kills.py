"""Kills at any moment of a call: collectives and messages of all lengths, on all communicators.

    python -m tests.stress.kills --count 500 [--minutes 30] [--seed 1] [--number 17] [--lanes 2]

All other ranks must get a PeerLostError in time; in half of the experiments they make a new group,
which has to work. Status 1 after any violation. `--seed S --number N` repeats an experiment, except
for the exact moment of the signal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence

from tests.distributed import RankPool
from tests.faults import killing

SHORT = (1, 4, 4 << 10, 64 << 10)
LONG = (1 << 20, 8 << 20, 16 << 20, 64 << 20)
# Lanes and other programs share the cores: woken ranks wait for a turn.
SLACK = 2.0

# The experiment, seconds from the death to the last error, and what was wrong.
Found = tuple[str, str, float, list[str]]


def draw(seed: int, number: int) -> killing.Kill:
    """Experiment `number`."""
    rng = random.Random(f"{seed}/{number}")
    call = rng.choice(list(killing.CALLS))
    layout = rng.choice(list(killing.LAYOUTS))
    return killing.draw(rng, call, layout, rng.choice(SHORT if rng.random() < 0.5 else LONG))


def lane(
    _rank: int, _size: int, seed: int, numbers: Sequence[int], seconds: float, slack: float
) -> list[Found]:
    """Runs the experiments one after another; in a process that forks."""
    killing.set_slack(slack)
    began = time.monotonic()
    found = []
    for number in numbers:
        if time.monotonic() - began > seconds:
            break
        kill = draw(seed, number)
        try:
            worst, wrong = killing.run(kill)
        except Exception as error:
            worst, wrong = 0.0, [f"{kill}: {error!r}"]
        found.append((f"{number}: {kill}", kill.layout, worst, wrong))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30.0, help="at most")
    parser.add_argument("--seed", type=int, default=None, help="default: random")
    parser.add_argument("--number", type=int, action="append", help="only this one")
    parser.add_argument("--lanes", type=int, default=2, help="experiments at once")
    parser.add_argument("--slack", type=float, default=SLACK, help="seconds of a busy machine")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    numbers = given.number or list(range(given.count))
    from tests.stress import kills  # under the name that its processes can import

    pool = RankPool()
    try:
        results = pool.run(
            kills.lanes, given.lanes, seed, numbers, 60 * given.minutes, given.slack,
            backend=None, timeout=60 * given.minutes + 120,
        )  # fmt: skip
    finally:
        pool.close()
    found = [one for some in results for one in some]
    worst: dict[str, float] = {}
    for _, layout, seconds, _ in found:
        worst[layout] = round(max(worst.get(layout, 0.0), seconds), 3)
    violations = [(name, text) for name, _, _, wrong in found for text in wrong]
    print(
        json.dumps(
            {
                "seed": seed,
                "kills": len(found),
                "worst seconds": dict(sorted(worst.items())),
                "violations": len(violations),
            },
            indent=2,
        )
    )
    for name, text in violations:
        number = name.partition(":")[0]
        print(f"VIOLATION in kill {number}; again with: python -m tests.stress.kills --seed {seed} "
              f"--number {number}\n  {text}", flush=True)  # fmt: skip
    return 1 if violations else 0


def lanes(
    rank: int, size: int, seed: int, numbers: Sequence[int], seconds: float, slack: float
) -> list[Found]:
    return lane(rank, size, seed, numbers[rank::size], seconds, slack)


if __name__ == "__main__":
    sys.exit(main())
