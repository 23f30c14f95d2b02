"""What it takes to send a model to a worker that joins, over a link of some Mbit/s.

    python -m benchmarks.training.joining [--rate 50mbit] [--bounds 1e-4 1e-3] [--repeats 3]
        [--layers 6] [--width 384] [--quick] [--json FILE] [--plot FILE]

Two hosts, network namespaces (torch_cgx.testbed: needs Linux, root, iproute2), one rank each,
gloo between them. Rank 0 has a GPT (examples/gpt.py, weights as at the start of a training: normal,
standard deviation 0.02), rank 1 joins. Methods take turns: torch.distributed.broadcast of all
parameters in fp32, all under way at once; of their bf16 values, which both ranks take then;
torch_cgx.bounded.broadcast without loss and at each bound. Reported are the seconds until both
ranks have the model, the frames that left the sender, counted on its link, what the link needs for
these at least, and the greatest error of a value. Every result is verified: equal bits on both
ranks, errors within the bound; status 1 if one is not.

Both hosts share the cores of this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import _command, _ranks
from benchmarks._command import at_least
from benchmarks._ranks import everyone
from torch_cgx import bounded
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate, read_own

BASE = "exact, fp32"
_TIMEOUT = 1200.0
Send = Callable[[nn.Module], None]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.joining",
        description="Seconds until a joining worker has the model.",
    )
    parser.add_argument("--rate", type=_ranks.rate, default="50mbit", help="of every link; or none")
    parser.add_argument(
        "--bounds", nargs="+", type=bound, default=[1e-4, 1e-3], metavar="BOUND", help="max_error"
    )
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="3; --quick: 1")
    parser.add_argument("--layers", type=at_least(1), metavar="N", help="6; --quick: 2")
    parser.add_argument("--width", type=at_least(4), metavar="N", help="384; --quick: 128")
    parser.add_argument("--quick", action="store_true", help="a small model, sent once each")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def bound(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: numbers between 0 and 1")
    return value


# ---- on the ranks


def _exact(model: nn.Module) -> None:
    works = [dist.broadcast(p.detach(), 0, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()


def _half(model: nn.Module) -> None:
    halves = [p.detach().bfloat16() for p in model.parameters()]
    works = [dist.broadcast(half, 0, async_op=True) for half in halves]
    for work, half, p in zip(works, halves, model.parameters(), strict=True):
        work.wait()
        p.detach().copy_(half)


def _bounded(max_error: float) -> Send:
    return lambda model: bounded.broadcast(model, 0, max_error=max_error)


def methods(bounds: list[float]) -> dict[str, Send]:
    """By name, in the order of the table."""
    found = {BASE: _exact, "bf16": _half, "bounded, lossless": _bounded(0.0)}
    return found | {f"bounded, {one:g}": _bounded(one) for one in bounds}


def new_model(layers: int, width: int) -> nn.Module:
    sys.path.insert(0, str(_command.ROOT / "examples"))
    from gpt import GPT, GPTConfig

    torch.manual_seed(0)
    return GPT(GPTConfig(layers=layers, heads=4, width=width))


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """On a rank: what each method took, each time."""
    source = new_model(job["layers"], job["width"])
    runs: list[dict[str, Any]] = []
    chosen = list(methods(job["bounds"]).items())
    for repeat in range(job["repeats"]):
        for turn in range(len(chosen)):
            name, send = chosen[(turn + repeat) % len(chosen)]
            runs.append({"method": name, **_sent(source, send)})
            if dist.get_rank() == 0:  # shown where the run fails
                print(f"{name}: {runs[-1]['seconds']:.2f} s", flush=True)
    return {"runs": runs, "parameters": sum(p.numel() for p in source.parameters())}


def _sent(source: nn.Module, send: Send) -> dict[str, Any]:
    """One transfer, into a model of zeros on rank 1."""
    model = type(source)(source.config)
    with torch.no_grad():
        for mine, p in zip(model.parameters(), source.parameters(), strict=True):
            mine.copy_(p if dist.get_rank() == 0 else torch.zeros_like(p))
    dist.barrier()
    before = read_own().sent_bytes
    start = time.monotonic()
    send(model)
    seconds = time.monotonic() - start
    link_bytes = max(everyone(read_own().sent_bytes - before))
    pairs = list(zip(model.parameters(), source.parameters(), strict=True))
    error = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    digest = hashlib.sha256()
    for a, _ in pairs:
        digest.update(a.detach().numpy().tobytes())
    return {
        "seconds": max(everyone(seconds)),
        "link_bytes": link_bytes,
        "error": max(everyone(error)),
        "equal": len(set(everyone(digest.hexdigest()))) == 1,
    }


# ---- results


def summary(name: str, measured: dict[str, Any], rate: str | None) -> dict[str, Any]:
    """The row of one method: medians over its runs."""
    mine = [run for run in measured["runs"] if run["method"] == name]
    base = [run for run in measured["runs"] if run["method"] == BASE]
    seconds = statistics.median(run["seconds"] for run in mine)
    link_bytes = statistics.median(run["link_bytes"] for run in mine)
    return {
        "method": name,
        "seconds": seconds,
        "seconds_low": min(run["seconds"] for run in mine),
        "seconds_high": max(run["seconds"] for run in mine),
        "faster": statistics.median(run["seconds"] for run in base) / seconds,
        "link_bytes": link_bytes,
        "fewer": statistics.median(run["link_bytes"] for run in base) / link_bytes,
        "link_seconds": link_bytes * 8 / parse_rate(rate) if rate else None,
        "error": max(run["error"] for run in mine),
        "equal": all(run["equal"] for run in mine),
    }


def wrong(rows: list[dict[str, Any]], bounds: list[float]) -> list[str]:
    """What is not as it has to be; bf16 has no absolute bound."""
    limits = {BASE: 0.0, "bounded, lossless": 0.0} | {f"bounded, {one:g}": one for one in bounds}
    found = []
    for row in rows:
        limit = limits.get(row["method"])
        if limit is not None and row["error"] > limit:
            found.append(f"{row['method']}: an error of {row['error']:g}")
        if not row["equal"]:
            found.append(f"{row['method']}: the ranks have different bits")
    return found


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{'method':<{width}} {'seconds':>8} {'low - high':>15} {'faster':>7} {'link MB':>8} "
        f"{'fewer':>7} {'link alone':>11} {'max error':>10}"
    ]
    for row in rows:
        between = f"{row['seconds_low']:.2f} - {row['seconds_high']:.2f}"
        alone = "" if row["link_seconds"] is None else f"{row['link_seconds']:.2f} s"
        lines.append(
            f"{row['method']:<{width}} {row['seconds']:>8.2f} {between:>15} {row['faster']:>6.2f}x "
            f"{row['link_bytes'] / 1e6:>8.2f} {row['fewer']:>6.2f}x {alone:>11} "
            f"{row['error']:>10.1e}"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: bars of seconds, with their range and the bytes."""
    rows = document["rows"]
    with _command.picture(file, 1, 1, figsize=(8, 4.4)) as (figure, axes):
        axis = axes[0][0]
        heights = [row["seconds"] for row in rows]
        spread = [
            [row["seconds"] - row["seconds_low"] for row in rows],
            [row["seconds_high"] - row["seconds"] for row in rows],
        ]
        colors = ["#ff7f0e" if "bounded" in row["method"] else "#7f7f7f" for row in rows]
        labels = [row["method"].replace(", ", ",\n") for row in rows]
        bars = axis.bar(labels, heights, yerr=spread, capsize=4, color=colors, alpha=0.85)
        notes = [f"{row['faster']:.2f}x\n{row['link_bytes'] / 1e6:.1f} MB" for row in rows]
        axis.bar_label(bars, notes, padding=6, fontsize=9)
        axis.set_ylim(0, 1.25 * max(row["seconds_high"] for row in rows))
        axis.set_ylabel("seconds until both ranks have the model")
        figure.suptitle(
            f"GPT of {document['parameters'] / 1e6:.2f} M parameters to a joining worker, link of "
            f"{_command.rate_text(document['rate'])} ({document['machine']['cpu']})"
        )


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    job = {
        "bounds": list(dict.fromkeys(args.bounds)),
        "repeats": args.repeats or (1 if args.quick else 3),
        "layers": args.layers or (2 if args.quick else 6),
        "width": args.width or (128 if args.quick else 384),
    }
    facts = _ranks.print_link_facts(repeats=job["repeats"])
    with hosts(2, args.rate) as bed:
        measured = _ranks.on_hosts(bed, measure, job, 1, _TIMEOUT)
    rows = [summary(name, measured, args.rate) for name in methods(job["bounds"])]
    print(f"\n{measured['parameters']:,} parameters, {args.rate or 'unshaped'}\n{table(rows)}\n")
    facts["seconds"] = measured["seconds"]
    document = {
        "benchmark": "joining",
        "machine": facts,
        "hosts": 2,
        "rate": args.rate,
        "parameters": measured["parameters"],
        **job,
        "rows": rows,
        "runs": measured["runs"],
    }
    return _command.finish(
        args, document, lambda file: draw(document, file), wrong(rows, job["bounds"])
    )


if __name__ == "__main__":
    sys.exit(main())
