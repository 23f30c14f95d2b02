"""How fast a GPU encodes and decodes, against a copy of the same values in its memory.

    python benchmarks/gpu_codec.py [--quick] [--json FILE] [--plot FILE]

GB/s of the values (fp32, bf16), and, for the comparison, of all bytes that have to be read and
written: an encoding reads the values and writes the payload, decode+add reads values and payload
and writes values. `of copy` is that rate divided by the rate of a device-to-device copy of the
values, which reads and writes each byte once. Sizes are many times the caches. Every round runs all
measurements once; the table shows medians and the interquartile range. Without a CUDA device
nothing is measured.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _command
from benchmarks._command import NOTHING, at_least
from torch_cgx import _C, _backend

CODES = {torch.float32: 0, torch.bfloat16: 2}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
BITS = range(1, 9)
NUMEL, QUICK_NUMEL = 1 << 28, 1 << 27  # 256 MiB of bf16 at least
OF_COPY = 0.8  # at 4 bits
OF_BEST_WIDTH = 0.85  # the slowest width, of the fastest one

Work = Callable[[], object]


class Clock(Protocol):
    def seconds(self, work: Work, calls: int) -> float:
        """Of one of `calls` calls that are put on the current stream one behind the other."""
        ...


class Events:
    """Between two events on the stream: what the host costs does not count, as long as it is ahead
    of the device.
    """

    def seconds(self, work: Work, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls


class Wall:
    """From an idle device to an idle device: where there are no events that measure."""

    def seconds(self, work: Work, calls: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls


@dataclass
class Case:
    """One measurement. size: bytes of the values; moved: bytes read and written."""

    operation: str
    dtype: str
    bits: int | None
    size: int
    moved: int
    run: Work

    @property
    def name(self) -> str:
        return " ".join(str(x) for x in (self.operation, self.dtype, self.bits) if x is not None)


def make_cases(
    numel: int, bucket_size: int, widths: Sequence[int], rounding: str = "nearest"
) -> list[Case]:
    cases = []
    generator = torch.Generator().manual_seed(0)
    # Few random numbers, many times: making 2^28 takes the CPU seconds.
    seed = torch.randn(min(numel, 1 << 22), generator=generator).to("cuda")
    values = torch.empty(numel, device="cuda")
    for start in range(0, numel, seed.numel()):
        values[start : start + seed.numel()].copy_(seed[: numel - start])
    load = _backend.load_kernels
    for dtype, code in CODES.items():
        name = NAMES[dtype]
        x, y = values.to(dtype), torch.zeros(numel, dtype=dtype, device="cuda")
        cases.append(Case("copy", name, None, x.nbytes, 2 * x.nbytes, lambda x=x, y=y: y.copy_(x)))
        for bits in widths:
            spec = _C.Codec(bits=bits, bucket_size=bucket_size, rounding=rounding, seed=1)
            size = spec.encoded_bytes(numel, dtype)
            sent = torch.empty(size, dtype=torch.uint8, device="cuda")

            def encode(spec: Any = spec, x: Any = x, sent: Any = sent) -> None:
                _C.gpu_codec_encode(spec, x, sent, 1, 0, load)

            def decode(
                add: bool, spec: Any = spec, y: Any = y, sent: Any = sent, code: int = code
            ) -> None:
                _C.gpu_codec_decode(spec, sent, code, y, load, add)

            cases.append(Case("encode", name, bits, x.nbytes, x.nbytes + size, encode))
            cases.append(
                Case("decode", name, bits, x.nbytes, x.nbytes + size, lambda d=decode: d(False))
            )
            if dtype == torch.float32:  # sums are
                moved = 2 * x.nbytes + size
                cases.append(
                    Case("decode+add", name, bits, x.nbytes, moved, lambda d=decode: d(True))
                )
    return cases


def measure(cases: list[Case], clock: Clock, rounds: int, calls: int) -> list[list[float]]:
    """Seconds of each case in each round."""
    for case in cases:  # loads kernels; what is decoded was encoded
        case.run()
    torch.cuda.synchronize()
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        for taken, case in zip(times, cases, strict=True):
            taken.append(clock.seconds(case.run, calls))
    return times


def summarize(cases: list[Case], times: list[list[float]]) -> list[dict[str, Any]]:
    copies = {
        case.dtype: case.moved / statistics.median(taken)
        for case, taken in zip(cases, times, strict=True)
        if case.operation == "copy"
    }
    rows = []
    for case, taken in zip(cases, times, strict=True):
        low, seconds, high = _command.quartiles(taken)
        rows.append(
            {
                "name": case.name,
                "operation": case.operation,
                "dtype": case.dtype,
                "bits": case.bits,
                "seconds": seconds,
                "gb_per_s": case.size / seconds / 1e9,
                "q1": case.size / high / 1e9,
                "q3": case.size / low / 1e9,
                "moved_gb_per_s": case.moved / seconds / 1e9,
                "of_copy": case.moved / seconds / copies[case.dtype],
            }
        )
    return rows


def against_targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the project aims at, what was measured, and whether it is met."""
    found: list[tuple[str, float, float]] = []
    series: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["bits"] is not None:
            series.setdefault((row["operation"], row["dtype"]), {})[row["bits"]] = row["of_copy"]
    for (operation, dtype), by_width in series.items():
        if 4 in by_width and (operation, dtype) != ("decode", "fp32"):
            what = f"{operation} {dtype}, 4 bits, bytes moved / copy"
            found.append((what, OF_COPY, by_width[4]))
        if len(by_width) > 1:
            slowest = min(by_width.values()) / max(by_width.values())
            found.append((f"{operation} {dtype}, slowest / fastest width", OF_BEST_WIDTH, slowest))
    return [
        {"ratio": what, "target": target, "measured": round(got, 3), "met": got >= target}
        for what, target, got in found
    ]


