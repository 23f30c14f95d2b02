"""BDI and the two functions of cuda_float_compress: ratio and speed of one core.

    python -m benchmarks.bdi [--quick] [--words N] [--rounds N] [--json FILE] [--plot FILE]

BDI gets words that lie close together: sorted indices, addresses of two regions, 8-bit weights,
float32 values near 1000 (docs/bdi.md), lossless and with scales. cuszplus_compress and
cuszplus_decompress get values N(0, 0.02). Ratio: bytes of the input over bytes of the payload.
Rates are GB/s of the input's bytes on one thread, medians over rounds in which everything is
measured once, with quartiles. Every result is compared with its input; an error out of the bound
fails the benchmark.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _command
from benchmarks._command import at_least, quartiles
from torch_cgx.bounded import bdi
from torch_cgx.bounded.bdi import Compression, Config
from torch_cgx.compat.cuda_float_compress import cuszplus_compress, cuszplus_decompress

Row = dict[str, Any]
WAYS = ("compress", "decompress")
REGIONS = (0x10000000, 0x7F000000)  # addresses begin there
NEAR_1000 = 0x4479C000  # 999.0 as float32: below all of 1000 + N(0, 0.1)


@dataclasses.dataclass(frozen=True)
class Case:
    """holds: whether a decoded tensor is within the bound."""

    method: str
    values: str
    options: str
    input: torch.Tensor
    compress: Callable[[torch.Tensor], torch.Tensor]
    decompress: Callable[[torch.Tensor], torch.Tensor]
    holds: Callable[[torch.Tensor], bool]


def inputs(words: int) -> dict[str, torch.Tensor]:
    """The same values in every run."""
    g = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 8, (words,), generator=g)
    regions = torch.tensor(REGIONS)[torch.randint(0, 2, (words,), generator=g)]
    offsets = 8 * torch.randint(0, 1 << 13, (words,), generator=g)
    weights = torch.randn(words, generator=g) * 0.02
    return {
        "sorted indices": (steps.cumsum(0) % 2**31).to(torch.int32),
        "addresses": (regions + offsets).to(torch.int32).view(torch.uint32),
        "8-bit weights": (weights / 0.1 * 127).round().clamp(-127, 127).to(torch.int32),
        "float32 near 1000": 1000 + 5 * weights,
        "N(0,.02)": weights,
    }


def cases(words: int) -> list[Case]:
    """BDI first."""
    values = inputs(words)
    one = [Config(1, 32, 9)]
    four = [Config(1, 32, size) for size in (8, 9, 12, 16)]
    signed, small = (0, 2**32 - 128), [Config(0, 32, 7)]
    near = [Config(0, 32, 15)]
    shifted = [Config(0, 32, 5)]
    found = [
        bdi_case(name, options, values[name], compression)
        for name, options, compression in (
            ("sorted indices", "1 configuration", Compression(one)),
            ("sorted indices", "4 configurations", Compression(four)),
            ("addresses", "2 immediates", Compression([Config(0, 32, 16)], immediates=REGIONS)),
            ("8-bit weights", "lossless", Compression(small, immediates=signed)),
            (
                "8-bit weights",
                "bound 4",
                Compression(shifted, immediates=signed, scale_factor_delta=2),
            ),
            (
                "8-bit weights",
                "bound 4, stochastic",
                Compression(
                    shifted,
                    immediates=signed,
                    scale_factor_delta=2,
                    use_stochastic_rounding=True,
                ),
            ),
            ("float32 near 1000", "lossless", Compression(near, immediates=(0, NEAR_1000))),
            (
                "float32 near 1000",
                "bound 16",
                Compression(
                    [Config(0, 28, 11)], immediates=(0, NEAR_1000 >> 4), scale_factor_init=4
                ),
            ),
        )
    ]
    for max_error in (1e-4, 1e-3):
        x = values["N(0,.02)"]
        found.append(
            Case(
                "cuda_float_compress",
                "N(0,.02)",
                f"bound {max_error:g}",
                x,
                partial(cuszplus_compress, max_error=max_error),
                partial(cuszplus_decompress, device="cpu"),
                partial(_within, x, max_error),
            )
        )
    return found


def bdi_case(name: str, options: str, words: torch.Tensor, compression: Compression) -> Case:
    def holds(back: torch.Tensor) -> bool:
        return int((_numbers(words) - _numbers(back)).abs().max()) < compression.error_bound

    return Case("BDI", name, options, words, compression.compress, bdi.decompress, holds)


def _numbers(words: torch.Tensor) -> torch.Tensor:
    """Bits of the words as numbers from 0 to 2**32 - 1."""
    return words.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _within(x: torch.Tensor, max_error: float, y: torch.Tensor) -> bool:
    return float((x.double() - y.double()).abs().max()) <= max_error


def measure(words: int, rounds: int) -> list[Row]:
    """A row for each case; the first round warms up."""
    torch.set_num_threads(1)
    some = cases(words)
    seconds: list[dict[str, list[float]]] = [{way: [] for way in WAYS} for _ in some]
    rows: list[Row] = []
    for turn in range(rounds + 1):
        for case, taken in zip(some, seconds, strict=True):
            start = time.perf_counter()
            payload = case.compress(case.input)
            between = time.perf_counter()
            back = case.decompress(payload)
            end = time.perf_counter()
            if turn == 0:
                row = {"method": case.method, "values": case.values, "options": case.options}
                row |= {"dtype": str(case.input.dtype).removeprefix("torch.")}
                row |= {"bytes": case.input.nbytes, "payload_bytes": payload.numel()}
                row |= {"ratio": case.input.nbytes / payload.numel(), "held": case.holds(back)}
                rows.append(row)
            else:
                taken["compress"].append(between - start)
                taken["decompress"].append(end - between)
    for row, taken in zip(rows, seconds, strict=True):
        for way in WAYS:
            rates = [row["bytes"] / 1e9 / one for one in taken[way]]
            row[f"{way}_q1"], row[way], row[f"{way}_q3"] = quartiles(rates)
    return rows


# ---- the table and the picture


def _rate(row: Row, way: str) -> str:
    return f"{row[way]:.3g} ({row[f'{way}_q1']:.3g}-{row[f'{way}_q3']:.3g})"


def table(rows: list[Row]) -> str:
    lines = [
        f"{'method':<20} {'values':<18} {'options':<20} {'ratio':>6} "
        f"{'compress GB/s (q1-q3)':>24} {'decompress GB/s (q1-q3)':>24}"
    ]
    for row in rows:
        missed = "" if row["held"] else "  bound missed"
        lines.append(
            f"{row['method']:<20} {row['values']:<18} {row['options']:<20} {row['ratio']:>6.3f} "
            f"{_rate(row, 'compress'):>24} {_rate(row, 'decompress'):>24}{missed}"
        )
    return "\n".join(lines)


def wrong(rows: list[Row]) -> list[str]:
    return [
        f"{row['method']}, {row['values']}, {row['options']}: an error out of the bound"
        for row in rows
        if not row["held"]
    ]


def draw(rows: list[Row], title: str, file: str) -> None:
    """Two bars for each row."""
    names = [f"{row['method']}: {row['values']}, {row['options']}" for row in rows]
    with _command.picture(file, 1, 1, figsize=(10, 0.6 * len(rows) + 1.5)) as (figure, axes):
        figure.suptitle(title)
        axis = axes[0, 0]
        for shift, way, color in ((-0.2, "compress", "#d62728"), (0.2, "decompress", "#1f77b4")):
            places = [number + shift for number in range(len(rows))]
            axis.barh(places, [row[way] for row in rows], 0.38, color=color, label=way)
        axis.set_yticks(range(len(rows)), names)
        axis.invert_yaxis()
        axis.set_xlabel("GB/s of the input's bytes")
        axis.grid(alpha=0.25, axis="x")
        axis.legend()


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bdi", description="BDI and cuda_float_compress, one core."
    )
    parser.add_argument("--quick", action="store_true", help="fewer words and rounds")
    parser.add_argument("--words", type=at_least(64), metavar="N", help="2^22; 2^18 with --quick")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="11; 3 with --quick")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    words = args.words or (1 << 18 if args.quick else 1 << 22)
    rounds = args.rounds or (3 if args.quick else 11)
    facts = _command.print_facts(words=words, rounds=rounds, threads=1)
    rows = measure(words, rounds)
    print(table(rows))
    document = {"benchmark": "bdi", "machine": facts, "rows": rows}
    title = f"BDI and cuda_float_compress ({facts['cpu']}, one core)"
    return _command.finish(args, document, lambda file: draw(rows, title, file), wrong(rows))


if __name__ == "__main__":
    sys.exit(main())
