"""What benchmarks/projections.py found: its tables, its picture, and figures of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import _command
from benchmarks.report import cells
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]


def _of(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def text(rows: list[Row]) -> str:
    """For the terminal."""
    lines = ["bytes for backward: saved, and by all of a step"]
    for row in _of(rows, kind="bytes"):
        lines.append(f"{row['method']:<26} {row['saving']:>6.1%} {row['saving_of_step']:>6.1%}")
    lines.append("a layer, forward and backward, plain torch = 1")
    for row in _of(rows, kind="layer"):
        lines.append(
            f"{row['threads']} threads {row['method']:<11} {row['by']:<9} {row['keep']:<4} "
            f"{row['ratio']:.3f} ({row['ratio_q1']:.3f} - {row['ratio_q3']:.3f})"
        )
    lines.append("a step of the encoder, plain torch = 1")
    for row in _of(rows, kind="step"):
        lines.append(
            f"{row['threads']} threads {row['method']:<24} {row['ratio']:.3f} "
            f"({row['ratio_q1']:.3f} - {row['ratio_q3']:.3f}) of "
            f"{row['plain_seconds'] * 1e3:.0f} ms"
        )
    lines.append("squared error of the gradient, uniform rows = 1")
    for row in _of(rows, kind="variance"):
        lines.append(f"{row['layer']:<24} {row['method']:<11} {row['by_rows']:.3f}")
    return "\n".join(lines)


def projections_table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each method and part of the batch, then the bytes."""
    facts, rows = document["machine"], document["rows"]
    caption = (
        f"`python -m benchmarks projections` ({cells.machine(facts)}). Layer: forward and backward "
        "pass of a linear layer, 1024 rows, 768 to 3072 features; step: of two layers of BERT's "
        f"form, batch 8; both by plain torch's time, medians of {facts['rounds']} rounds. Squared "
        "error: of a gradient from a fifth of the rows, by that of uniform rows, on activations of "
        f"a GPT that was trained for some steps, {facts['draws']} draws."
    )
    titles = ["method", "part", "layer, 1 thread", "layer, 2 threads"]
    titles += ["step, 1 thread", "step, 2 threads", "squared error"]
    lines = cells.head(caption, titles)
    for row in _of(rows, kind="layer", threads=1, by="batch"):
        method, part = row["method"], row["keep"]
        line = [f"{part:g}"]
        for threads in (1, 2):
            line += _ratios(_of(rows, kind="layer", by="batch", **_key(row), threads=threads))
        for threads in (1, 2):
            line += _ratios(_of(rows, kind="step", method=f"{method} {part}", threads=threads))
        found = _of(rows, kind="variance", layer="all", method=method, keep=part)
        line.append(f"{found[0]['by_rows']:.2f}" if found else "")
        lines.append(cells.line(method, line))
    return "\n".join(lines) + "\n"


def _key(row: Row) -> Row:
    return {"method": row["method"], "keep": row["keep"]}


def _ratios(rows: list[Row]) -> list[str]:
    return [f"{rows[0]['ratio']:.2f}" if rows else ""]


_README = {"3-bit GELU": 13.8, "linear 0.2": 18.6, "3-bit GELU, linear 0.2": 32.7}


def bytes_table(document: dict[str, Any]) -> str:
    """As Markdown: FewBit's README beside ours."""
    rows = _of(document["rows"], kind="bytes")
    caption = (
        "RoBERTa-base, batch 128, sequence 128, fp32, by arithmetic on twelve layers of its form, "
        "with masks of a byte a value. Of the step: with weights, gradients and AdamW's state. "
        "FewBit: the peak that its README gives for MRPC."
    )
    lines = cells.head(caption, ["method", "less for backward", "less of the step", "FewBit"])
    for row in rows:
        line = [f"{100 * row['saving']:.1f} %", f"{100 * row['saving_of_step']:.1f} %"]
        lines.append(cells.line(row["method"], [*line, f"{_README[row['method']]} %"]))
    return "\n".join(lines) + "\n"


def saving(method: str) -> Callable[[Results], float]:
    """Of a whole step, in %."""
    return lambda results: 100 * float(_row(results, kind="bytes", method=method)["saving_of_step"])


def step(method: str) -> Callable[[Results], float]:
    """The larger ratio of one and two threads."""

    def figure(results: Results) -> float:
        found = _of(results.of("projections")["rows"], kind="step", method=method)
        if not found:
            raise Missing(f"no step of {method} in projections.json")
        return float(max(row["ratio"] for row in found))

    return figure


def squared_error(method: str, by: str) -> Callable[[Results], float]:
    """Of wta's kind of rows by another method's, over all layers."""

    def figure(results: Results) -> float:
        one, other = (
            _row(results, kind="variance", layer="all", method=name)["by_rows"]
            for name in (method, by)
        )
        return float(one / other)

    return figure


def _row(results: Results, **wanted: Any) -> Row:
    found = _of(results.of("projections")["rows"], **wanted)
    if not found:
        raise Missing(f"no row {wanted} in projections.json")
    return found[0]


def draw(rows: list[Row], file: str) -> None:
    """Time of a layer, and the squared error, by method."""
    with _command.picture(file, 1, 2, figsize=(11, 4)) as (_, axes):
        for number, part in enumerate((0.5, 0.2, 0.1)):
            some = _of(rows, kind="layer", threads=1, by="batch", keep=part)
            places = [place + 0.25 * number for place in range(len(some))]
            ratios = [row["ratio"] for row in some]
            axes[0][0].bar(places, ratios, width=0.25, label=f"keeps {part:g}")
        names = [row["method"] for row in some]
        axes[0][0].set_xticks([place + 0.25 for place in range(len(names))], names)
        axes[0][0].axhline(1, color="black", linewidth=0.8)
        axes[0][0].set(ylabel="time of a linear layer, torch's = 1")
        axes[0][0].legend()
        found = _of(rows, kind="variance", layer="all")
        axes[0][1].bar([row["method"] for row in found], [row["by_rows"] for row in found])
        axes[0][1].axhline(1, color="black", linewidth=0.8)
        axes[0][1].set(ylabel="squared error of the gradient, uniform rows = 1")
