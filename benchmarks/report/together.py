"""What benchmarks/training/together.py found: rows of its runs, tables, and the picture.

benchmarks/report/activations_training.py defines harm, its interval and noise. Here they are in %
of the validation loss of exact training.
"""

from __future__ import annotations

from typing import Any

from benchmarks import _command
from benchmarks.report import activations_training as trainings
from benchmarks.report import cells as text
from benchmarks.report.activations_training import EXACT

Row = dict[str, Any]
BOTH = "both"
_WIDTH = 120  # of a line of the Monitor


def summary(runs: list[Row]) -> list[Row]:
    """A row for each method, with means over the seeds. sent_bytes: per step, of a rank;
    fewer_sent, fewer: bytes of exact training over the method's, on the wire and for backward.
    """
    rows = trainings.summary(runs)
    for row in rows:
        row["sent_bytes"] = _mean(runs, row["method"], "sent_bytes")
        row["fewer_sent"] = _mean(runs, EXACT, "sent_bytes") / row["sent_bytes"]
    return rows


def _mean(runs: list[Row], method: str, key: str) -> float:
    found = [float(run[key]) for run in runs if run["method"] == method]
    return sum(found) / len(found)


# ---- tables


def table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each method, then the lines that the Monitor wrote of both."""
    facts = document["machine"]
    caption = (
        f"`python -m benchmarks together`: the GPT on {facts['ranks']} ranks, {facts['steps']} "
        f"steps, {facts['seeds']} seeds, the same for all methods. Sent: bytes on the wire per "
        "step, of a rank; kept: bytes for backward of one step, of a rank, as `activations.memory` "
        "counts them. Worse than exact: the mean of the seeds' differences with its 95 % interval, "
        "in % of the validation loss; noise: the standard deviation of the exact seeds "
        f"({text.machine(facts)})."
    )
    titles = ["method", "val loss", "sent", "fewer", "kept", "fewer", "worse than exact", "noise"]
    lines = text.head(caption, [*titles, "worse / noise"])
    lines += [text.line(row["method"], _cells(row)) for row in document["rows"]]
    lines += [
        "",
        "What the Monitor of both wrote on rank 0, for the first seed; lines are cut:",
        "",
    ]
    lines += [f"    {_short(line)}" for line in document["monitor"]]
    return "\n".join(lines) + "\n"


def text_table(rows: list[Row]) -> str:
    """For the terminal."""
    lines = [
        f"{'method':<25} {'val loss':>8} {'sent':>9} {'fewer':>6} {'kept':>9} {'fewer':>6} "
        f"{'harm':>15} {'noise':>6} {'/ noise':>7} {'ms/step':>7}"
    ]
    for row in rows:
        loss, sent, fewer_sent, kept, fewer, harm, noise, share = _cells(row)
        lines.append(
            f"{row['method']:<25} {loss:>8} {sent:>9} {fewer_sent:>6} {kept:>9} {fewer:>6} "
            f"{harm:>15} {noise:>6} {share:>7} {1e3 * row['step_seconds']:>7.1f}"
        )
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    sent, kept = (text.size_text(round(row[key])) for key in ("sent_bytes", "kept_bytes"))
    start = [f"{row['val_loss']:.4f}", sent, f"{row['fewer_sent']:.1f}x"]
    start += [kept, f"{row['fewer']:.1f}x"]
    if row["method"] == EXACT:
        return [*start, "", f"{row['noise']:.2f}", ""]
    share = "" if row["of_noise"] is None else f"{row['of_noise']:.2f}"
    harm = f"{row['harm']:+.2f} ± {row['harm_interval']:.2f}"
    return [*start, harm, f"{row['noise']:.2f}", share]


def _short(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


# ---- the picture


def draw(runs: list[Row], rows: list[Row], file: str) -> None:
    """Losses of the seeds over exact training's, and shares of its bytes."""
    methods = [row["method"] for row in rows]
    exact = [run["val_loss"] for run in trainings.of(runs, "gpt", EXACT)]
    noise = next(row["noise"] for row in rows if row["method"] == EXACT)
    with _command.picture(file, 1, 2, figsize=(11, 3.6)) as (_, ((losses, sizes),)):
        losses.axhspan(-noise, noise, color="black", alpha=0.1)
        for place, method in enumerate(methods):
            mine = [run["val_loss"] for run in trainings.of(runs, "gpt", method)]
            over = [100 * (a / b - 1) for a, b in zip(mine, exact, strict=True)]
            losses.plot([place] * len(over), over, ".", color=f"C{place}", alpha=0.6)
            losses.plot(place, rows[place]["harm"], "_", color=f"C{place}", markersize=18)
        losses.set_xticks(range(len(methods)), [name.replace(", ", ",\n") for name in methods])
        losses.set(ylabel="% of the loss over exact", title="by seed; band: noise of exact seeds")
        for shift, key, name in ((-0.2, "fewer_sent", "sent"), (0.2, "fewer", "kept")):
            places = [place + shift for place in range(len(methods))]
            bars = sizes.bar(places, [100 / row[key] for row in rows], 0.4, label=name)
            sizes.bar_label(bars, [f"{row[key]:.1f}x" for row in rows], fontsize=8)
        sizes.set_xticks(range(len(methods)), [name.replace(", ", ",\n") for name in methods])
        sizes.set(
            ylabel="% of the bytes of exact", title="bytes of a step (fewer by)", ylim=(0, 112)
        )
        sizes.legend()
        for axis in (losses, sizes):
            axis.tick_params(axis="x", labelsize=8)
            axis.grid(alpha=0.25, axis="y")
