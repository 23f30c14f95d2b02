"""What a Monitor costs: training steps with and without one, in turns.

    python -m benchmarks.training.monitor [--blocks 1440] [--quick] [--json FILE] [--plot FILE]

Two ranks of this host train a small GPT (examples/gpt.py) and a small MLP at 4 bits, in blocks of
10 steps, of which the MLP, whose steps are short, has eight times as many. Half of the blocks have
the Monitor, in the order 0 1 1 0, so a slow phase of the machine meets both kinds; it makes a
record every 100 steps that it sees. So all of its costs are in them: following the buckets,
sampling each bucket once per record, the record and its line. A record's cost is in one block of
ten, so a pair for the ratio is ten blocks with it and the ten without that lie between them, by the
slowest rank. Reported is the median over the pairs, with its 95 % interval (order statistics,
whatever the distribution).
"""

from __future__ import annotations

import argparse
import importlib
import io
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import _command, _ranks
from benchmarks._command import at_least
from benchmarks._ranks import everyone
from benchmarks.training.step_model import EXAMPLES
from cgx_utils import CGXState, Monitor, cgx_hook
from cgx_utils.monitor import Table


def _gpt() -> tuple[nn.Module, torch.Tensor]:
    sys.path.insert(0, str(EXAMPLES))
    gpt: Any = importlib.import_module("gpt")
    config = gpt.GPTConfig(context=64, layers=4, heads=4, width=128)
    return gpt.GPT(config), torch.randint(0, 256, (8, 64))


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(64, 256)


STEPS, EVERY = 10, 100
PAIR = EVERY // STEPS  # blocks of each kind in a pair: one record
MODELS = {"gpt": (_gpt, 1), "mlp": (_mlp, 8)}  # with factors of the blocks


def measure(job: dict[str, int]) -> dict[str, Any]:
    """On a rank. A row for each model: seconds of the blocks, with and without a Monitor."""
    torch.manual_seed(0)
    group = dist.new_group(backend="cgx")
    rows = []
    for name, (make, factor) in MODELS.items():
        module, x = make()
        model = DistributedDataParallel(module, process_group=group)
        state = CGXState(group, bits=4)
        model.register_comm_hook(state, cgx_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        _seconds(model, optimizer, x, 2 * STEPS)
        times: dict[bool, list[float]] = {True: [], False: []}
        with Monitor(model, EVERY, Table(io.StringIO())):
            observer = state.observer
            for block in range(factor * job["blocks"]):
                watched = block % 4 in (1, 2)
                state.observer = observer if watched else None
                dist.barrier()
                times[watched].append(_seconds(model, optimizer, x, STEPS))
            state.observer = observer
        gathered = everyone({"with": times[True], "without": times[False]})
        numel = sum(p.numel() for p in module.parameters())
        row: dict[str, Any] = {"model": name, "parameters": numel}
        for which in ("with", "without"):
            blocks = zip(*(one[which] for one in gathered), strict=True)
            row[f"seconds_{which}"] = [max(block) for block in blocks]
        rows.append(row)
    return {"rows": rows}


def _seconds(model: nn.Module, optimizer: Any, x: torch.Tensor, steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return time.perf_counter() - begin


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = []
    for row in rows:
        low, ratio, high = interval(ratios(row))
        step = statistics.median(row["seconds_without"]) / STEPS
        found = {"ratio": ratio, "ratio_low": low, "ratio_high": high, "seconds_per_step": step}
        done.append({**row, **found})
    return done


def ratios(row: dict[str, Any]) -> list[float]:
    """Of the pairs."""
    number = len(row["seconds_with"])
    size = min(PAIR, number)
    return [
        sum(row["seconds_with"][i : i + size]) / sum(row["seconds_without"][i : i + size])
        for i in range(0, number - size + 1, size)
    ]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median between the ends of its 95 % interval: of n values in order, those 0.98 sqrt(n)
    places from the middle.
    """
    ordered = sorted(values)
    middle, reach = (len(ordered) - 1) / 2, 0.98 * math.sqrt(len(ordered))
    low, high = max(0, math.floor(middle - reach)), math.ceil(middle + reach)
    return ordered[low], statistics.median(ordered), ordered[min(high, len(ordered) - 1)]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'model':<6} {'parameters':>10} {'ms/step':>8} {'with/without':>13} {'95 % interval':>15}"
    ]
    for row in rows:
        lines.append(
            f"{row['model']:<6} {row['parameters']:>10} {1e3 * row['seconds_per_step']:>8.2f} "
            f"{row['ratio']:>13.4f} {row['ratio_low']:>7.4f}-{row['ratio_high']:.4f}"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], file: str) -> None:
    with _command.picture(file, 1, 1, figsize=(6, 3)) as (_, ((axes,),)):
        axes.boxplot(
            [ratios(row) for row in rows],
            orientation="horizontal",
            tick_labels=[row["model"] for row in rows],
        )
        axes.axvline(1.01, color="gray", linestyle="--")
        axes.set_xlabel("time of steps with a Monitor / without (dashed: 1 %)")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What watching a training costs.")
    parser.add_argument(
        "--blocks", type=at_least(4), metavar="N", help="of the GPT; 1440; 8 with --quick"
    )
    parser.add_argument("--quick", action="store_true")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    blocks = 4 * ((args.blocks or (8 if args.quick else 1440)) // 4)
    facts = _command.print_facts(ranks=2, threads=1, blocks=blocks, steps=STEPS, every=EVERY)
    rows = summary(_ranks.on_this_host(measure, {"blocks": blocks}, 2)["rows"])
    print(table(rows))
    document = {"benchmark": "monitor", "machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
