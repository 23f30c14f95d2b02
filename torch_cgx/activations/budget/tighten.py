"""The choice with the least error among those that are measured to keep a limit of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_cgx.activations.budget.solve import Choice

_TRIES = 4
_NEAR = 0.01  # below the limit: as near to it as is tried


@dataclass(frozen=True)
class Tried:
    """took: the measured time of a step, relative to an exact one."""

    choice: Choice
    nbytes: int
    took: float


def tightened(
    first: Tried, limit: float, allowed: float, again: Callable[[float], Tried | None]
) -> Tried:
    """`first` if it kept the limit, or what was tried in its place: of all that kept the limit the
    one with the least error, otherwise the fastest.

    As long as none keeps the limit, what a choice may take by prediction falls in proportion to
    what the last one took; then it is halfway between one that kept the limit and one that did not.

    allowed: what `first` may take by prediction, beyond the rest of the step. again(allowed): a
    choice that is predicted to take less; None: nothing meets the budget then.
    """
    best = last = first
    rest = limit - allowed
    kept, exceeded = None, allowed
    for _ in range(_TRIES):
        if best.took <= limit and (best is first or best.took >= limit - _NEAR):
            break
        if kept is not None:
            now = (kept + exceeded) / 2
        elif last.choice.time > 0:
            now = allowed * last.choice.time / (last.took - rest)
        else:
            now = last.choice.time - (last.took - limit)
        found = again(now)
        if found is None or found.choice.options == last.choice.options:
            break
        if found.took <= limit:
            kept = now
            if best.took > limit or found.choice.error < best.choice.error:
                best = found
        else:
            exceeded = now
            if found.took < best.took:
                best = found
        last = found
    return best
