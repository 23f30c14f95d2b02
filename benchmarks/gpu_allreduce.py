"""All-reduces of CUDA tensors between two processes that share one GPU.

    python benchmarks/gpu_allreduce.py [--quick] [--sizes 1M 64M] [--json FILE] [--plot FILE]

What a call costs besides a wire: the ranks share one GPU's memory and time, so this says nothing of
several GPUs. It compares cgx over CUDA IPC (exact and compressed), Gloo, and NCCL. NCCL takes two
ranks of one GPU only where each sets its own NCCL_HOSTID; it then goes through sockets. Where it
refuses even so, its rows hold `refused`, the error, instead of times. Seconds are wall-clock, from
a barrier to an idle device, of the slower rank. Without a CUDA device nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import at_least, size_text
from benchmarks._methods import contribution, fingerprint
from benchmarks._ranks import everyone
from benchmarks.gpu_codec import device_facts, no_gpu

SIZES = [64 << 10, 1 << 20, 16 << 20, 256 << 20]
QUICK_SIZES = [1 << 20, 64 << 20]
BITS = (32, 8, 4)
_NCCL_TIMEOUT = timedelta(seconds=60)
_SAMPLE = 64 << 20  # bytes that a sample reduces at least, with up to 20 calls
Method = Callable[[torch.Tensor], object]


def make_methods(nccl: bool) -> tuple[dict[str, Method], dict[str, str]]:
    """Methods by name, and why others are refused; collective. The default group is Gloo's."""
    options = torch_cgx.Options(inner_communicator="SHM")
    cgx = dist.new_group(backend="cgx", pg_options=options)

    def compressed(bits: int) -> Method:
        return lambda x: torch_cgx.all_reduce(x, group=cgx, config={"bits": bits})

    methods: dict[str, Method] = {"gloo": dist.all_reduce}
    for bits in BITS:
        methods[f"cgx {'exact' if bits == 32 else f'{bits} bit'}"] = compressed(bits)
    refused = {}
    if nccl:
        found = connect_nccl()
        if isinstance(found, str):
            refused["nccl"] = found
        else:
            methods["nccl"] = found
    return methods, refused


def connect_nccl() -> Method | str:
    """NCCL's all-reduce, or the first line of its error: the same on all ranks, because a rank that
    measured alone would wait for the others. Collective.
    """
    error = ""
    group = None
    try:
        group = dist.new_group(backend="nccl", timeout=_NCCL_TIMEOUT)
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)  # NCCL connects here
        torch.cuda.synchronize()
    except Exception as refusal:  # torch's own, NCCL's, the driver's
        lines = str(refusal).strip().splitlines()
        error = lines[0] if lines else type(refusal).__name__
    for one in everyone(error):
        if one:
            return str(one)
    return lambda x: dist.all_reduce(x, group=group)


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """On a rank. job: sizes, rounds."""
    torch.cuda.set_device(0)
    # One GPU twice: each rank says that it is on a host of its own. Of no meaning for cgx.
    host = f"rank-{dist.get_rank()}"
    os.environ.update(NCCL_HOSTID=host, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    methods, refused = make_methods(dist.is_nccl_available())
    rows: list[dict[str, Any]] = []
    for nbytes in job["sizes"]:
        rows += measure_size(methods, nbytes, job["rounds"])
        rows += [{"method": name, "bytes": nbytes, "refused": why} for name, why in refused.items()]
    return {"rows": rows}


def measure_size(methods: dict[str, Method], nbytes: int, rounds: int) -> list[dict[str, Any]]:
    numel = nbytes // 4
    x = contribution(dist.get_rank(), numel).to("cuda")
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
    gathered = everyone((checks, times))
    rows = []
    for name in methods:
        seconds = [max(pair) for pair in zip(*(one[1][name] for one in gathered), strict=True)]
        low, median, high = _command.quartiles(seconds)
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


def table(rows: list[dict[str, Any]]) -> str:
    head = f"{'size':>8} {'method':<10} {'ms':>9} {'GB/s':>8} {'of gloo':>8} {'error':>9}"
    lines = [head]
    for row in rows:
        if "refused" in row:
            text = f"refused: {row['refused']}"
            lines.append(f"{size_text(row['bytes']):>8} {row['method']:<10} {text}")
            continue
        equal = "" if row["equal"] else "  RANKS DIFFER"
        lines.append(
            f"{size_text(row['bytes']):>8} {row['method']:<10} {row['seconds'] * 1e3:>9.3f} "
            f"{row['algbw']:>8.2f} {row['of_gloo']:>8.2f} {row['relative_error']:>9.1e}{equal}"
        )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], title: str, file: str) -> None:
    rows = [row for row in rows if "refused" not in row]
    with _command.picture(file, 1, 1, figsize=(7, 4.2)) as (_, ((axis,),)):
        for name in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == name]
            sizes, rates = ([row[key] for row in mine] for key in ("bytes", "algbw"))
            axis.plot(sizes, rates, marker="o", label=name)
        axis.set(xlabel="bytes of fp32", ylabel="GB/s", title=f"{title}, shared by two ranks")
        axis.set(xscale="log", yscale="log")
        axis.legend()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="All-reduces of two ranks on one GPU.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    _command.add_sizes_argument(parser, "1M, 64M")
    parser.add_argument("--rounds", type=at_least(1), help="rounds (default 15; 5 with --quick)")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    if no_gpu():
        return 0
    rounds = args.rounds or (5 if args.quick else 15)
    job = {"sizes": args.sizes or (QUICK_SIZES if args.quick else SIZES), "rounds": rounds}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks inherit it
    rows = _ranks.on_this_host(measure, job, 2)["rows"]
    facts = _command.print_facts(**device_facts(), ranks=2, gpus=1, rounds=rounds)
    print(table(rows))
    document = {"machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: plot(rows, facts["gpu"], file))


if __name__ == "__main__":
    sys.exit(main())
