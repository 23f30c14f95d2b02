"""All-reduces of CUDA tensors between two processes that share one GPU.

    python benchmarks/gpu_allreduce.py [--quick] [--sizes 1M 64M] [--json FILE] [--plot FILE]

What a call costs besides a wire: the ranks share one GPU's memory and time, so this says nothing of
several GPUs. Compared are cgx over CUDA IPC (exact and compressed), Gloo, and NCCL, which is told
that the ranks are on different hosts, since it takes no two of one GPU otherwise; it then goes
through sockets. Seconds are wall-clock, from a barrier to an idle device, of the slower rank.
Without a CUDA device nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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
from benchmarks._arguments import add_output_arguments, at_least, parse_size
from benchmarks._check import contribution, fingerprint
from benchmarks._parts import NOTHING
from benchmarks._report import size_text
from benchmarks.gpu_codec import device_facts

SIZES = [64 << 10, 1 << 20, 16 << 20, 256 << 20]
QUICK_SIZES = [1 << 20, 64 << 20]
BITS = (32, 8, 4)
_TIMEOUT = timedelta(seconds=120)
_SAMPLE = 64 << 20  # bytes that a sample reduces at least, with up to 20 calls
Method = Callable[[torch.Tensor], object]


def make_methods(nccl: bool) -> dict[str, Method]:
    """By name; collective. The default group is Gloo's."""
    options = torch_cgx.Options(inner_communicator="SHM")
    cgx = dist.new_group(backend="cgx", pg_options=options)

    def compressed(bits: int) -> Method:
        return lambda x: torch_cgx.all_reduce(x, group=cgx, config={"bits": bits})

    methods: dict[str, Method] = {"gloo": dist.all_reduce}
    for bits in BITS:
        methods[f"cgx {'exact' if bits == 32 else f'{bits} bit'}"] = compressed(bits)
    if nccl:
        group = dist.new_group(backend="nccl")
        methods["nccl"] = lambda x: dist.all_reduce(x, group=group)
    return methods


def measure_rank(rank: int, port: int, sizes: list[int], rounds: int, result: str) -> None:
    """What one rank measures; rank 0 writes the rows into the file `result`."""
    torch.set_num_threads(1)
    torch.cuda.set_device(0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = _stores.join(port, _TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=_TIMEOUT)
    # One GPU twice: each rank says that it is on a host of its own. Of no meaning for cgx.
    os.environ.update(NCCL_HOSTID=f"rank-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    methods = make_methods(dist.is_nccl_available())
    rows = [row for nbytes in sizes for row in measure_size(rank, methods, nbytes, rounds)]
    if rank == 0:
        Path(result).write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure_size(
    rank: int, methods: dict[str, Method], nbytes: int, rounds: int
) -> list[dict[str, Any]]:
    numel = nbytes // 4
    x = contribution(rank, numel).to("cuda")
    y = torch.empty_like(x)
    exact = sum(contribution(r, numel).double() for r in range(2))
    norm = exact.norm().item() or 1.0
    checks = {}
    for name, method in methods.items():  # connects, too
        y.copy_(x)
        method(y)
        got = y.cpu()
        checks[name] = (fingerprint(got), (got.double() - exact).norm().item() / norm)
    calls = max(1, min(20, _SAMPLE // nbytes))
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            y.copy_(x)
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                method(y)
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / calls)
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, (checks, times))
    rows = []
    for name in methods:
        seconds = [max(pair) for pair in zip(*(one[1][name] for one in gathered), strict=True)]
        low, median, high = statistics.quantiles(seconds, n=4) if rounds > 1 else seconds * 3
        rows.append(
            {
                "method": name,
                "bytes": nbytes,
                "seconds": median,
                "seconds_q1": low,
                "seconds_q3": high,
                "algbw": nbytes / median / 1e9,
                "equal": gathered[0][0][name][0] == gathered[1][0][name][0],
                "relative_error": max(one[0][name][1] for one in gathered),
            }
        )
    gloo = rows[0]["seconds"]
    return [row | {"of_gloo": gloo / row["seconds"]} for row in rows]


def measure(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    store = _stores.serve()
    with tempfile.TemporaryDirectory(prefix="cgx-gpu-allreduce-") as folder:
        result = Path(folder) / "measured.json"
        spawn(measure_rank, args=(store.port, sizes, rounds, str(result)), nprocs=2)
        rows: list[dict[str, Any]] = json.loads(result.read_text())
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    head = f"{'size':>8} {'method':<10} {'ms':>9} {'GB/s':>8} {'of gloo':>8} {'error':>9}"
    lines = [head]
    for row in rows:
        equal = "" if row["equal"] else "  RANKS DIFFER"
        lines.append(
            f"{size_text(row['bytes']):>8} {row['method']:<10} {row['seconds'] * 1e3:>9.3f} "
            f"{row['algbw']:>8.2f} {row['of_gloo']:>8.2f} {row['relative_error']:>9.1e}{equal}"
        )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], title: str, file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        axis.plot(
            [row["bytes"] for row in mine], [row["algbw"] for row in mine], marker="o", label=name
        )
    axis.set(xlabel="bytes of fp32", ylabel="GB/s", title=f"{title}, shared by two ranks")
    axis.set(xscale="log", yscale="log")
    axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="All-reduces of two ranks on one GPU.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="SIZE", help="bytes of fp32")
    parser.add_argument("--rounds", type=at_least(1), help="rounds (default 15; 5 with --quick)")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(f"{NOTHING}torch {torch.__version__} sees no CUDA device", file=sys.stderr)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rounds = args.rounds or (5 if args.quick else 15)
    rows = measure(args.sizes or (QUICK_SIZES if args.quick else SIZES), rounds)
    facts = _machine.facts() | device_facts() | {"ranks": 2, "gpus": 1, "rounds": rounds}
    print(_machine.line(facts))
    print(table(rows))
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    if args.plot:
        plot(rows, facts["gpu"], args.plot)


if __name__ == "__main__":
    main()
