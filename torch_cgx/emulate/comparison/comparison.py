"""The result of `compare`: rows, a table, files and a picture."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from typing import Any

from torch_cgx.cli.output import table as aligned
from torch_cgx.emulate.comparison.recipes import REFERENCE
from torch_cgx.emulate.comparison.student import interval

COLUMNS = (
    "recipe",
    "seeds",
    "diverged",
    "loss",
    "difference",
    "interval",
    "accuracy",
    "accuracy_difference",
    "accuracy_interval",
    "bits",
    "time",
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found. settings: of the trainings. runs: a dict for each, see `run.train`,
    with "recipe" and "seed"; in the order of recipes, then seeds.
    """

    settings: dict[str, Any]
    runs: list[dict[str, Any]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each recipe, by COLUMNS. diverged: of the seeds. loss: of the validation, the
        mean of the others, or None. difference: to float32, the mean over seeds; interval: half of
        its 95 % interval (Student's t); both None where a seed diverged, interval also of a single
        seed. accuracy: 0 to 1, None where the task has none. bits: of a value that is cast. time:
        of a step over float32's, the median over seeds; it varies from run to run.
        """
        by_name: dict[str, list[dict[str, Any]]] = {}
        for run in self.runs:
            by_name.setdefault(run["recipe"], []).append(run)
        exact = {run["seed"]: run for run in by_name[REFERENCE]}
        return [_row(name, runs, exact) for name, runs in by_name.items()]

    def table(self) -> str:
        """As text."""
        given, rows = self.settings, self.rows
        has_accuracy = any(row["accuracy"] is not None for row in rows)
        head = ["recipe", "loss", f"to {REFERENCE}", "+-"]
        head += ["accuracy", "to fp32", "+-"] if has_accuracy else []
        lines = [_cells(row, has_accuracy) for row in rows]
        words = [
            _counted(len({run["seed"] for run in self.runs}), "seed"),
            f"{_counted(given['steps'], 'step')} of {_counted(given['batch'], 'sample')}",
            _counted(given["ranks"], "rank") if given["ranks"] > 1 else "",
            _counted(given["emulate_node"], "node") if given["emulate_node"] != 1 else "",
            f"torch {given['torch']}",
            _counted(given["threads"], "thread"),
        ]
        return "\n".join(
            [
                f"{given['model']}: {', '.join(filter(None, words))}",
                "",
                aligned([*head, "bits", "time"], lines),
                "",
                "loss: of the validation, mean of the seeds. to fp32: mean of the seeds' "
                "differences, +- its\n95 % interval (Student's t). bits: of a value that is cast. "
                "time: of a step, over fp32's.",
            ]
        )

    def __str__(self) -> str:
        return self.table()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows, with a line of names; None is empty. OSError: as of `open`."""
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)

    def to_json(self) -> str:
        """Settings, rows and runs, with their curves."""
        found = {"settings": self.settings, "rows": self.rows, "runs": self.runs}
        return json.dumps(found, indent=1)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the curves of the losses and the differences to float32, in the format of the
        path's suffix. ImportError: matplotlib is missing. OSError, ValueError: as of `savefig`.
        """
        from torch_cgx.emulate.comparison.picture import plot

        plot(path, self)


def _row(
    name: str, runs: Sequence[dict[str, Any]], exact: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    pairs = [(run, exact[run["seed"]]) for run in runs]
    kept = [run for run in runs if run["diverged"] is None]
    paired = all(one["diverged"] is None for pair in pairs for one in pair)
    row: dict[str, Any] = {"recipe": name, "seeds": len(runs), "diverged": len(runs) - len(kept)}
    for key, of in (("loss", ""), ("accuracy", "accuracy_")):
        values = [run[key] for run in kept if run[key] is not None]
        row[key] = statistics.fmean(values) if values else None
        compared = paired and values and name != REFERENCE
        differences = [a[key] - b[key] for a, b in pairs] if compared else []
        row[f"{of}difference"] = statistics.fmean(differences) if differences else None
        row[f"{of}interval"] = interval(differences)
    row["bits"] = statistics.fmean(run["bits"] for run in runs)
    row["time"] = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
    return {column: row[column] for column in COLUMNS}


def _counted(number: int | str, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cells(row: dict[str, Any], has_accuracy: bool) -> list[str]:
    def number(key: str, form: str, factor: float = 1.0) -> str:
        return "" if row[key] is None else format(factor * row[key], form)

    cells = [row["recipe"], number("loss", ".4f")]
    if row["diverged"]:
        cells += [f"{row['diverged']} of {row['seeds']} diverged", ""]
    else:
        cells += [number("difference", "+.4f"), number("interval", ".4f")]
    if has_accuracy:
        percent = [number("accuracy", ".2f", 100), number("accuracy_difference", "+.2f", 100)]
        cells += [*(f"{one} %" if one else "" for one in percent)]
        cells += [number("accuracy_interval", ".2f", 100)]
    return [*cells, number("bits", ".4g"), f"{row['time']:.2f}x"]
