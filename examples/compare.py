"""Trains an example with several seeds, exact and at fewer bits, and prints the means.

python examples/compare.py                                   # digits, 3 seeds, 4 bits
python examples/compare.py --example gpt --bits 4 8 --json gpt.json
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from common import write_json
from launch import RunFailed, run_example

SCRIPTS = {"digits": "train_digits.py", "gpt": "train_gpt.py"}


def summary(bits: int, runs: list[dict[str, Any]], exact: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of `runs`, and how they differ from those of the `exact` ones.

    `loss_change` is relative, `accuracy_change` in points (1/100).
    """

    def mean(group: list[dict[str, Any]], key: str) -> float:
        return statistics.fmean(float(run[key]) for run in group)

    losses = [float(run["final_val_loss"]) for run in runs]
    result: dict[str, Any] = {
        "backend": runs[0]["backend"],
        "bits": bits,
        "seeds": [run["seed"] for run in runs],
        "val_loss": statistics.fmean(losses),
        "val_loss_stdev": statistics.stdev(losses) if len(losses) > 1 else None,
        "loss_change": mean(runs, "final_val_loss") / mean(exact, "final_val_loss") - 1,
        "bytes_sent_per_step": mean(runs, "bytes_sent_per_step"),
        "bytes_ratio": mean(exact, "bytes_sent_per_step") / mean(runs, "bytes_sent_per_step"),
        "step_time_ms": mean(runs, "step_time_ms_median"),
    }
    if all(run["accuracy"] is not None for run in runs):
        result["accuracy"] = mean(runs, "accuracy")
        result["accuracy_change"] = 100 * (mean(runs, "accuracy") - mean(exact, "accuracy"))
    return result


def line(row: dict[str, Any]) -> str:
    """One row of the table, as text."""
    text = (
        f"{row['backend']:>8} {row['bits']:>2} bits  val loss {row['val_loss']:.4f} "
        f"({100 * row['loss_change']:+.2f} %)"
    )
    if "accuracy" in row:
        text += f"  accuracy {100 * row['accuracy']:.2f} % ({row['accuracy_change']:+.2f} points)"
    return text + (
        f"  {row['bytes_sent_per_step']:>11,.0f} bytes/step (1/{row['bytes_ratio']:.2f})"
        f"  {row['step_time_ms']:.1f} ms/step"
    )


def main(argv: list[str] | None = None) -> None:
    """Runs all trainings one after the other, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--example", choices=sorted(SCRIPTS), default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--bits", type=int, nargs="+", default=[4], help="of the cgx runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--options", default="", help="more arguments of the example, one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and runs there")
    args = parser.parse_args(argv)

    settings = [(32, ["--backend", "gloo"])]
    settings += [(bits, ["--backend", "cgx", "--bits", str(bits)]) for bits in args.bits]
    options = shlex.split(args.options)
    rows: list[dict[str, Any]] = []
    groups: list[list[dict[str, Any]]] = []
    for bits, setting in settings:
        group = []
        for seed in args.seeds:
            arguments = [*setting, *options, "--seed", str(seed), "--no-progress"]
            try:
                group.append(run_example(SCRIPTS[args.example], arguments, args.processes))
            except RunFailed as error:
                sys.exit(str(error))
        groups.append(group)
        rows.append(summary(bits, group, groups[0]))
        print(line(rows[-1]), flush=True)
    if args.json is not None:
        write_json(args.json, {"rows": rows, "runs": [run for group in groups for run in group]})


if __name__ == "__main__":
    main()
