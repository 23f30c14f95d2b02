"""How fast one core encodes and decodes, against what the memory allows.

    python benchmarks/codec.py [--quick] [--json FILE] [--plot FILE]

All rates are GB/s of the values (their own type; float32 for decoding), on one thread, from memory
that does not fit the caches, and for the rows "256 KiB" from the second-level cache, with its own
roof. Roofs measured in the same rounds: a min-max scan of the same type (encoding), y += x
(decoding), memcpy. Peers: torch's quantize_per_tensor with and without the search for its extremes,
and torch's cast to 16 bits. Rows "rotated", "trellis", "float" and "block" are the codecs of these
names, float with exponent and mantissa. Rows
"Python" are torch_cgx.codecs as a program calls it, with all that Python and torch's dispatcher
cost; their roof is the engine's own figure, without. Rows "1 KiB" show what a call costs. Roofs
and the engine's rows come from tests._machinery, which `make build` builds. Ratios that the project
aims at are printed beside their targets.
Every round runs all measurements once, so a slow phase of the machine meets all of them; the table
shows medians, ratios to the roof, and the spread (interquartile range).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _command
from benchmarks._codec_face import FACE_BITS, L2, NEAREST, SHORT, Case, face_cases
from benchmarks._command import at_least
from tests import _machinery
from torch_cgx import _C

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SMALL = 1 << 16  # values: 256 KiB of float32
KIB = 1 << 8  # values: 1 KiB
BITS = range(1, 9)


# (bits, what, row, row it is divided by, least ratio). Rates are GB/s, so 16-bit inputs that are as
# fast in elements have half the rate.
_RATIOS: list[tuple[Iterable[int], str, str, str, float]] = [
    (BITS, "encode fp32, {b} bits / scan", NEAREST, "scan fp32", 0.7),
    (BITS, "decode+add, {b} bits / y += x", "decode+add {b}", "y += x", 0.8),
    (BITS, "encode, {b} bits, 256 KiB / scan", NEAREST + L2, "scan fp32" + L2, 0.45),
    (BITS, "stochastic / nearest, {b} bits", "encode fp32 {b} stochastic", NEAREST, 0.6),
]
# Widths of the codecs with a rotation, and their least encode / scan; decode+add / y += x.
ROTATIONS: dict[str, tuple[dict[int, float], float]] = {
    "rotated": (dict.fromkeys(BITS, 0.18), 0.14),
    "trellis": ({1: 0.06, 2: 0.06, 3: 0.04, 4: 0.04}, 0.12),
}
for _name, (_encode, _decode) in ROTATIONS.items():
    for _bits, _least in _encode.items():
        _row = f"encode {_name} {_bits}"
        _RATIOS.append(((_bits,), f"{_name} encode, {{b}} bits / scan", _row, "scan fp32", _least))
        _row = f"decode+add {_name} {_bits}"
        _RATIOS.append(
            ((_bits,), f"{_name} decode+add, {{b}} bits / y += x", _row, "y += x", _decode)
        )
FORMATS: dict[str, dict[str, Any]] = {
    "float e4m3": {"exponent": 4, "mantissa": 3},
    "float e3m2": {"exponent": 3, "mantissa": 2},
    "float e4m3 stochastic": {"exponent": 4, "mantissa": 3, "rounding": "stochastic"},
    "block mxfp8_e4m3": {"format": "mxfp8_e4m3"},
    "block mxfp4": {"format": "mxfp4"},
}
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


def codec_of(bits: int, rounding: str, bucket_size: int) -> _C.Codec:
    return _C.Codec(bits=bits, bucket_size=bucket_size, rounding=rounding, seed=1)


def make_cases(numel: int, levels: list[str], bucket_size: int, quick: bool) -> list[Case]:
    torch.manual_seed(0)
    values = torch.randn(numel)
    # Written once, so that no case pays for page faults.
    target = torch.zeros(numel)
    best = levels[-1]
    cases: list[Case] = []

    def roof(name: str, run: Callable[[], Any], size: int = 4 * numel, of: str = "") -> None:
        cases.append(Case(name, best, size, run, of))

    def encode(dtype: torch.dtype, bits: int, rounding: str, level: str) -> None:
        x = values.to(dtype)
        s = codec_of(bits, rounding, bucket_size)
        out = torch.zeros(s.encoded_bytes(numel, dtype), dtype=torch.uint8)
        cases.append(
            Case(
                f"encode {NAMES[dtype]} {bits} {rounding}",
                level,
                x.nbytes,
                lambda: _machinery.codec_encode(
                    s, x.data_ptr(), CODES[dtype], numel, 1, 0, out.data_ptr()
                ),
                f"scan {NAMES[dtype]}",
            )
        )

    def decode(bits: int, add: bool, level: str) -> None:
        s = codec_of(bits, "nearest", bucket_size)
        payload = torch.zeros(s.encoded_bytes(numel, torch.float32), dtype=torch.uint8)
        _machinery.codec_encode(s, values.data_ptr(), 0, numel, 1, 0, payload.data_ptr())
        cases.append(
            Case(
                f"decode{'+add' if add else ''} {bits}",
                level,
                4 * numel,
                lambda: _machinery.codec_decode(
                    s, payload.data_ptr(), 0, numel, target.data_ptr(), add
                ),
                "y += x" if add else "memcpy",
            )
        )

    def scan(x: torch.Tensor, code: int) -> None:
        name = f"scan {NAMES[x.dtype]}"
        roof(name, lambda: _machinery.codec_scan(x.data_ptr(), code, numel), x.nbytes)

    def quantize() -> torch.Tensor:
        low, high = torch.aminmax(values)
        scale = float(high - low) / 255
        return torch.quantize_per_tensor(values, scale, round(-float(low) / scale), torch.quint8)

    for dtype, code in CODES.items():
        scan(values.to(dtype), code)
    roof("y += x", lambda: _machinery.codec_add(values.data_ptr(), 0, numel, target.data_ptr()))
    roof("memcpy", lambda: target.copy_(values))
    roof("torch aminmax", lambda: torch.aminmax(values))
    roof("torch quantize_per_tensor 8", quantize, of="scan fp32")
    roof(
        "torch quantize, extremes known",
        lambda: torch.quantize_per_tensor(values, 0.04, 128, torch.quint8),
        of="scan fp32",
    )
    widths = (1, 4, 8) if quick else BITS
    for bits in widths:
        encode(torch.float32, bits, "nearest", best)
        encode(torch.float32, bits, "stochastic", best)
        decode(bits, False, best)
        decode(bits, True, best)
    for dtype in (torch.float16, torch.bfloat16):
        for bits in (4, 8):
            encode(dtype, bits, "nearest", best)
    for level in levels:
        for name, (by_bits, _) in ROTATIONS.items():
            some = [bits for bits in by_bits if bits in (1, 2, 4) or not quick]
            cases += rotation_cases(name, some if level == best else [2], values, target, level)
    for name, parameters in FORMATS.items():
        made = _C.Codec(name.split()[0], **parameters)
        cases += cases_of(name, made, values, target, best)
    cases += half_cases(values, target, best)
    cases += zeros_cases(values, best)
    cases += face_cases(values, bucket_size, best)
    cases += small_cases(values[:SMALL], widths, bucket_size, best)
    cases += short_cases(values[:KIB], bucket_size, best)
    for level in levels[:-1]:
        for dtype in (torch.float16, torch.bfloat16):
            encode(dtype, 4, "nearest", level)
        encode(torch.float32, 4, "nearest", level)
        encode(torch.float32, 4, "stochastic", level)
        decode(4, True, level)
    return cases


def rotation_cases(
    name: str, widths: Iterable[int], values: torch.Tensor, target: torch.Tensor, level: str
) -> list[Case]:
    """Codecs with a rotation, in blocks of their default size."""
    cases = []
    for bits in widths:
        s = _C.Codec(name, bits=bits)
        cases += cases_of(f"{name} {bits}", s, values, target, level)
    return cases


def cases_of(
    name: str, s: _C.Codec, values: torch.Tensor, target: torch.Tensor, level: str
) -> list[Case]:
    n = values.numel()
    payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

    def encode() -> None:
        _machinery.codec_encode(s, values.data_ptr(), 0, n, 1, 0, payload.data_ptr())

    def decode() -> None:
        _machinery.codec_decode(s, payload.data_ptr(), 0, n, target.data_ptr(), True)

    encode()
    return [
        Case(f"encode {name}", level, values.nbytes, encode, "scan fp32"),
        Case(f"decode+add {name}", level, values.nbytes, decode, "y += x"),
    ]


def zeros_cases(values: torch.Tensor, level: str) -> list[Case]:
    """What `exact_zeros` costs, of values half of which are zeros."""
    cases = []
    n = values.numel()
    sparse = torch.where(torch.arange(n) % 2 == 0, values, 0.0)
    for bits, on in itertools.product((2, 4, 8), (False, True)):
        s = _C.Codec("maxmin", bits=bits, exact_zeros=on)
        payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

        def encode(s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_encode(s, sparse.data_ptr(), 0, n, 1, 0, payload.data_ptr())

        name = f"encode fp32 {bits} half zeros{', exact_zeros' if on else ''}"
        cases.append(Case(name, level, values.nbytes, encode, "scan fp32"))
    return cases


def half_cases(values: torch.Tensor, target: torch.Tensor, level: str) -> list[Case]:
    """bits=16: casts to the wire and sums from it, beside torch's."""
    cases = []
    n = values.numel()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        s = _C.Codec(name)
        wire = values.to(dtype)

        def encode(s: Any = s, wire: torch.Tensor = wire) -> None:
            _machinery.codec_encode(s, values.data_ptr(), 0, n, 0, 0, wire.data_ptr())

        def decode(s: Any = s, wire: torch.Tensor = wire) -> None:
            _machinery.codec_decode(s, wire.data_ptr(), 0, n, target.data_ptr(), True)

        def cast(wire: torch.Tensor = wire) -> None:
            wire.copy_(values)

        def add(wire: torch.Tensor = wire) -> None:
            target.add_(wire)

        size = values.nbytes
        cases += [
            Case(f"encode {name} wire", level, size, encode, "scan fp32"),
            Case(f"torch cast to {name}", level, size, cast, "scan fp32"),
            Case(f"decode+add {name} wire", level, size, decode, "y += x"),
            Case(f"torch add of {name}", level, size, add, "y += x"),
        ]
    return cases


