"""Where the time of a small all-reduce over shared memory goes.

    python -m benchmarks.latency [--calls 3000] [--quick] [--json FILE] [--plot FILE]

Two ranks call dist.all_reduce in a tight loop. Beside the whole call, in the same run:

    alone         the same call in a group of one rank: Python, torch's dispatch, and cgx's
                  bookkeeping (record of the call, plan from the cache, the work), but no exchange
    encode, transfer, decode   of the engine, as torch_cgx.stats() counts them: into the peer's
                  memory, waiting for the peer, sum
    gloo          dist.all_reduce on a gloo group

A call is in step with the peer's: nobody comes late. Times are medians over the calls of a rank
(the stages: means), and the slowest rank's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import at_least, size_text
from benchmarks._methods import STAGES
from benchmarks._ranks import everyone

SIZES = [4, 16 << 10, 256 << 10]


def _times(x: torch.Tensor, group: Any, calls: int) -> float:
    """Seconds of one call, the median."""
    for _ in range(calls // 10):
        dist.all_reduce(x, group=group)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        dist.all_reduce(x, group=group)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(calls: int) -> dict[str, Any]:
    """On a rank. One row for each size: seconds by what they are spent on."""
    both = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=32))
    ones = [dist.new_group([r], backend="cgx") for r in range(2)]
    rows: list[dict[str, Any]] = []
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4)
        mine = {"alone": _times(x, ones[dist.get_rank()], calls)}
        dist.barrier()
        mine["whole"] = _times(x, both, calls)
        before = torch_cgx.stats(both)
        for _ in range(calls):
            dist.all_reduce(x, group=both)
        after = torch_cgx.stats(both)
        for stage in STAGES:
            mine[stage] = (after[f"seconds_{stage}"] - before[f"seconds_{stage}"]) / calls
        mine["gloo"] = _times(x, None, max(calls // 10, 20))
        gathered = everyone(mine)
        rows.append({"bytes": nbytes} | {k: max(one[k] for one in gathered) for k in mine})
    return {"rows": rows}


def table(rows: list[dict[str, Any]]) -> str:
    columns = ["whole", "alone", *STAGES, "gloo"]
    lines = ["us".rjust(8) + "".join(name.rjust(10) for name in columns)]
    for row in rows:
        lines.append(
            size_text(row["bytes"]).rjust(8)
            + "".join(f"{row[name] * 1e6:10.1f}" for name in columns)
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], file: str) -> None:
    with _command.picture(file, 1, 1, figsize=(7, 3.2)) as (_, ((axes,),)):
        labels = [size_text(row["bytes"]) for row in rows]
        left = [0.0] * len(rows)
        for name in ("alone", *STAGES):
            width = [row[name] * 1e6 for row in rows]
            axes.barh(labels, width, left=left, label=name)
            left = [a + b for a, b in zip(left, width, strict=True)]
        axes.plot([row["whole"] * 1e6 for row in rows], labels, "k|", markersize=20, label="whole")
        axes.set_xlabel("us per all-reduce over shared memory, 2 ranks")
        axes.legend()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where a small all-reduce spends its time.")
    parser.add_argument("--calls", type=at_least(20), metavar="N", help="3000; 300 with --quick")
    parser.add_argument("--quick", action="store_true")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    calls = args.calls or (300 if args.quick else 3000)
    facts = _command.print_facts(ranks=2, threads=1, calls=calls)
    rows = _ranks.on_this_host(measure, calls, 2)["rows"]
    print(table(rows))
    document = {"benchmark": "latency", "machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
