"""When has something become slower? Compares ratios, not times: those of one run, against a peer or
a roof measured in it, hardly depend on how busy the machine is. Higher is better in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TOLERANCE = 0.2
REPEATS = 3

Ratios = dict[str, float]


@dataclass(frozen=True)
class Loss:
    """A row that stayed below the baseline. best: the highest ratio seen; None: not measured."""

    name: str
    baseline: float
    best: float | None

    def __str__(self) -> str:
        if self.best is None:
            return f"{self.name}: {self.baseline:.3f} in the baseline, not measured now"
        lost = 1 - self.best / self.baseline
        return f"{self.name}: {self.best:.3f}, was {self.baseline:.3f} ({100 * lost:.0f} % less)"


def compare(
    baseline: Ratios,
    measure: Callable[[set[str]], Ratios],
    tolerance: float = TOLERANCE,
    repeats: int = REPEATS,
) -> list[Loss]:
    """Rows of `baseline` that are lost: more than `tolerance` below it each time. A row that is, is
    measured up to `repeats` times more, since noise comes and goes and a loss stays.

    measure: takes the names of rows that are wanted, gives at least those of them that can be
    measured.
    """
    best: Ratios = {}
    wanted = set(baseline)
    for _ in range(1 + repeats):
        for name, ratio in measure(wanted).items():
            if name in wanted:
                best[name] = max(ratio, best.get(name, 0.0))
        wanted = {
            name
            for name in wanted
            # Not "<": a ratio that is no number is lost, too.
            if not best.get(name, 0.0) >= (1 - tolerance) * baseline[name]
        }
        if not wanted:
            break
    return [Loss(name, baseline[name], best.get(name)) for name in baseline if name in wanted]