def device_facts() -> dict[str, Any]:
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


def print_tables(rows: list[dict[str, Any]], targets: list[dict[str, Any]]) -> None:
    print(f"{'measurement':<20} {'GB/s':>8} {'q1-q3':>15} {'moved GB/s':>11} {'of copy':>8}")
    for row in rows:
        spread = f"{row['q1']:.0f}-{row['q3']:.0f}"
        print(
            f"{row['name']:<20} {row['gb_per_s']:>8.1f} {spread:>15} "
            f"{row['moved_gb_per_s']:>11.1f} {100 * row['of_copy']:>6.0f} %"
        )
    print(f"\n{'ratio':<48} {'target':>7} {'measured':>9}")
    for row in targets:
        missed = "" if row["met"] else "  missed"
        print(f"{row['ratio']:<48} {row['target']:>7.2f} {row['measured']:>9.2f}{missed}")


def no_gpu() -> bool:
    """True, and said on stderr, where torch sees no GPU."""
    missing = not torch.cuda.is_available()
    if missing:
        print(f"{NOTHING}torch {torch.__version__} sees no CUDA device", file=sys.stderr)
    return missing


def plot(rows: list[dict[str, Any]], title: str, file: str) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["bits"] is not None:
            key = f"{row['operation']} {row['dtype']}"
            lines.setdefault(key, []).append((row["bits"], row["of_copy"]))
    with _command.picture(file, 1, 1, figsize=(7, 4.2)) as (_, ((axis,),)):
        for label, points in lines.items():
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
        axis.axhline(OF_COPY, linestyle="--", color="grey", label="target at 4 bits")
        axis.set(xlabel="bits per value", ylabel="bytes moved per second, of a copy's", title=title)
        axis.set(ylim=(0, None))
        axis.legend()


def main(argv: list[str] | None = None, clock: Clock | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed of the codecs on a GPU.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and values")
    parser.add_argument(
        "--numel", type=at_least(1), help="values (default 2^28; 2^27 with --quick)"
    )
    parser.add_argument("--rounds", type=at_least(1), help="rounds (default 15; 5 with --quick)")
    parser.add_argument("--calls", type=at_least(1), default=5, help="per round and measurement")
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=list(BITS))
    parser.add_argument("--bucket-size", type=at_least(1), default=512)
    parser.add_argument("--rounding", choices=("nearest", "stochastic"), default="nearest")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    if no_gpu():
        return 0
    numel = args.numel or (QUICK_NUMEL if args.quick else NUMEL)
    rounds = args.rounds or (5 if args.quick else 15)
    clock = clock or Events()
    cases = make_cases(numel, args.bucket_size, args.bits, args.rounding)
    rows = summarize(cases, measure(cases, clock, rounds, args.calls))
    facts = _command.print_facts(
        **device_facts(),
        numel=numel,
        rounds=rounds,
        calls=args.calls,
        bucket_size=args.bucket_size,
        rounding=args.rounding,
        clock=type(clock).__name__.lower(),
    )
    targets = against_targets(rows)
    print_tables(rows, targets)
    document = {"machine": facts, "rows": rows, "targets": targets}
    return _command.finish(args, document, lambda file: plot(rows, facts["gpu"], file))


if __name__ == "__main__":
    sys.exit(main())
