"""Trains an example with several seeds, exact and at fewer bits, and prints the means.

python examples/compare.py                                   # digits, 3 seeds, 4 bits
python examples/compare.py --example gpt --bits 4 8 --json gpt.json
python examples/compare.py --codecs maxmin rotated --bits 1 2 4 --error-feedback off on --plot p.png

Every combination of codec, bits and error feedback is trained with every seed; a codec is left out
at bits that it does not take. Differences to the exact runs are taken seed by seed, and shown with
their 95 % interval (Student's t). With --json the runs that the file holds already are kept, and
its rows cover all of them: a second call with more seeds adds to the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from common import write_json
from launch import RunFailed, run_example

SCRIPTS = {"digits": "train_digits.py", "gpt": "train_gpt.py", "cifar": "cifar_train.py"}
MOST_BITS = {"maxmin": 8, "rotated": 8, "trellis": 4}
LINK = 200e6  # bits per second of the link for which the time of a step is computed
# Student's t of 97.5 %, by degrees of freedom from 1 on; more are taken as the last.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_EACH = 10  # steps whose losses a stored run averages
_NOT_KEPT = ("loss", "machine", "cgx_stats", "weights_sha256")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is trained. bits: 32 over gloo is exact; average: of AdaptiveBits, in place of bits."""

    codec: str = ""
    bits: float = 32
    feedback: bool = False
    average: bool = False

    @property
    def arguments(self) -> list[str]:
        if not self.codec:
            return ["--backend", "gloo"]
        width = "--average-bits" if self.average else "--bits"
        found = ["--backend", "cgx", "--codec", self.codec, width, f"{self.bits:g}"]
        return found + ["--error-feedback"] * self.feedback

    @property
    def series(self) -> str:
        """What the variants of one line of a picture share."""
        if not self.codec:
            return "exact"
        words = [self.codec, "adaptive" * self.average, "error feedback" * self.feedback]
        return ", ".join(filter(None, words))


def diverges(codec: str, bits: float) -> bool:
    """Whether residuals grow without bound: error feedback refuses it."""
    return codec == "maxmin" and bits == 1


def variants(args: argparse.Namespace) -> list[Variant]:
    """The exact one first."""
    found = [Variant()]
    for feedback in args.error_feedback:
        for codec in args.codecs:
            for average, widths in ((False, args.bits), (True, args.average_bits)):
                found += [
                    Variant(codec, bits, feedback == "on", average)
                    for bits in widths
                    if bits <= MOST_BITS[codec] and not (feedback == "on" and diverges(codec, bits))
                ]
    return found


def interval(values: list[float]) -> float | None:
    """Half of the 95 % interval of the mean."""
    if len(values) < 2:
        return None
    t = _T[min(len(values) - 1, len(_T)) - 1]
    return t * statistics.stdev(values) / math.sqrt(len(values))


def summary(
    variant: Variant, runs: list[dict[str, Any]], exact: list[dict[str, Any]]
) -> dict[str, Any]:
    """Means over the seeds of `runs`, and how they differ from the `exact` runs.

    `loss_change` is relative, `accuracy_change` in points (1/100); both are means of the seeds'
    differences, with their intervals. `seconds_200mbit` is a step's time, with the bytes that it
    sends at that rate added: nothing is hidden behind the computation.
    """
    by_seed = {run["seed"]: run for run in exact}
    pairs = [(run, by_seed[run["seed"]]) for run in runs]

    def mean(group: list[dict[str, Any]], key: str) -> float:
        return statistics.fmean(float(run[key]) for run in group)

    def time(group: list[dict[str, Any]]) -> float:
        """Of the fastest seed: the others met other load on the machine."""
        return min(float(run["step_time_ms_median"]) for run in group)

    losses = [float(run["final_val_loss"]) for run in runs]
    changes = [a["final_val_loss"] / b["final_val_loss"] - 1 for a, b in pairs]
    sent = mean(runs, "bytes_sent_per_step")
    result: dict[str, Any] = {
        **dataclasses.asdict(variant),
        "series": variant.series,
        "seeds": [run["seed"] for run in runs],
        "val_loss": statistics.fmean(losses),
        "val_loss_stdev": statistics.stdev(losses) if len(losses) > 1 else None,
        "loss_change": statistics.fmean(changes),
        "loss_change_interval": interval(changes),
        "bytes_sent_per_step": sent,
        "bytes_ratio": mean([b for _, b in pairs], "bytes_sent_per_step") / sent,
        "step_time_ms": time(runs),
        "seconds_200mbit": time(runs) / 1e3 + 8 * sent / LINK,
    }
    if all(run["accuracy"] is not None for run in runs):
        points = [100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs]
        result["accuracy"] = mean(runs, "accuracy")
        result["accuracy_change"] = statistics.fmean(points)
        result["accuracy_interval"] = interval(points)
    return result


def line(row: dict[str, Any]) -> str:
    """One row of the table, as text."""

    def more(half: float | None, factor: float = 1) -> str:
        return "" if half is None else f" +- {factor * half:.2f}"

    text = (
        f"{row['series']:>32} {row['bits']:>4g} bits  val loss {row['val_loss']:.4f} "
        f"({100 * row['loss_change']:+.2f}{more(row['loss_change_interval'], 100)} %)"
    )
    if "accuracy" in row:
        change = f"{row['accuracy_change']:+.2f}{more(row['accuracy_interval'])} points"
        text += f"  accuracy {100 * row['accuracy']:.2f} % ({change})"
    return text + (
        f"  {row['bytes_sent_per_step']:>11,.0f} bytes/step (1/{row['bytes_ratio']:.2f})"
        f"  {row['step_time_ms']:.1f} ms/step"
    )