def small_cases(
    values: torch.Tensor, widths: Iterable[int], bucket_size: int, level: str
) -> list[Case]:
    """Values that stay in the second-level cache; many calls per sample."""
    n, calls = values.numel(), 100
    target = torch.zeros(n)
    cases: list[Case] = []

    def case(name: str, roof: str, run: Callable[[int], Any]) -> None:
        whole, empty = (lambda: run(n)), (lambda: run(1))
        cases.append(Case(name + L2, level, 4 * n, whole, roof, calls, empty))

    case("scan fp32", "", lambda count: _machinery.codec_scan(values.data_ptr(), 0, count))
    case(
        "y += x",
        "",
        lambda count: _machinery.codec_add(values.data_ptr(), 0, count, target.data_ptr()),
    )
    for bits in widths:
        for rounding in ("nearest", "stochastic"):
            s = codec_of(bits, rounding, bucket_size)
            payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

            def encode(count: int, s: Any = s, payload: torch.Tensor = payload) -> None:
                _machinery.codec_encode(s, values.data_ptr(), 0, count, 1, 0, payload.data_ptr())

            case(f"encode fp32 {bits} {rounding}", "scan fp32" + L2, encode)

        def decode(add: bool, count: int, s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_decode(s, payload.data_ptr(), 0, count, target.data_ptr(), add)

        encode(n)
        case(f"decode+add {bits}", "y += x" + L2, partial(decode, True))
        if bits in FACE_BITS:
            case(f"decode {bits}", "", partial(decode, False))
    return cases + face_cases(values, bucket_size, level, L2, calls)


def short_cases(values: torch.Tensor, bucket_size: int, level: str) -> list[Case]:
    """1 KiB: the engine's functions, called from Python without torch, and torch_cgx.codecs."""
    n, calls = values.numel(), 1000
    target = torch.zeros(n)
    cases: list[Case] = []
    for bits in FACE_BITS:
        s = codec_of(bits, "nearest", bucket_size)
        payload = torch.zeros(s.encoded_bytes(n, torch.float32), dtype=torch.uint8)

        def encode(s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_encode(s, values.data_ptr(), 0, n, 1, 0, payload.data_ptr())

        def decode(add: bool, s: Any = s, payload: torch.Tensor = payload) -> None:
            _machinery.codec_decode(s, payload.data_ptr(), 0, n, target.data_ptr(), add)

        encode()
        for name, run in (
            (NEAREST.format(b=bits), encode),
            (f"decode {bits}", partial(decode, False)),
            (f"decode+add {bits}", partial(decode, True)),
        ):
            cases.append(Case(name + SHORT, level, values.nbytes, run, "", calls))
    return cases + face_cases(values, bucket_size, level, SHORT, calls)


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
