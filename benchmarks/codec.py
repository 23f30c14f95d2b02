"""How fast one core encodes and decodes, against what the memory allows.

    python benchmarks/codec.py [--quick] [--json FILE] [--plot FILE]

All rates are GB/s of the values (their own type; float32 for decoding), on one thread, from memory
that does not fit the caches, and for the rows "256 KiB" from the second-level cache, with its own
roof. Roofs measured in the same rounds: a min-max scan of the same type (encoding), y += x
(decoding), memcpy. Peers: torch's quantize_per_tensor with and without the search for its extremes,
and torch's cast to 16 bits. Rows "rotated", "trellis", "float" and "block" are the codecs of these
names, float with exponent and mantissa. Rows "Python" are torch_cgx.codecs as a program calls it,
with all that Python and torch's dispatcher cost; their roof is the engine's own figure, without.
Rows "1 KiB" show what a call costs. Roofs and the engine's rows come from tests._machinery, which
`make build` builds. Ratios that the project aims at are printed beside their targets.
Every round runs all measurements once, so a slow phase of the machine meets all of them; the table
shows medians, ratios to the roof, and the spread (interquartile range).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _command
from benchmarks._codec_cases import BITS, ROTATIONS, make_cases
from benchmarks._codec_face import FACE_BITS, L2, NEAREST, Case
from benchmarks._command import at_least
from tests import _machinery
from torch_cgx import _C

# (bits, what, row, row it is divided by, least ratio). Rates are GB/s, so 16-bit inputs that are as
# fast in elements have half the rate.
_RATIOS: list[tuple[Iterable[int], str, str, str, float]] = [
    (BITS, "encode fp32, {b} bits / scan", NEAREST, "scan fp32", 0.7),
    (BITS, "decode+add, {b} bits / y += x", "decode+add {b}", "y += x", 0.8),
    (BITS, "encode, {b} bits, 256 KiB / scan", NEAREST + L2, "scan fp32" + L2, 0.45),
    (BITS, "stochastic / nearest, {b} bits", "encode fp32 {b} stochastic", NEAREST, 0.6),
]
for _name, (_encode, _decode) in ROTATIONS.items():
    for _bits, _least in _encode.items():
        _row = f"encode {_name} {_bits}"
        _RATIOS.append(((_bits,), f"{_name} encode, {{b}} bits / scan", _row, "scan fp32", _least))
        _row = f"decode+add {_name} {_bits}"
        _RATIOS.append(
            ((_bits,), f"{_name} decode+add, {{b}} bits / y += x", _row, "y += x", _decode)
        )
for _type in ("fp16", "bf16"):
    _what = f"{_type} / fp32 input, {{b}} bits, elements"
    _RATIOS.append(((4, 8), _what, f"encode {_type} {{b}} nearest", NEAREST, 0.5))
for _size, _least in (("", 0.9), (L2, 0.7)):
    for _row in (NEAREST + _size, "decode {b}" + _size, "decode+add {b}" + _size):
        _RATIOS.append((FACE_BITS, f"Python / engine, {_row}", f"Python {_row}", _row, _least))
    for _trip in ("roundtrip", "roundtrip in place"):
        _row, _two = f"Python {_trip} {{b}}{_size}", f"Python encode, decode {{b}}{_size}"
        _RATIOS.append(
            (FACE_BITS, f"{_trip} / encode and decode, {{b}} bits{_size}", _row, _two, 1.0)
        )
TARGETS = [
    (what.format(b=b), row.format(b=b), by.format(b=b), least)
    for widths, what, row, by, least in _RATIOS
    for b in widths
]


def measure(cases: list[Case], rounds: int) -> list[list[float]]:
    """GB/s of each case in each round."""
    rates: list[list[float]] = [[] for _ in cases]
    for turn in range(rounds + 1):
        for case, rate in zip(cases, rates, strict=True):
            _machinery.pin_cpu_level(case.level)
            start = time.perf_counter()
            for _ in range(case.calls):
                case.run()
            seconds = time.perf_counter() - start
            if case.empty is not None:
                start = time.perf_counter()
                for _ in range(case.calls):
                    case.empty()
                seconds -= time.perf_counter() - start
            seconds /= case.calls
            if turn > 0:  # the first round warms up
                rate.append(case.size / seconds / 1e9)
    _machinery.pin_cpu_level("")
    return rates


def summarize(cases: list[Case], rates: list[list[float]], best: str) -> list[dict[str, Any]]:
    """A row per case. best: the level that roofs were measured on."""
    medians = {
        case.name: statistics.median(rate)
        for case, rate in zip(cases, rates, strict=True)
        if case.level == best
    }
    rows = []
    for case, rate in zip(cases, rates, strict=True):
        low, median, high = _command.quartiles(rate)
        rows.append(
            {
                "name": case.name,
                "level": case.level,
                "gb_per_s": round(median, 3),
                "q1": round(low, 3),
                "q3": round(high, 3),
                "roof": case.roof,
                "of_roof": round(median / medians[case.roof], 3) if case.roof else None,
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'measurement':<38} {'level':<7} {'GB/s':>7} {'q1-q3':>13} {'of roof':>8}  roof")
    for row in rows:
        share = "" if row["of_roof"] is None else f"{100 * row['of_roof']:.0f} %"
        spread = f"{row['q1']:.2f}-{row['q3']:.2f}"
        print(
            f"{row['name']:<38} {row['level']:<7} {row['gb_per_s']:>7.2f} {spread:>13} "
            f"{share:>8}  {row['roof']}"
        )


def against_targets(rows: list[dict[str, Any]], level: str) -> list[dict[str, Any]]:
    """The ratios of TARGETS that were measured, on that level."""
    rates = {row["name"]: row["gb_per_s"] for row in rows if row["level"] == level}
    return [
        {"ratio": what, "target": least, "measured": round(rates[row] / rates[by], 3)}
        for what, row, by, least in TARGETS
        if row in rates and by in rates
    ]


def print_targets(ratios: list[dict[str, Any]]) -> None:
    print(f"\n{'ratio (GB/s by GB/s)':<50} {'target':>7} {'measured':>9}")
    for row in ratios:
        missed = "" if row["measured"] >= row["target"] else "  missed"
        print(f"{row['ratio']:<50} {row['target']:>7.2f} {row['measured']:>9.2f}{missed}")


def plot(rows: list[dict[str, Any]], best: str, file: str) -> None:
    panels = (
        (
            "encode fp32",
            {"nearest": "encode fp32 {} nearest", "stochastic": "encode fp32 {} stochastic"},
            "scan fp32",
        ),
        ("decode to fp32", {"store": "decode {}", "add": "decode+add {}"}, "y += x"),
    )
    known = {row["name"]: row for row in rows if row["level"] == best}
    with _command.picture(file, 1, 2, figsize=(11, 4.2), sharey=True) as (_, axes):
        for axis, (title, series, roof) in zip(axes[0], panels, strict=True):
            for label, name in series.items():
                bits = [b for b in BITS if name.format(b) in known]
                found = [known[name.format(b)] for b in bits]
                y = [row["gb_per_s"] for row in found]
                errors = [
                    [row["gb_per_s"] - row["q1"] for row in found],
                    [row["q3"] - row["gb_per_s"] for row in found],
                ]
                axis.errorbar(bits, y, yerr=errors, marker="o", capsize=3, label=label)
            rate = known[roof]["gb_per_s"]
            axis.axhline(rate, linestyle="--", color="grey", label=f"roof: {roof}")
            axis.set(title=f"{title} ({best}, one core)", xlabel="bits per value")
            axis.legend()
        axes[0][0].set(ylabel="GB/s of float32", ylim=(0, None))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed of the codecs on one core.")
    parser.add_argument("--quick", action="store_true", help="fewer widths, rounds and values")
    parser.add_argument(
        "--numel", type=at_least(1), help="values (default 2^24; 2^23 with --quick)"
    )
    parser.add_argument("--rounds", type=at_least(1), help="rounds (default 15; 5 with --quick)")
    parser.add_argument("--bucket-size", type=at_least(1), default=512)
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    levels = _C.cpu_levels().split(",")
    best = levels[-1]
    numel = args.numel or (1 << 23 if args.quick else 1 << 24)
    rounds = args.rounds or (5 if args.quick else 15)
    cases = make_cases(numel, levels, args.bucket_size, args.quick)
    rows = summarize(cases, measure(cases, rounds), best)
    facts = _command.print_facts(
        levels=levels, numel=numel, rounds=rounds, bucket_size=args.bucket_size
    )
    print_table(rows)
    ratios = against_targets(rows, best)
    print_targets(ratios)
    document = {"machine": facts, "rows": rows, "targets": ratios}
    return _command.finish(args, document, lambda file: plot(rows, best, file))


if __name__ == "__main__":
    sys.exit(main())
