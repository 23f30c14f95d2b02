"""What compression saves per training step between hosts: a small GPT on slow links.

    python -m benchmarks.training.hosts [--hosts 2] [--ranks-per-host 1] [--rate 200mbit]
        [--bits 8 4] [--runs 3] [--steps 60] [--options "--width 256"] [--quick]
        [--json FILE] [--plot FILE]

Trains examples/train_gpt.py, unchanged, on hosts made of network namespaces (torch_cgx.testbed:
needs Linux, root, iproute2): gloo in fp32, gloo with torch's fp16 hook, cgx. The methods take
turns, one short run each, several times; a run's time per step is its median over the steps (so
the first ones, which warm up, do not count), and the median over the runs is reported, beside the
lowest and the highest. The frames that leave a host are counted on its link: the frames of a run,
less the frames of a run of one step, over the other steps.

Between them takes its turn the same training without communication. What it needs and what the link
carries make the time that a step is allowed; benchmarks/training/step_model.py has both. Each row
tells measured / allowed.

All hosts share the cores of this machine, so the computation is slower than on hosts of their own,
and the share of communication smaller.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks import _command, _ranks
from benchmarks._command import BITS, at_least
from benchmarks._methods import GLOO
from benchmarks.training.step_model import Compute, compute_of, model
from torch_cgx.testbed.bed import Hosts, hosts
from torch_cgx.testbed.network import parse_rate

BASE = GLOO
COMPUTE = "compute only"
_TIMEOUT = 1200.0


@dataclass(frozen=True)
class TrainingMethod:
    """A way to reduce gradients, and the arguments of the examples that choose it."""

    name: str
    bits: int
    arguments: list[str]


def methods(bits: list[int]) -> list[TrainingMethod]:
    """gloo's two, and cgx at each number of bits."""
    found = [
        TrainingMethod(BASE, 32, ["--backend", "gloo"]),
        TrainingMethod("gloo, fp16 hook", 16, ["--backend", "gloo", "--hook", "fp16"]),
    ]
    for b in dict.fromkeys(bits):
        name = "cgx, exact" if b == 32 else f"cgx, {b} bits"
        found.append(TrainingMethod(name, b, ["--backend", "cgx", "--bits", str(b)]))
    return found


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.hosts",
        description="Time per training step between hosts, against gloo.",
    )
    parser.add_argument("--hosts", type=at_least(2), default=2, metavar="N")
    parser.add_argument("--ranks-per-host", nargs="+", type=at_least(1), default=[1], metavar="N")
    parser.add_argument(
        "--rate", type=_ranks.rate, default="200mbit", help="of every link; or none"
    )
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=[8, 4], help="of cgx")
    parser.add_argument(
        "--runs", type=at_least(1), metavar="N", help="of each method: 3; --quick: 1"
    )
    parser.add_argument("--steps", type=at_least(2), metavar="N", help="per run: 60; --quick: 8")
    parser.add_argument(
        "--options", default="", help="more arguments of the example, as one string"
    )
    parser.add_argument("--quick", action="store_true", help="one short run of each method")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def train(
    bed: Hosts, method: TrainingMethod, ranks: int, steps: int, options: list[str]
) -> dict[str, Any]:
    """One run. What the example writes of it, and link_bytes: what left each host."""
    result = bed.folder / "training.json"
    command = [sys.executable, str(_command.ROOT / "examples" / "train_gpt.py"), *method.arguments]
    command += [*options, "--steps", str(steps), "--no-progress", "--json", str(result)]
    _, traffic = bed.traffic_of(lambda: bed.run(command, ranks, timeout=_TIMEOUT))
    found = json.loads(result.read_text())
    result.unlink()
    return {
        "method": method.name,
        "steps": steps,
        "step_seconds": found["step_time_ms_median"] / 1e3,
        "train_seconds": found["train_seconds"],
        "train_loss": found["final_train_loss"],
        "val_loss": found["final_val_loss"],
        "parameters": found["parameters"],
        "link_bytes": [one.sent_bytes for one in traffic],
    }


