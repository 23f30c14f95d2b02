"""How fast one core encodes and decodes, against what the memory allows.

    python benchmarks/codec.py [--quick] [--json FILE] [--plot FILE]

All rates are GB/s of the values (their own type; float32 for decoding), on one thread, from memory
that does not fit the caches. Roofs measured in the same rounds: a min-max scan of the same type
(encoding), y += x (decoding), memcpy, and torch's quantize_per_tensor after aminmax as the peer.
Every round runs all measurements once, so a slow phase of the machine meets all of them; the table
shows medians, ratios to the roof, and the spread (interquartile range).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _machine
from benchmarks._arguments import add_output_arguments, at_least
from torch_cgx import _C  # type: ignore[attr-defined]

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass
class Case:
    """One measurement: `run` moves `size` bytes of values; `roof` names the case that it is
    compared with."""

    name: str
    level: str
    size: int
    run: Callable[[], Any]
    roof: str = ""


def spec(bits: int, rounding: str, bucket_size: int) -> tuple[str, int, int, str, bool, int]:
    return ("maxmin", bits, bucket_size, rounding, False, 1)


def make_cases(numel: int, levels: list[str], bucket_size: int, quick: bool) -> list[Case]:
    torch.manual_seed(0)
    values = torch.randn(numel)
    # Written once, so that no case pays for page faults.
    target = torch.zeros(numel)
    best = levels[-1]
    cases: list[Case] = []

    def encode(dtype: torch.dtype, bits: int, rounding: str, level: str) -> None:
        x = values.to(dtype)
        s = spec(bits, rounding, bucket_size)
        out = torch.zeros(_C.codec_encoded_bytes(*s, numel, CODES[dtype]), dtype=torch.uint8)
        cases.append(
            Case(
                f"encode {NAMES[dtype]} {bits} {rounding}",
                level,
                x.nbytes,
                lambda: _C.codec_encode(
                    *s, x.data_ptr(), CODES[dtype], numel, 1, 0, out.data_ptr()
                ),
                f"scan {NAMES[dtype]}",
            )
        )

    def decode(bits: int, add: bool, level: str) -> None:
        s = spec(bits, "nearest", bucket_size)
        payload = torch.zeros(_C.codec_encoded_bytes(*s, numel, 0), dtype=torch.uint8)
        _C.codec_encode(*s, values.data_ptr(), 0, numel, 1, 0, payload.data_ptr())
        cases.append(
            Case(
                f"decode{'+add' if add else ''} {bits}",
                level,
                4 * numel,
                lambda: _C.codec_decode(*s, payload.data_ptr(), 0, numel, target.data_ptr(), add),
                "y += x" if add else "memcpy",
            )
        )

    for dtype in CODES:
        x = values.to(dtype)
        cases.append(
            Case(
                f"scan {NAMES[dtype]}",
                best,
                x.nbytes,
                lambda x=x: _C.codec_scan(x.data_ptr(), CODES[x.dtype], numel),
            )
        )
    cases.append(
        Case(
            "y += x",
            best,
            4 * numel,
            lambda: _C.codec_add(values.data_ptr(), 0, numel, target.data_ptr()),
        )
    )
    cases.append(Case("memcpy", best, 4 * numel, lambda: target.copy_(values)))
    cases.append(Case("torch aminmax", best, 4 * numel, lambda: torch.aminmax(values)))

    def peer() -> torch.Tensor:
        low, high = torch.aminmax(values)
        scale = float(high - low) / 255
        return torch.quantize_per_tensor(values, scale, round(-float(low) / scale), torch.quint8)

    cases.append(Case("torch quantize_per_tensor 8", best, 4 * numel, peer, "scan fp32"))
    widths = (1, 4, 8) if quick else range(1, 9)
    for bits in widths:
        encode(torch.float32, bits, "nearest", best)
        encode(torch.float32, bits, "stochastic", best)
        decode(bits, False, best)
        decode(bits, True, best)
    for dtype in (torch.float16, torch.bfloat16):
        for bits in (4, 8):
            encode(dtype, bits, "nearest", best)
    for level in levels[:-1]:
        encode(torch.float32, 4, "nearest", level)
        encode(torch.float32, 4, "stochastic", level)
        decode(4, True, level)
    return cases


def measure(cases: list[Case], rounds: int) -> list[list[float]]:
    """GB/s of each case in each round."""
    rates: list[list[float]] = [[] for _ in cases]
    for turn in range(rounds + 1):
        for case, rate in zip(cases, rates, strict=True):
            _C.set_cpu_level(case.level)
            start = time.perf_counter()
            case.run()
            seconds = time.perf_counter() - start
            if turn > 0:  # the first round warms up
                rate.append(case.size / seconds / 1e9)
    _C.set_cpu_level("")
    return rates


def summarize(cases: list[Case], rates: list[list[float]]) -> list[dict[str, Any]]:
    medians = {
        case.name: statistics.median(r)
        for case, r in zip(cases, rates, strict=True)
        if not case.roof
    }
    rows = []
    for case, rate in zip(cases, rates, strict=True):
        quartiles = statistics.quantiles(rate, n=4) if len(rate) > 1 else [rate[0]] * 3
        rows.append(
            {
                "name": case.name,
                "level": case.level,
                "gb_per_s": round(statistics.median(rate), 3),
                "q1": round(quartiles[0], 3),
                "q3": round(quartiles[2], 3),
                "roof": case.roof,
                "of_roof": round(statistics.median(rate) / medians[case.roof], 3)
                if case.roof
                else None,
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'measurement':<30} {'level':<7} {'GB/s':>7} {'q1-q3':>13} {'of roof':>8}  roof")
    for row in rows:
        share = "" if row["of_roof"] is None else f"{100 * row['of_roof']:.0f} %"
        spread = f"{row['q1']:.2f}-{row['q3']:.2f}"
        print(
            f"{row['name']:<30} {row['level']:<7} {row['gb_per_s']:>7.2f} {spread:>13} "
            f"{share:>8}  {row['roof']}"
        )


def plot(rows: list[dict[str, Any]], levels: list[str], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    best = levels[-1]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    panels = (
        (
            "encode fp32",
            (("encode fp32 {} nearest", "nearest"), ("encode fp32 {} stochastic", "stochastic")),
            "scan fp32",
        ),
        ("decode to fp32", (("decode {}", "store"), ("decode+add {}", "add")), "y += x"),
    )
    known = {row["name"]: row for row in rows if row["level"] == best}
    for axis, (title, series, roof) in zip(axes, panels, strict=True):
        for pattern, label in series:
            found = [
                (b, known[pattern.format(b)]) for b in range(1, 9) if pattern.format(b) in known
            ]
            y = [row["gb_per_s"] for _, row in found]
            errors = [
                [row["gb_per_s"] - row["q1"] for _, row in found],
                [row["q3"] - row["gb_per_s"] for _, row in found],
            ]
            axis.errorbar([b for b, _ in found], y, yerr=errors, marker="o", capsize=3, label=label)
        axis.axhline(known[roof]["gb_per_s"], linestyle="--", color="grey", label=f"roof: {roof}")
        axis.set(title=f"{title} ({best}, one core)", xlabel="bits per value")
        axis.legend()
    axes[0].set(ylabel="GB/s of float32", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the codecs on one core.")
    parser.add_argument("--quick", action="store_true", help="fewer widths, rounds and values")
    parser.add_argument(
        "--numel", type=at_least(1), help="values (default 2^24; 2^23 with --quick)"
    )
    parser.add_argument("--rounds", type=at_least(1), help="rounds (default 15; 5 with --quick)")
    parser.add_argument("--bucket-size", type=at_least(1), default=512)
    add_output_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    levels = _C.cpu_levels().split(",")
    numel = args.numel or (1 << 23 if args.quick else 1 << 24)
    rounds = args.rounds or (5 if args.quick else 15)
    cases = make_cases(numel, levels, args.bucket_size, args.quick)
    rows = summarize(cases, measure(cases, rounds))
    facts = _machine.facts() | {"levels": levels, "numel": numel, "rounds": rounds}
    facts["bucket_size"] = args.bucket_size
    print(_machine.line(facts))
    print_table(rows)
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    if args.plot:
        plot(rows, levels, args.plot)


if __name__ == "__main__":
    main()
