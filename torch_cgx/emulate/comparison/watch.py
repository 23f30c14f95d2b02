"""How a comparison shows that it goes on: a bar on a terminal, else a line for each training."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from torch_cgx._warnings import say
from torch_cgx.cli.output import on_terminal, progress, time_text


class Watch:
    """runs: trainings that are left; steps: of each. show: whether anything is shown."""

    def __init__(self, runs: int, steps: int, show: bool):
        self._runs, self._steps, self._lines = runs, steps, show and runs and not on_terminal()
        self._bar = progress(runs * steps, "cgx emulate", show and runs > 0)
        self._name, self._seed, self._done, self._made = "", 0, 0, 0
        self._begin = time.monotonic()

    def begin(self, recipe: str, seed: int) -> None:
        """Of a training."""
        self._name, self._seed, self._made = recipe, seed, 0
        self._begin = time.monotonic()
        self._bar.set_postfix_str(f"seed {seed}, {recipe}")

    def step(self) -> None:
        self._made += 1
        self._bar.update()

    def end(self, result: dict[str, Any]) -> None:
        """A training that diverged has fewer steps."""
        self._done += 1
        self._bar.update(self._steps - self._made)
        if self._lines:
            how = "diverged" if result["loss"] is None else f"loss {result['loss']:.4f}"
            spent = time_text(time.monotonic() - self._begin)
            text = f"seed {self._seed}, {self._name}: {how} ({spent}; {self._done} of {self._runs})"
            say(text)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
