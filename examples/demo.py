"""Trains the same small model on two processes, exact, at 4 bits and at 2, and compares: accuracy,
bytes, time per step here and, by the cost model, on slower links between two hosts.

    python examples/demo.py

With root and iproute2 the step on a link of 1 Gbit/s is measured, too. Prints tables and writes
demo.png. Exits with status 1 if a run fails or the ranks disagree.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import forecast
from launch import RunFailed, run_example

SCRIPT = "train_digits.py"
REFRESH_SECONDS = 1.0  # of a bar
LINE_SECONDS = 10.0  # between lines, where there is no bar
WINDOW = 10  # steps that a point of the picture is the mean of


def require(modules: list[str]) -> None:
    """Exits with a message that names the modules which are not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"the demo needs {', '.join(missing)}: pip install torch_cgx[examples]")


@contextlib.contextmanager
def alive(bar: Any) -> Iterator[None]:
    """Shows that the demo goes on: by the bar's clock on a terminal, else by lines."""
    done = threading.Event()

    def show() -> None:
        begin = time.perf_counter()
        while not done.wait(LINE_SECONDS if bar.disable else REFRESH_SECONDS):
            if not bar.disable:
                bar.refresh()
            else:
                bar.write(f"      ... {time.perf_counter() - begin:.0f} s", file=sys.stdout)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def label(run: dict[str, Any]) -> str:
    """How the table and the picture call a run."""
    if run["bits"] == 32:
        return f"{run['backend']}, 32 bits (exact)"
    return f"{run['backend']} {run['codec']}, {run['bits']} bits"


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
    return aligned(head, rows)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right, under a line."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def links(runs: list[dict[str, Any]], columns: dict[str, list[float]]) -> str:
    """One line per run: milliseconds per step in each column."""
    rows = [
        (label(run), *(f"{times[i]:.1f} ms" for times in columns.values()))
        for i, run in enumerate(runs)
    ]
    return aligned(("time per step", *columns), rows)


def running_mean(values: list[float], width: int) -> list[float]:
    """Means of every `width` values in a row; the i-th one ends with value i + width - 1."""
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """Loss against steps, and against bytes sent: one curve per run, two panels, a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    styles = [("tab:blue", "-", 2.6), ("tab:orange", "--", 1.6), ("tab:green", ":", 1.6)]
    for run, (colour, dash, thickness) in zip(runs, styles, strict=False):
        width = min(WINDOW, len(run["loss"]))
        losses = running_mean(run["loss"], width)
        steps = list(range(width, len(run["loss"]) + 1))
        sent = [step * run["bytes_sent_per_step"] / 1e6 for step in steps]
        for panel, x in zip(panels, (steps, sent), strict=True):
            panel.plot(x, losses, dash, color=colour, linewidth=thickness, label=label(run))
    exact = runs[0]
    ratios = [exact["bytes_sent_per_step"] / run["bytes_sent_per_step"] for run in runs[1:]]
    shares = " and ".join(f"1/{ratio:.1f}" for ratio in ratios)
    panels[0].set(title="The same steps ...", xlabel="step", ylabel="training loss [nats]")
    panels[1].set(title=f"... for {shares} of the traffic", xlabel="sent by each rank [MB]")
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
    """Runs the trainings, predicts, measures, prints, draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 2], help="of compressed runs")
    parser.add_argument("--codec", default="rotated", help="of the compressed runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-hosts", action="store_true", help="measure nothing between hosts")
    parser.add_argument("--plot", type=Path, default=Path("demo.png"), metavar="FILE")
    args = parser.parse_args(argv)
    require(["torch_cgx", "sklearn", "matplotlib", "tqdm"])
    from tqdm import tqdm

    common = ["--seed", str(args.seed), "--no-progress"]
    settings = [["--backend", "gloo"]]
    for bits in args.bits:
        settings.append(["--backend", "cgx", "--codec", args.codec, "--bits", str(bits)])
    why_not = "--no-hosts" if args.no_hosts else forecast.missing()
    total = len(settings) * (1 if why_not else 2)
    bar = tqdm(total=total, desc="demo", unit="run", disable=not sys.stderr.isatty(), leave=False)
    runs = []
    for number, setting in enumerate(settings, 1):
        words = " ".join([SCRIPT, *setting, *common])
        tqdm.write(f"[{number}/{total}] torchrun --nproc-per-node {args.processes} {words}")
        begin = time.perf_counter()
        try:
            # A run checks by itself that all ranks end with the same weights, to the bit.
            with alive(bar):
                runs.append(run_example(SCRIPT, [*setting, *common], args.processes))
        except RunFailed as error:
            sys.exit(f"run {number} failed: {error}")
        bar.update()
        seconds = time.perf_counter() - begin
        tqdm.write(f"      {seconds:.1f} s; all ranks ended with the same weights")
    if len({run["steps"] for run in runs}) != 1:
        sys.exit(f"the runs took {[run['steps'] for run in runs]} steps, which must be equal")
    measured: list[float] = []
    if not why_not:
        tqdm.write(
            f"[{len(settings) + 1}-{total}/{total}] the same on two hosts made of network "
            f"namespaces, {forecast.STEPS} steps each on a link of {forecast.MEASURED}"
        )
        with alive(bar):
            measured = forecast.measure(SCRIPT, settings, bar.update)
    bar.close()
    configs = [{"bits": bits, "codec": args.codec} for bits in args.bits]
    predicted = forecast.predict([("gloo", None), *((f"{c}", c) for c in configs)])
    print(f"\n{table(runs)}\n")
    exact = runs[0]
    for run in runs[1:]:
        ratio = exact["bytes_sent_per_step"] / run["bytes_sent_per_step"]
        change = 100 * (run["accuracy"] - exact["accuracy"])
        print(
            f"{run['bits']} bits: {ratio:.2f} times fewer bytes on the wire, accuracy "
            f"{change:+.2f} points"
        )
    print("(bytes of cgx are counted by the backend, of gloo by formula)\n")
    columns = {"here": [run["step_time_ms_median"] for run in runs]}
    columns |= {f"{name}*": times for name, times in predicted.items()}
    if measured:
        columns[f"{forecast.MEASURED}, measured"] = measured
    print(f"{links(runs, columns)}\n")
    print("* forward and backward pass on two hosts with a core each, by the cost model")
    print(forecast.note(predicted))
    if measured and (doubt := forecast.doubt(predicted[forecast.MEASURED], measured)):
        print(doubt)
    if why_not and not args.no_hosts:
        print(f"The link of {forecast.MEASURED} was not measured: {why_not}")
    plot(runs, args.plot)
    print(f"picture: {args.plot}")


if __name__ == "__main__":
    main()
