"""Stress: jobs of 2 to 6 ranks with random groups, collectives, faults and restarts on this host.

    python -m tests.stress --minutes 30 [--seed 1] [--lanes 2] [--episode 17]

Every result is checked on every rank, every error must have a cause that was injected and come in
time, and at the end nothing may be left. Status 1 after any violation; what it prints replays it:
the program of an episode depends on seed and number only, the moments of signals do not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy is imported: ranks are forked from a single thread


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="default: random")
    parser.add_argument("--lanes", type=int, default=4, help="jobs at once")
    parser.add_argument("--episode", type=int, action="append", help="only this one")
    parser.add_argument("--episodes", type=int, default=1 << 60, help="at most so many")
    parser.add_argument("--no-leaks", action="store_true", help="without the counts of leaks.py")
    parser.add_argument("--verbose", action="store_true", help="a line for each episode")
    parser.add_argument("--sabotage", default="", help=argparse.SUPPRESS)  # tests of this program
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)

    import torch_cgx  # noqa: F401  before the first fork
    from tests import warm
    from tests.stress import driver, leaks

    before = (_descriptors(), _threads(), set(os.listdir("/dev/shm")))
    plan = driver.Plan(
        seed=seed,
        seconds=60 * given.minutes,
        lanes=1 if given.episode else given.lanes,
        episodes=tuple(given.episode or ()),
        sabotage=given.sabotage,
        verbose=given.verbose,
        most=given.episodes,
    )
    run = driver.Driver(plan)
    totals = run.run()
    after = (_descriptors(), _threads())
    if after != before[:2]:
        totals.violations.append(f"descriptors and threads: {before[:2]} before, {after} after")
    found: dict[str, object] = {}
    if not given.no_leaks and not given.episode:
        found, complaints = leaks.measure(full=given.minutes >= 10)
        totals.violations += complaints
    warm.close()
    # Files of others come and go as they like.
    blocks = [n for n in set(os.listdir("/dev/shm")) - before[2] if n.startswith("cgx-")]
    mine = driver.shared_memory(run.pids)
    if mine:
        totals.violations.append(f"left in /dev/shm: {mine}")
    if _children():
        totals.violations.append(f"processes that are still there: {_children()}")
    summary = {
        "seed": seed,
        "episodes": dict(totals.episodes),
        **dict(totals.counts),
        "errors by kind": dict(totals.errors),
        "worst seconds, episode": {
            what: [round(seconds, 3), episode]
            for what, (seconds, episode) in sorted(totals.worst.items())
        },
        "this program, late by at most": round(totals.lag, 3),
        "largest rank, MiB": round(totals.rss_mb),
        "shared blocks of anybody": len(blocks),
        "leaks": found,
        "violations": len(totals.violations),
    }
    print(json.dumps(summary, indent=2))
    if totals.violations:
        print(f"FAILED with seed {seed}: {len(totals.violations)} violations", file=sys.stderr)
        for text in totals.violations:
            print(text.splitlines()[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
