"""What benchmarks/training/activations.py found: rows of its runs, tables, and the picture.

Harm is the mean over the seeds of how much worse a method is than exact training of the same seed
and task: points of accuracy where there is one, else % of the validation loss. Noise is the
standard deviation of the exact runs' seeds, in the same unit (as in benchmarks/report/accuracy.py).
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks import _command
from benchmarks.report import cells as text

Row = dict[str, Any]
EXACT = "exact"
# Student's t of 97.5 %, by degrees of freedom from 1 on; more are taken as the last.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def summary(runs: list[Row]) -> list[Row]:
    """A row for each task and method, with means over the seeds. fewer: bytes of exact training
    over the method's. harm_interval: half of the 95 % interval of the harm. of_noise: the harm's
    size over the noise, None without any noise.
    """
    rows = []
    for task, method in dict.fromkeys((run["task"], run["method"]) for run in runs):
        mine, exact = of(runs, task, method), of(runs, task, EXACT)
        harms = [_harm(a, b) for a, b in zip(mine, exact, strict=True)]
        harm, noise = statistics.fmean(harms), _noise(exact)
        row: Row = {"task": task, "method": method, "seeds": len(mine)}
        row |= {key: _mean(mine, key) for key in ("val_loss", "accuracy")}
        row |= {key: _mean(mine, key) for key in ("step_seconds", "kept_bytes", "trained")}
        row["fewer"] = _mean(exact, "kept_bytes") / row["kept_bytes"]
        row |= {"harm": harm, "harm_interval": _interval(harms)}
        row |= {"noise": noise, "of_noise": abs(harm) / noise if noise else None}
        rows.append(row)
    return rows


def of(runs: list[Row], task: str, method: str) -> list[Row]:
    """The runs of a task and a method, by seed."""
    found = [run for run in runs if (run["task"], run["method"]) == (task, method)]
    return sorted(found, key=lambda run: int(run["seed"]))


def _mean(runs: list[Row], key: str) -> Any:
    """None where the task has no such number."""
    return None if runs[0][key] is None else statistics.fmean(run[key] for run in runs)


def _harm(run: Row, exact: Row) -> float:
    if run["accuracy"] is not None:
        return float(100 * (exact["accuracy"] - run["accuracy"]))
    return float(100 * (run["val_loss"] / exact["val_loss"] - 1))


def _noise(exact: list[Row]) -> float:
    if exact[0]["accuracy"] is not None:
        return statistics.stdev(100 * run["accuracy"] for run in exact)
    losses = [run["val_loss"] for run in exact]
    return 100 * statistics.stdev(losses) / statistics.fmean(losses)


def _interval(values: list[float]) -> float:
    t = _T[min(len(values) - 1, len(_T)) - 1]
    return t * statistics.stdev(values) / math.sqrt(len(values))


# ---- tables


def training_table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each task and method."""
    titles = ["task", "method", "val loss", "accuracy", "kept", "fewer", "worse than exact"]
    lines = text.head(_caption(document), [*titles, "noise", "worse / noise"])
    for row in document["rows"]:
        lines.append(text.line(row["task"], [row["method"], *_cells(row)]))
    return "\n".join(lines) + "\n"


def _caption(document: dict[str, Any]) -> str:
    facts, name = document["machine"], document.get("benchmark", "activations-training")
    start = (
        f"`python -m benchmarks {name}`: {facts['seeds']} seeds, the same for all methods; "
        f"{facts['steps']} steps of the GPT, {facts['digits']} of digits"
    )
    if name == "projections-training":
        return (
            f"{start}. Keep: the part of their input that all linear layers keep, with and without "
            "4 bits for all saved tensors. Kept, worse than exact and noise are as in the table of "
            f"[few-bit functions](#few-bit-activation-functions) ({text.machine(facts)})."
        )
    return (
        f"{start}, {facts['tuning']} of tuning. Rounding is stochastic unless said otherwise; the "
        "loss is kept in 8 bits, except with `loss too`. Kept: bytes for backward, of one step. "
        "Worse than exact: the mean of the seeds' differences with its 95 % interval, in % of the "
        "validation loss, for digits in points of accuracy; noise: the standard deviation of the "
        f"exact seeds ({text.machine(facts)})."
    )


def text_table(rows: list[Row]) -> str:
    """For the terminal."""
    lines = [
        f"{'task':<23} {'method':<16} {'val loss':>8} {'accuracy':>8} {'kept':>9} {'fewer':>6} "
        f"{'harm':>18} {'noise':>6} {'/ noise':>7} {'ms/step':>7}"
    ]
    for row in rows:
        loss, accuracy, kept, fewer, harm, noise, share = _cells(row)
        lines.append(
            f"{row['task']:<23} {row['method']:<16} {loss:>8} {accuracy:>8} {kept:>9} {fewer:>6} "
            f"{harm:>18} {noise:>6} {share:>7} {1e3 * row['step_seconds']:>7.1f}"
        )
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
    kept = text.size_text(round(row["kept_bytes"]))
    start = [f"{row['val_loss']:.4f}", accuracy, kept, f"{row['fewer']:.1f}x"]
    if row["method"] == EXACT:
        return [*start, "", f"{row['noise']:.2f}", ""]
    share = "" if row["of_noise"] is None else f"{row['of_noise']:.2f}"
    harm = f"{row['harm']:+.2f} ± {row['harm_interval']:.2f}"
    return [*start, harm, f"{row['noise']:.2f}", share]


# ---- the picture


def draw(runs: list[Row], rows: list[Row], file: str) -> None:
    """Loss against bytes: a dot for each seed, a bar at the mean, a band of exact seeds."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colors = {method: f"C{number}" for number, method in enumerate(methods)} | {EXACT: "black"}
    with _command.picture(file, 1, 2, figsize=(11, 4.6)) as (_, axes):
        for axis, task in zip(axes[0], ("gpt", "digits"), strict=True):
            losses = [run["val_loss"] for run in of(runs, task, EXACT)]
            axis.axhspan(min(losses), max(losses), color="black", alpha=0.1)
            for row in (row for row in rows if row["task"] == task):
                mine, color = of(runs, task, row["method"]), colors[row["method"]]
                sizes = [run["kept_bytes"] / 2**20 for run in mine]
                axis.plot(sizes, [run["val_loss"] for run in mine], ".", color=color, alpha=0.5)
                bar = {"markersize": 16, "markeredgewidth": 2, "label": row["method"]}
                mean = [row["kept_bytes"] / 2**20], [row["val_loss"]]
                axis.plot(*mean, "_", color=color, **bar)
            axis.set(title=task, xscale="log", xlabel="MiB kept for backward of one step")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_minor_formatter(lambda *_: "")
            axis.grid(alpha=0.25, which="both")
        axes[0][0].set(ylabel="validation loss (band: seeds of exact training)")
        axes[0][0].legend(fontsize=8)