def compute(bed: Hosts, ranks: int, steps: int, options: list[str]) -> Compute:
    """One run without communication."""
    result = bed.folder / "compute.json"
    command = [sys.executable, "-m", "benchmarks.training.step_model", str(result), "train_gpt.py"]
    command += ["--backend", "gloo", *options, "--steps", str(steps), "--no-progress"]
    bed.run(command, ranks, timeout=_TIMEOUT)
    files = [Path(f"{result}.{rank}") for rank in range(ranks * len(bed.names))]
    return compute_of([json.loads(file.read_text()) for file in files])


def measure(args: argparse.Namespace, ranks: int, runs: int, steps: int) -> dict[str, Any]:
    """One group: rows, one per method, what computing alone takes, and all runs that they are made
    from.
    """
    done: list[dict[str, Any]] = []
    alone: list[Compute] = []
    chosen = methods(args.bits)
    options = shlex.split(args.options)
    with hosts(args.hosts, args.rate) as bed:
        for number in range(runs + 1):
            if number:
                alone.append(compute(bed, ranks, steps, options))
                print(f"run {number}, {COMPUTE}: {1e3 * alone[-1].seconds:.1f} ms/step", flush=True)
            for turn in range(len(chosen)):
                method = chosen[(turn + number) % len(chosen)]
                # First of all a run of one step, which tells what a run sends beside its steps.
                run = train(bed, method, ranks, steps if number else 1, options)
                done.append(run)
                if number:
                    milliseconds = 1e3 * run["step_seconds"]
                    print(f"run {number}, {method.name}: {milliseconds:.1f} ms/step", flush=True)
    rows = [summary(one, done, args.hosts * ranks) for one in chosen]
    typical = sorted(alone, key=lambda one: one.seconds)[(len(alone) - 1) // 2]
    for row in rows:
        row.update(allowed(row, typical, args.rate))
    return {
        "ranks_per_host": ranks,
        "rows": rows,
        "compute": typical.to_json(),
        "compute_ms_by_run": [1e3 * one.seconds for one in alone],
        "runs": done,
    }


def allowed(row: dict[str, Any], alone: Compute, rate: str | None) -> dict[str, float]:
    """What the model allows the method of a row, in ms, and the measured time over it."""
    bytes_per_second = parse_rate(rate) / 8 if rate else math.inf
    serial, overlapped = model(alone, row["link_bytes_per_step"] / bytes_per_second)
    measured = row["step_seconds"]
    return {
        "measured_ms": 1e3 * measured,
        "model_ms": 1e3 * overlapped,
        "model_serial_ms": 1e3 * serial,
        "ratio": measured / overlapped,
        "ratio_serial": measured / serial,
    }


def summary(method: TrainingMethod, done: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The row of one method: medians over its runs of more than one step."""
    mine = [run for run in done if run["method"] == method.name]
    single = next(run for run in mine if run["steps"] == 1)
    mine = [run for run in mine if run["steps"] > 1]
    # In turns: run i of a method is compared with run i of the base.
    base = [run for run in done if run["method"] == BASE and run["steps"] > 1]
    seconds = [run["step_seconds"] for run in mine]
    speedups = [b["step_seconds"] / s for b, s in zip(base, seconds, strict=True)]
    per_step = [
        max(
            (a - b) / (run["steps"] - 1)
            for a, b in zip(run["link_bytes"], single["link_bytes"], strict=True)
        )
        for run in mine
    ]
    return {
        "method": method.name,
        "bits": method.bits,
        "ranks": ranks,
        "step_seconds": statistics.median(seconds),
        "step_seconds_low": min(seconds),
        "step_seconds_high": max(seconds),
        "speedup": statistics.median(speedups),
        "link_bytes_per_step": statistics.median(per_step),
        "gradient_bytes": 4 * mine[0]["parameters"],
        "val_loss": mine[0]["val_loss"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Methods of one number of ranks."""
    base = next(row for row in rows if row["method"] == BASE)
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{'method':<{width}} {'ms/step':>9} {'low - high':>17} {'vs gloo':>8} "
        f"{'link B/step':>12} {'fewer':>7} {'val loss':>9} {'allowed':>9} {'over it':>8}"
    ]
    for row in rows:
        low, high = 1e3 * row["step_seconds_low"], 1e3 * row["step_seconds_high"]
        fewer = base["link_bytes_per_step"] / row["link_bytes_per_step"]
        lines.append(
            f"{row['method']:<{width}} {1e3 * row['step_seconds']:>9.1f} "
            f"{f'{low:.1f} - {high:.1f}':>17} {row['speedup']:>7.2f}x "
            f"{row['link_bytes_per_step']:>12,.0f} {fewer:>6.2f}x {row['val_loss']:>9.4f} "
            f"{row['model_ms']:>9.1f} {row['ratio']:>7.2f}x"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: bars of the time per step, with their range and what is allowed."""
    groups = document["groups"]
    with _command.picture(file, 1, len(groups), figsize=(6.5 * len(groups), 4.2)) as (figure, axes):
        for axis, group in zip(axes[0], groups, strict=True):
            _draw_group(axis, group)
            axis.set_title(f"{document['hosts']} hosts x {group['ranks_per_host']} rank(s)")
        figure.suptitle(
            f"GPT of {groups[0]['rows'][0]['gradient_bytes'] / 4e6:.2f} M parameters, "
            f"links of {document['rate'] or 'any speed'} ({document['machine']['cpu']})"
        )


def _draw_group(axis: Any, group: dict[str, Any]) -> None:
    rows = group["rows"]
    heights = [1e3 * row["step_seconds"] for row in rows]
    spread = [
        [h - 1e3 * row["step_seconds_low"] for h, row in zip(heights, rows, strict=True)],
        [1e3 * row["step_seconds_high"] - h for h, row in zip(heights, rows, strict=True)],
    ]
    colors = [_command.color(row["method"], row["bits"]) for row in rows]
    labels = [row["method"].replace(", ", ",\n") for row in rows]
    bars = axis.bar(labels, heights, yerr=spread, capsize=4, color=colors, alpha=0.85)
    notes = [
        f"{row['speedup']:.2f}x\n{row['link_bytes_per_step'] / 1e6:.2f} MB/step" for row in rows
    ]
    axis.bar_label(bars, notes, padding=6, fontsize=9)
    edges = [bar.get_x() for bar in bars], [bar.get_x() + bar.get_width() for bar in bars]
    allowed_ms = [row["model_ms"] for row in rows]
    axis.hlines(allowed_ms, *edges, colors="#17becf", linewidth=2.5, label="allowed")
    alone = 1e3 * group["compute"]["seconds"]
    axis.axhline(alone, color="grey", linestyle=":", label="compute only")
    axis.legend(loc="upper right", fontsize=9)
    axis.set_ylim(0, 1.3 * max(1e3 * row["step_seconds_high"] for row in rows))
    axis.set_ylabel("ms per training step")


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    runs = args.runs or (1 if args.quick else 3)
    steps = args.steps or (8 if args.quick else 60)
    start = time.monotonic()
    facts = _ranks.print_link_facts(runs=runs, steps=steps)
    groups = []
    for ranks in dict.fromkeys(args.ranks_per_host):
        groups.append(measure(args, ranks, runs, steps))
        print(f"\n{args.hosts} hosts x {ranks}, {args.rate or 'unshaped'}")
        print(f"{table(groups[-1]['rows'])}\n", flush=True)
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "hosts_training",
        "machine": facts,
        "hosts": args.hosts,
        "rate": args.rate,
        "options": args.options,
        "groups": groups,
    }
    return _command.finish(args, document, lambda file: draw(document, file))


if __name__ == "__main__":
    sys.exit(main())
