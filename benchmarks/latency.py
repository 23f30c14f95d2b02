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
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import torch_cgx
from benchmarks import _machine, _stores
from benchmarks._arguments import add_output_arguments, at_least
from benchmarks._report import size_text

SIZES = [4, 16 << 10, 256 << 10]
STAGES = ("encode", "transfer", "decode")
_TIMEOUT = timedelta(seconds=60)


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


def _measure_rank(rank: int, port: int, calls: int, result: str) -> None:
    torch.set_num_threads(1)
    store = _stores.join(port, _TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=_TIMEOUT)
    both = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=32))
    ones = [dist.new_group([r], backend="cgx") for r in range(2)]
    rows: list[dict[str, Any]] = []
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4)
        mine = {"alone": _times(x, ones[rank], calls)}
        dist.barrier()
        mine["whole"] = _times(x, both, calls)
        before = torch_cgx.stats(both)
        for _ in range(calls):
            dist.all_reduce(x, group=both)
        after = torch_cgx.stats(both)
        for stage in STAGES:
            mine[stage] = (after[f"seconds_{stage}"] - before[f"seconds_{stage}"]) / calls
        mine["gloo"] = _times(x, None, max(calls // 10, 20))
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, mine)
        rows.append({"bytes": nbytes} | {k: max(one[k] for one in gathered) for k in mine})
    if rank == 0:
        Path(result).write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure(calls: int) -> list[dict[str, Any]]:
    """One row for each size: seconds by what they are spent on."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = _stores.serve()
    with tempfile.TemporaryDirectory(prefix="cgx-latency-") as folder:
        result = Path(folder) / "measured.json"
        spawn(_measure_rank, args=(store.port, calls, str(result)), nprocs=2)
        rows: list[dict[str, Any]] = json.loads(result.read_text())
    return rows


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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    labels = [size_text(row["bytes"]) for row in rows]
    left = [0.0] * len(rows)
    for name in ("alone", *STAGES):
        width = [row[name] * 1e6 for row in rows]
        axes.barh(labels, width, left=left, label=name)
        left = [a + b for a, b in zip(left, width, strict=True)]
    axes.plot([row["whole"] * 1e6 for row in rows], labels, "k|", markersize=20, label="whole")
    axes.set_xlabel("us per all-reduce over shared memory, 2 ranks")
    axes.legend()
    figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where a small all-reduce spends its time.")
    parser.add_argument("--calls", type=at_least(20), metavar="N", help="3000; 300 with --quick")
    parser.add_argument("--quick", action="store_true")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    calls = args.calls or (300 if args.quick else 3000)
    facts = _machine.facts() | {"ranks": 2, "threads": 1, "calls": calls}
    print(_machine.line(facts), flush=True)
    rows = measure(calls)
    print(table(rows))
    if args.json:
        document = {"benchmark": "latency", "machine": facts, "rows": rows}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
