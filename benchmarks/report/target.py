"""What was asked of a figure, and a line of the table that says whether it is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.report.results import Missing, Results


@dataclass(frozen=True)
class Target:
    """`figure` is compared with `asked`: at least it, or at most with `at_most`. name: which row of
    the results the figure is of.
    """

    what: str
    against: str
    asked: float
    figure: Callable[[Results], float]
    at_most: bool = False
    unit: str = ""
    name: Callable[[Results], str] | None = None

    def row(self, results: Results) -> list[str]:
        """The cells of the table's line; the last one is the SIMD level of the machine."""
        asked = f"{'<=' if self.at_most else '>='} {self.asked:g}{self.unit}"
        results = results.unread()
        try:
            figure = self.figure(results)
        except Missing as why:
            return [self.what, self.against, asked, f"not measured: {why}", "", ""]
        # As it is shown: 0.951 of 0.95 must not look met at "0.95" and fail, nor the other way.
        shown = float(f"{figure:.3g}") + 0.0  # no -0
        met = shown <= self.asked if self.at_most else shown >= self.asked
        said = "yes" if met else "**no**"
        measured = f"{shown:g}{self.unit}" + (f" ({self.name(results)})" if self.name else "")
        return [self.what, self.against, asked, measured, said, results.simd()]