def stored(run: dict[str, Any], variant: Variant, options: str) -> dict[str, Any]:
    """A run as the JSON keeps it: the losses of every ten steps, and what it was asked to be."""
    losses = run["loss"]
    curve = [
        round(statistics.fmean(losses[i : i + _EACH]), 5) for i in range(0, len(losses), _EACH)
    ]
    kept = {key: value for key, value in run.items() if key not in _NOT_KEPT}
    kept["cpu"] = run.get("machine", {}).get("cpu")
    return {**kept, "variant": dataclasses.asdict(variant), "options": options, "curve": curve}


def plot(rows: list[dict[str, Any]], title: str, file: Path) -> None:
    """Final loss against bytes, and against the time of a step at 200 Mbit/s."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    exact = rows[0]
    for axis, key, label in (
        (axes[0], "bytes_sent_per_step", "bytes sent per rank and step"),
        (axes[1], "seconds_200mbit", "seconds per step at 200 Mbit/s (computed)"),
    ):
        names = list(dict.fromkeys(row["series"] for row in rows[1:]))
        for place, series in enumerate(names):
            mine = sorted((row for row in rows if row["series"] == series), key=lambda r: r[key])
            errors = [100 * (row["loss_change_interval"] or 0) for row in mine]
            # Beside each other: codecs of equal bits send about the same bytes.
            aside = 1.02 ** (place - len(names) / 2)
            x = [row[key] * aside for row in mine]
            y = [100 * row["loss_change"] for row in mine]
            style = "--" if "feedback" not in series else "-"
            axis.errorbar(x, y, errors, fmt="o" + style, capsize=2, markersize=4, label=series)
            for row, *at in zip(mine, x, y, strict=True):
                axis.annotate(f"{row['bits']:g}", at, fontsize=7)
        axis.axhline(0, color="grey", linewidth=1)
        axis.plot([exact[key]], [0], "k*", markersize=10, label="exact, gloo")
        axis.set(xlabel=label, xscale="log")
        axis.set_yscale("symlog", linthresh=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("validation loss above exact, %")
    axes[0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--example", choices=sorted(SCRIPTS), default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--codecs", nargs="+", choices=sorted(MOST_BITS), default=["maxmin"])
    parser.add_argument("--bits", type=int, nargs="+", default=[4], help="of the cgx runs")
    parser.add_argument("--error-feedback", nargs="+", choices=["off", "on"], default=["off"])
    parser.add_argument(
        "--average-bits", type=float, nargs="+", default=[], help="of more cgx runs, per layer"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--options", default="", help="more arguments of the example, one string")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and runs there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture there")
    args = parser.parse_args(argv)
    if any(not 1 <= bits <= 32 for bits in args.bits):
        parser.error(f"--bits {args.bits}: allowed: 1 to 8, 16, 32")
    return args


def summaries(runs: list[dict[str, Any]], options: str, processes: int) -> list[dict[str, Any]]:
    """A row for each variant among the runs with these options and ranks, with all its seeds."""
    groups: dict[Variant, list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: int(run["seed"])):
        if (run["options"], run["world_size"]) == (options, processes):
            groups.setdefault(Variant(**run["variant"]), []).append(run)
    exact = groups.get(Variant(), [])
    order = sorted(groups, key=lambda v: (v.codec, v.feedback, v.average, v.bits))
    return [summary(variant, groups[variant], exact) for variant in order]


def main(argv: list[str] | None = None) -> None:
    """Runs what the JSON does not hold yet, one after the other; prints the table, writes it."""
    args = arguments(argv)
    runs: list[dict[str, Any]] = []
    if args.json is not None and args.json.exists():
        runs = json.loads(args.json.read_text())["runs"]
    # Seeds outside: runs of a variant lie far apart in time, and so does other load on the machine.
    for seed, variant in itertools.product(args.seeds, variants(args)):
        asked = (args.options, args.processes, seed, dataclasses.asdict(variant))
        if any(
            (run["options"], run["world_size"], run["seed"], run["variant"]) == asked
            for run in runs
        ):
            continue
        more = [*variant.arguments, *shlex.split(args.options), "--seed", str(seed)]
        try:
            run = run_example(
                SCRIPTS[args.example], [*more, "--no-progress"], args.processes, args.timeout
            )
        except RunFailed as error:
            sys.exit(str(error))
        runs.append(stored(run, variant, args.options))
        print(f"seed {seed}, {variant.series}, {variant.bits:g} bits", file=sys.stderr, flush=True)
        if args.json is not None:
            rows = summaries(runs, args.options, args.processes)
            write_json(args.json, {"rows": rows, "runs": runs})
    rows = summaries(runs, args.options, args.processes)
    for row in rows:
        print(line(row), flush=True)
    if args.json is not None:
        write_json(args.json, {"rows": rows, "runs": runs})
    if args.plot is not None:
        plot(rows, f"{args.example}, {args.processes} ranks, {len(args.seeds)} seeds", args.plot)


if __name__ == "__main__":
    main()
