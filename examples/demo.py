"""Trains the same small model twice on two processes, exact and at 4 bits, and compares.

    python examples/demo.py

Prints a table and writes demo.png. Exits with status 1 if a run fails or the ranks disagree.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from launch import RunFailed, run_example

SCRIPT = "train_digits.py"
WINDOW = 10  # steps that a point of the picture is the mean of


def require(modules: list[str]) -> None:
    """Exits with a message that names the modules which are not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"the demo needs {', '.join(missing)}: pip install torch_cgx[examples]")


def label(run: dict[str, Any]) -> str:
    """How the table and the picture call a run."""
    return f"{run['backend']}, {run['bits']} bits" + (" (exact)" if run["bits"] == 32 else "")


def table(runs: list[dict[str, Any]]) -> str:
    """One line per run: accuracy, losses, bytes per step and rank, time per step."""
    head = ("run", "accuracy", "train loss", "test loss", "bytes/step", "ms/step")
    rows = [
        (
            label(run),
            f"{100 * run['accuracy']:.2f} %",
            f"{run['final_train_loss']:.4f}",
            f"{run['final_val_loss']:.4f}",
            f"{run['bytes_sent_per_step']:,.0f}",
            f"{run['step_time_ms_median']:.1f}",
        )
        for run in runs
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def running_mean(values: list[float], width: int) -> list[float]:
    """Means of every `width` values in a row; the i-th one ends with value i + width - 1."""
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Loss against steps, and against bytes sent: one curve per run, two panels, a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    styles = [("tab:blue", "-", 2.6), ("tab:orange", "--", 1.6)]
    for run, (colour, dash, thickness) in zip(runs, styles, strict=True):
        width = min(WINDOW, len(run["loss"]))
        losses = running_mean(run["loss"], width)
        steps = list(range(width, len(run["loss"]) + 1))
        sent = [step * run["bytes_sent_per_step"] / 1e6 for step in steps]
        for panel, x in zip(panels, (steps, sent), strict=True):
            panel.plot(x, losses, dash, color=colour, linewidth=thickness, label=label(run))
    exact, small = runs
    ratio = exact["bytes_sent_per_step"] / small["bytes_sent_per_step"]
    panels[0].set(title="The same steps ...", xlabel="step", ylabel="training loss [nats]")
    panels[1].set(title=f"... for 1/{ratio:.1f} of the traffic", xlabel="sent by each rank [MB]")
    for panel in panels:
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.suptitle(
        f"Handwritten digits, {exact['parameters']:,} parameters, {exact['world_size']} ranks, "
        f"seed {exact['seed']} (mean of {WINDOW} steps)"
    )
    figure.savefig(path, dpi=130)


def main(argv: list[str] | None = None) -> None:
    """Runs both trainings, prints, draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bits", type=int, default=4, help="of the compressed run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", type=Path, default=Path("demo.png"), metavar="FILE")
    args = parser.parse_args(argv)
    require(["torch_cgx", "sklearn", "matplotlib"])

    common = ["--seed", str(args.seed), "--no-progress"]
    settings = [["--backend", "gloo"], ["--backend", "cgx", "--bits", str(args.bits)]]
    runs = []
    for number, setting in enumerate(settings, 1):
        words = " ".join([SCRIPT, *setting, *common])
        print(f"[{number}/2] torchrun --nproc-per-node {args.processes} {words}", flush=True)
        begin = time.perf_counter()
        try:
            # A run checks by itself that all ranks end with the same weights, to the bit.
            runs.append(run_example(SCRIPT, [*setting, *common], args.processes))
        except RunFailed as error:
            sys.exit(f"run {number} failed: {error}")
        print(f"      {time.perf_counter() - begin:.1f} s; all ranks ended with the same weights")
    exact, small = runs
    if exact["steps"] != small["steps"]:
        sys.exit(f"the runs took {exact['steps']} and {small['steps']} steps, which must be equal")
    ratio = exact["bytes_sent_per_step"] / small["bytes_sent_per_step"]
    print(f"\n{table(runs)}\n")
    print(
        f"{args.bits} bits: {ratio:.2f} times fewer bytes on the wire "
        "(cgx's counted by the backend, gloo's by formula), "
        f"accuracy {100 * (small['accuracy'] - exact['accuracy']):+.2f} points"
    )
    plot(runs, args.plot)
    print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
