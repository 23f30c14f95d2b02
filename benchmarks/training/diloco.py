"""What a loss costs in time over links of some Mbit/s: DiLoCo at 4 bits against DDP over gloo.

    python -m benchmarks.training.diloco [--hosts 2] [--rate 50mbit] [--seconds 60] [--runs 2]
        [--every 20] [--bits 4] [--options "--width 256"] [--quick] [--json FILE] [--plot FILE]

Trains examples/train_diloco.py on hosts made of network namespaces (torch_cgx.testbed: needs Linux,
root, iproute2), so many seconds each: DDP over gloo in fp32, DDP over cgx, DiLoCo over cgx. The
methods take turns; run i has seed i. Reported are the validation loss at equal time (that of the
run which ended first, between two validations on a straight line), the time that DiLoCo needed for
gloo's last loss, and the bytes that left a host per step, counted on its link.

All hosts share the cores of this machine, so a step's computation is slower than on hosts of their
own, which is to DDP's advantage.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks._command import at_least
from torch_cgx.testbed.bed import Hosts, hosts

BASE = "DDP over gloo"
_BIG = 1_000_000  # steps: the time ends the run
Point = tuple[float, float]  # seconds, loss


@dataclass(frozen=True)
class Method:
    """A way to train, and the arguments of the example that choose it."""

    name: str
    color: str
    arguments: tuple[str, ...]


def methods(codec: str, bits: int, every: int) -> list[Method]:
    cgx = ("--backend", "cgx", "--codec", codec, "--bits", str(bits))
    return [
        Method(BASE, "black", ("--method", "ddp", "--backend", "gloo")),
        Method(f"DDP over cgx, {codec} {bits} bits", "#1f77b4", ("--method", "ddp", *cgx)),
        Method(
            f"DiLoCo, {codec} {bits} bits, every {every}", "#ff7f0e", ("--method", "diloco", *cgx)
        ),
    ]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.diloco",
        description="Loss at equal time over slow links.",
    )
    parser.add_argument("--hosts", type=at_least(2), default=2, metavar="N")
    parser.add_argument("--rate", type=_ranks.rate, default="50mbit", help="of every link")
    parser.add_argument("--seconds", type=at_least(1), metavar="N", help="60; --quick: 3")
    parser.add_argument("--runs", type=at_least(1), metavar="N", help="2; --quick: 1")
    parser.add_argument("--every", type=at_least(1), default=20, metavar="N")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=4, metavar="N")
    parser.add_argument("--codec", default="rotated", help="of cgx")
    parser.add_argument("--options", default="", help="more arguments of the example")
    parser.add_argument("--quick", action="store_true", help="one short run of each method")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def train(bed: Hosts, method: Method, args: argparse.Namespace, seconds: int, seed: int) -> Any:
    """One run: its curve, and the bytes that left the busiest host per step."""
    result = bed.folder / "diloco.json"
    command = [sys.executable, str(_command.ROOT / "examples" / "train_diloco.py")]
    command += [*method.arguments, "--every", str(args.every), "--seconds", str(seconds)]
    command += ["--steps", str(_BIG), "--seed", str(seed), "--no-progress"]
    command += [*shlex.split(args.options), "--json", str(result)]
    limit = 20.0 * seconds + 300.0
    _, traffic = bed.traffic_of(lambda: bed.run(command, 1, timeout=limit))
    found = json.loads(result.read_text())
    result.unlink()
    return {
        "method": method.name,
        "seed": seed,
        "steps": found["steps"],
        "seconds": found["train_seconds"],
        "parameters": found["parameters"],
        "bytes_sent_per_step": found["bytes_sent_per_step"],
        "link_bytes_per_step": max(one.sent_bytes for one in traffic) / found["steps"],
        "curve": [[point["seconds"], point["val_loss"]] for point in found["curve"]],
    }


def loss_at(curve: list[Point], seconds: float) -> float:
    """The loss at a time within the curve, on a straight line between its neighbours."""
    for (before, high), (after, low) in zip(curve, curve[1:], strict=False):
        if before <= seconds <= after:
            return high + (low - high) * (seconds - before) / (after - before)
    raise ValueError(f"{seconds:.1f} s lie outside of a curve of {curve[-1][0]:.1f} s")


def time_of(curve: list[Point], loss: float) -> float | None:
    """The first time at which the curve is at `loss` or below; None if it never is."""
    for (before, high), (after, low) in zip(curve, curve[1:], strict=False):
        if low <= loss:
            return (
                after if high <= loss else before + (after - before) * (high - loss) / (high - low)
            )
    return None


def summary(method: Method, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of one method; each run is compared with the base's of the same seed."""
    mine = [run for run in runs if run["method"] == method.name]
    losses, faster = [], []
    for run in mine:
        same = [other for other in runs if other["seed"] == run["seed"]]
        base = next(other for other in same if other["method"] == BASE)
        losses.append(loss_at(run["curve"], min(other["curve"][-1][0] for other in same)))
        needed = time_of(run["curve"], base["curve"][-1][1])
        faster.append(base["curve"][-1][0] / needed if needed else None)
    return {
        "method": method.name,
        "loss": statistics.mean(losses),
        "losses": losses,
        "faster_to_base_loss": faster,
        "steps": [run["steps"] for run in mine],
        "link_bytes_per_step": statistics.median(run["link_bytes_per_step"] for run in mine),
    }


