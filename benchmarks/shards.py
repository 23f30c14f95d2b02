"""The two halves of an all-reduce, which FSDP calls: reduce-scatter and all-gather, against gloo.

    python -m benchmarks.shards [--ranks 2] [--sizes 64K 1M 64M] [--bits 32 8 4 2] [--repeats 21]
        [--quick] [--json FILE] [--plot FILE]

torch_cgx.reduce_scatter_single and torch_cgx.all_gather_single on fp32 over shared memory, in
turns with dist.reduce_scatter_single and dist.all_gather_single of a gloo group in the same
processes. Sizes are of the whole vector of a rank. A time is the slowest rank's, and the median
over the repetitions; the ratio is gloo's time over it in the same repetition, again as a median.
The column of bytes shows the rank that sends most. The run fails where a result is further from
gloo's than the quantization of Gaussian values explains.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import at_least, size_text, spread, time_text
from benchmarks._measure import calls_per_sample, seconds_per_call
from benchmarks._ranks import everyone

SIZES = [64 << 10, 1 << 20, 64 << 20]
OPERATIONS = ("reduce_scatter", "all_gather")
Run = Callable[[], object]


def _run_of(operation: str, bits: int | None, group: Any, whole: Any, part: Any) -> Run:
    """bits: None for a gloo group."""
    if operation == "reduce_scatter":
        if bits is None:
            return lambda: dist.reduce_scatter_single(part, whole, group=group)
        return lambda: torch_cgx.reduce_scatter_single(
            part, whole, group=group, config={"bits": bits}
        )
    if bits is None:
        return lambda: dist.all_gather_single(whole, part, group=group)
    return lambda: torch_cgx.all_gather_single(whole, part, group=group, config={"bits": bits})


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """On a rank: a row for each operation, size and number of bits."""
    gloo, cgx = dist.new_group(backend="gloo"), dist.new_group(backend="cgx")
    ranks, rows = dist.get_world_size(), []
    for operation in OPERATIONS:
        for nbytes in job["sizes"]:
            numel = max(1, nbytes // 4 // ranks)
            torch.manual_seed(dist.get_rank())
            whole, part = torch.randn(numel * ranks), torch.randn(numel)
            runs: dict[int | None, Run] = {None: _run_of(operation, None, gloo, whole, part)}
            runs |= {bits: _run_of(operation, bits, cgx, whole, part) for bits in job["bits"]}
            wanted, sent = _result(operation, runs[None], whole, part), {}
            for bits in job["bits"]:
                torch_cgx.reset_stats(cgx)
                got = _result(operation, runs[bits], whole, part)
                sent[bits] = max(everyone(torch_cgx.stats(cgx)["bytes_sent"]))
                _check(operation, bits, got, wanted)
            times: dict[int | None, list[float]] = {key: [] for key in runs}
            keys, calls = list(runs), calls_per_sample(nbytes, ranks)
            for turn in range(job["repeats"]):
                for k in range(len(keys)):
                    key = keys[(turn + k) % len(keys)]
                    times[key].append(seconds_per_call(runs[key], calls))
            gathered = everyone([times[key] for key in keys])
            slowest = [
                [max(one) for one in zip(*each, strict=True)]
                for each in zip(*gathered, strict=True)
            ]
            base = slowest[0]
            for key, found in zip(keys[1:], slowest[1:], strict=True):
                low, ratio, high = spread([g / t for g, t in zip(base, found, strict=True)])
                rows.append(
                    {
                        "operation": operation,
                        "bytes": 4 * numel * ranks,
                        "bits": key,
                        "seconds": statistics.median(found),
                        "gloo_seconds": statistics.median(base),
                        "ratio": ratio,
                        "ratio_p10": low,
                        "ratio_p90": high,
                        "bytes_sent": sent[key],
                    }
                )
    return {"rows": rows}


def _result(operation: str, run: Run, whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Of one call on the same values each time."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    whole.normal_(generator=generator)
    part.normal_(generator=generator)
    run()
    return (part if operation == "reduce_scatter" else whole).clone()


def _check(operation: str, bits: int, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """RuntimeError for an error that no bucket of normal values has with so many bits."""
    # Half a step of a bucket with values from -6 to 6; of bf16 half an ulp there, 2^-7.
    most = {32: 0.0, 16: 2.0**-6}.get(bits, 6.0 / (2 ** min(bits, 8) - 1))
    added = dist.get_world_size() if operation == "reduce_scatter" else 1
    worst = float((got - wanted).abs().max())
    if worst > added * most + 1e-5:
        raise RuntimeError(f"{operation} with {bits} bits is off by {worst:.4g}")


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'operation':<15} {'size':>6} {'bits':>5} {'time':>11} {'gloo':>11} {'gloo/time':>10} "
        f"p10 - p90    {'sent':>7}"
    ]
    for row in rows:
        between = f"{row['ratio_p10']:.2f} - {row['ratio_p90']:.2f}"
        lines.append(
            f"{row['operation']:<15} {size_text(row['bytes']):>6} {row['bits']:>5} "
            f"{time_text(row['seconds']):>11} {time_text(row['gloo_seconds']):>11} "
            f"{row['ratio']:>10.2f} {between} {size_text(row['bytes_sent']):>10}"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], file: str) -> None:
    with _command.picture(file, 1, 2, figsize=(9, 3.2), sharey=True) as (_, (axes,)):
        for axis, operation in zip(axes, OPERATIONS, strict=True):
            mine = [row for row in rows if row["operation"] == operation]
            for bits in dict.fromkeys(row["bits"] for row in mine):
                line = [row for row in mine if row["bits"] == bits]
                axis.plot(
                    [row["bytes"] for row in line],
                    [row["ratio"] for row in line],
                    "o-",
                    color=_command.color("cgx", bits),
                    label=f"{bits} bits",
                )
            _command.size_axis(axis, sorted({row["bytes"] for row in mine}))
            axis.set_title(operation)
            axis.axhline(1, color="gray", linewidth=1)
        axes[0].set_ylabel("gloo's time over cgx's")
        axes[0].legend()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards",
        description="Reduce-scatter and all-gather on one host, against gloo.",
    )
    parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N")
    _command.add_sizes_argument(parser, "64K 1M 64M")
    parser.add_argument("--bits", type=int, nargs="+", choices=_command.BITS, default=[32, 8, 4, 2])
    parser.add_argument("--repeats", type=at_least(3), metavar="N", help="21; 3 with --quick")
    parser.add_argument("--quick", action="store_true")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    sizes = sorted(set(args.sizes or ([64 << 10] if args.quick else SIZES)))
    repeats = args.repeats or (3 if args.quick else 21)
    job = {"sizes": sizes, "bits": args.bits, "repeats": repeats}
    facts = _command.print_facts(ranks=args.ranks, threads=1, repeats=repeats)
    rows = _ranks.on_this_host(measure, job, args.ranks)["rows"]
    print(table(rows))
    document = {"benchmark": "shards", "machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
