"""What benchmarks/activations.py found: its tables, and figures of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]


def activations_table(document: dict[str, Any]) -> str:
    """As Markdown: bytes and time of a step by method, then functions on their own."""
    facts, rows = document["machine"], document["rows"]
    batch = min(row["batch"] for row in rows if row["kind"] == "bytes")
    caption = (
        f"`python -m benchmarks activations`: two layers, width 768, sequence 128, batch {batch} "
        f"({text.machine(facts)}). Fewer: the bytes that plain torch keeps, divided by the bytes "
        "kept. Peak: the bytes that a step has allocated at once, gradients included, divided by "
        "plain torch's. Time: the forward and the backward pass, divided by plain torch's time; "
        f"medians of {facts['rounds']} rounds."
    )
    titles = ["model", "method", "fewer, fp32", "fewer, bf16", "peak, fp32"]
    titles += ["time, 1 thread", "time, 2 threads"]
    lines = text.head(caption, titles)
    kept = {
        (row["model"], row["method"], row["dtype"]): row
        for row in rows
        if row["kind"] == "bytes" and row["batch"] == batch
    }
    steps = {
        (row["model"], row["method"], row["threads"]): f"{row['ratio']:.2f}"
        for row in rows
        if row["kind"] == "step"
    }
    for model, method in dict.fromkeys((one[0], one[1]) for one in kept):
        cells = [
            f"{kept[model, method, dtype]['factor']:.2f}x" for dtype in ("float32", "bfloat16")
        ]
        row = kept[model, method, "float32"]
        cells += [f"{row['peak'] / row['plain_peak']:.2f}"]
        cells += [steps.get((model, method, threads), "") for threads in (1, 2)]
        lines.append(text.line(model, [method, *cells]))
    return "\n".join(lines) + "\n"


def functions_table(document: dict[str, Any]) -> str:
    """As Markdown: forward and backward pass of each function."""
    rows = [row for row in document["rows"] if row["kind"] == "function"]
    caption = (
        f"The forward and the backward pass of {text.size_text(rows[0]['bytes'])} of fp32 from "
        "memory, divided by torch's time. A step function encodes its input, while torch's keeps "
        "its result, which the next layer often keeps, too."
    )
    lines = text.head(caption, ["function", "1 thread", "2 threads"])
    for name in dict.fromkeys(row["function"] for row in rows):
        cells = [
            f"{row['ratio']:.2f}"
            for threads in (1, 2)
            for row in rows
            if row["function"] == name and row["threads"] == threads
        ]
        lines.append(text.line(name, cells))
    return "\n".join(lines) + "\n"


def kept(
    model: str, method: str, key: str, dtype: str = "float32", batch: int = 8
) -> Callable[[Results], float]:
    """A figure of a row of bytes."""
    wanted = {"kind": "bytes", "model": model, "method": method, "dtype": dtype, "batch": batch}
    return lambda results: float(_row(results, wanted)[key])


def slowest(method: str) -> Callable[[Results], float]:
    """The greatest ratio of a step, of both models and numbers of threads."""

    def figure(results: Results) -> float:
        found = [
            row["ratio"]
            for row in results.of("activations")["rows"]
            if row["kind"] == "step" and row["method"] == method
        ]
        if not found:
            raise Missing(f"no step of {method} in activations.json")
        return float(max(found))

    return figure


def function(name: str, threads: int) -> Callable[[Results], float]:
    wanted = {"kind": "function", "function": name, "threads": threads}
    return lambda results: float(_row(results, wanted)["ratio"])


def _row(results: Results, wanted: Row) -> Row:
    for row in results.of("activations")["rows"]:
        if all(row.get(key) == value for key, value in wanted.items()):
            found: Row = row
            return found
    raise Missing(f"no row {wanted} in activations.json")