def table(rows: list[dict[str, Any]]) -> str:
    base = next(row for row in rows if row["method"] == BASE)
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{'method':<{width}} {'val loss at equal time':>22} {'time to gloo loss':>18} "
        f"{'steps':>12} {'link B/step':>12} {'fewer':>8}"
    ]
    for row in rows:
        reached = [value for value in row["faster_to_base_loss"] if value]
        faster = f"{statistics.mean(reached):.1f}x as fast" if reached else "not reached"
        steps = " ".join(map(str, row["steps"]))
        fewer = base["link_bytes_per_step"] / row["link_bytes_per_step"]
        lines.append(
            f"{row['method']:<{width}} {row['loss']:>22.4f} {faster:>18} {steps:>12} "
            f"{row['link_bytes_per_step']:>12,.0f} {fewer:>7.1f}x"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: loss against seconds of training, a line for each run."""
    with _command.picture(file, 1, 1, figsize=(8, 4.8)) as (figure, axes):
        axis = axes[0][0]
        for method in methods(document["codec"], document["bits"], document["every"]):
            label: str | None = method.name
            for run in document["runs"]:
                if run["method"] == method.name:
                    seconds, losses = zip(*run["curve"], strict=True)
                    axis.plot(seconds, losses, color=method.color, label=label, marker=".")
                    label = None
        axis.set_xlabel("seconds of training")
        axis.set_ylabel("validation loss, nats per byte")
        axis.grid(alpha=0.25)
        axis.legend()
        million = document["runs"][0]["parameters"] / 1e6
        figure.suptitle(
            f"GPT of {million:.2f} M parameters on {document['hosts']} hosts, links of "
            f"{document['rate'] or 'any speed'} ({document['machine']['cpu']})"
        )


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    count = args.runs or (1 if args.quick else 2)
    seconds = args.seconds or (3 if args.quick else 60)
    start = time.monotonic()
    facts = _ranks.print_link_facts(runs=count, seconds_each=seconds)
    chosen = methods(args.codec, args.bits, args.every)
    runs: list[dict[str, Any]] = []
    with hosts(args.hosts, args.rate) as bed:
        for seed in range(count):
            for turn in range(len(chosen)):
                method = chosen[(turn + seed) % len(chosen)]
                runs.append(train(bed, method, args, seconds, seed))
                last = runs[-1]["curve"][-1]
                print(f"seed {seed}, {method.name}: {last[1]:.4f} at {last[0]:.1f} s", flush=True)
    rows = [summary(method, runs) for method in chosen]
    print(f"\n{args.hosts} hosts, {args.rate or 'unshaped'}\n{table(rows)}\n", flush=True)
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "diloco",
        "machine": facts,
        "hosts": args.hosts,
        "rate": args.rate,
        "codec": args.codec,
        "bits": args.bits,
        "every": args.every,
        "options": args.options,
        "rows": rows,
        "runs": runs,
    }
    return _command.finish(args, document, lambda file: draw(document, file))


if __name__ == "__main__":
    sys.exit(main())
