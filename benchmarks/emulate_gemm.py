"""Products and layers whose operands and sums are in formats, one core, against torch's own.

    python -m benchmarks.emulate_gemm [--quick] [--size N] [--rounds N] [--json FILE] [--plot FILE]

casts:   `emulate.matmul(a, b, inputs=format)` of N x N float32, N = 1024, with float32's sums.
         Fraction: the time of `torch.matmul(a, b)`, which runs before and after, over its time.
sums:    `emulate.matmul(a, b, accumulate=format)`, plain, with Kahan's rule, in blocks, and as
         Hopper's tensor cores: 2 N^3 operations over the time.
layers:  forward and backward pass of QuantLinear and QuantConv2d, of a layer that `emulate.apply`
         casts, and of a module whose output is cast; the time of torch's own over theirs.

Each SIMD level of the CPU but scalar is measured in a process of its own. CPD's sums need a GPU,
and qtorch has none: there is no peer on a CPU but a loop over K in Python, which is measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import nn

from benchmarks import _command
from benchmarks._command import at_least, quartiles
from benchmarks.emulate import levels, timed
from torch_cgx import _C, emulate

Row = dict[str, Any]
Case = tuple[Row, Callable[[], object], Callable[[], object]]  # what it is, ours, torch's
_LIMIT = 900.0  # seconds of a process
_CURRENT = {"format": "e4m3fn", "scale": "current"}


def _casts(a: torch.Tensor, b: torch.Tensor) -> Iterator[Case]:
    exact = partial(torch.matmul, a, b)
    given: dict[str, Any] = {name: name for name in ("e4m3fn", "bf16", "mxfp8_e4m3", "mxfp4")}
    given |= {"nvfp4": "nvfp4", "fp8_block128": "fp8_block128", "int8": "int8"}
    given["e4m3fn, scaled"] = _CURRENT
    stochastic = emulate.preset("e4m3fn", rounding="stochastic")
    given["e4m3fn, stochastic"] = stochastic
    for name, format in given.items():
        row = {"kind": "casts", "name": name}
        yield row, partial(emulate.matmul, a, b, inputs=format), exact


def _sums(a: torch.Tensor, b: torch.Tensor) -> Iterator[Case]:
    exact = partial(torch.matmul, a, b)
    formats = {
        "e5m2": "e5m2",
        "bf16": "bf16",
        "fp16": "fp16",
        "cpd (4,3)": emulate.Float(4, 3, variant="cpd"),
        "fixed 16.8": emulate.Fixed(16, 8),
    }
    for name, format in formats.items():
        for rule, how in (("plain", {}), ("Kahan", {"kahan": True})):
            row = {"kind": "sums", "name": f"{name}, {rule}", "rule": rule}
            yield row, partial(emulate.matmul, a, b, accumulate=format, **how), exact
    row = {"kind": "sums", "name": "bf16, blocks of 64", "rule": "blocked"}
    yield row, partial(emulate.matmul, a, b, accumulate="bf16", order="blocked"), exact
    row = {"kind": "sums", "name": "hopper14", "rule": "hopper14"}
    yield row, partial(emulate.matmul, a, b, accumulate="hopper14"), exact


def _python_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What users write: an outer product for each term, rounded."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        term = emulate.cast(torch.outer(a[:, k], b[k]), "e5m2")
        total = emulate.cast(total + term, "e5m2")
    return total


def _pass(module: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        y = module(x)
        y.backward(torch.ones_like(y))

    return run


def _layers(size: int) -> Iterator[Case]:
    x = torch.randn(size, size, requires_grad=True)
    exact = _pass(nn.Linear(size, size), x)
    for name, inputs in (("e4m3fn", "e4m3fn"), ("mxfp8", "mxfp8_e4m3")):
        linear = emulate.QuantLinear(size, size, inputs=inputs)
        yield {"kind": "layers", "name": f"QuantLinear, {name}"}, _pass(linear, x), exact
    for recipe in ("fp8_delayed", "mxfp8", "nvfp4"):
        model = nn.Sequential(nn.Linear(size, size))
        model.emulation = emulate.apply(model, recipe=recipe, first_last="cast")
        yield {"kind": "layers", "name": f"apply, {recipe}"}, _pass(model, x), exact
    model = nn.Sequential(nn.Linear(size, size))
    kinds = {"activations": "smaq", "gradient_maps": "smaq"}
    model.emulation = emulate.apply(model, **kinds, filter="^0$")
    yield {"kind": "layers", "name": "apply, smaq on outputs"}, _pass(model, x), exact
    channels = max(16, size // 16)
    images = torch.randn(8, channels, 32, 32, requires_grad=True)
    exact = _pass(nn.Conv2d(channels, channels, 3, padding=1), images)
    convolution = emulate.QuantConv2d(channels, channels, 3, padding=1, inputs="e4m3fn")
    yield {"kind": "layers", "name": "QuantConv2d, e4m3fn"}, _pass(convolution, images), exact


def cases(size: int) -> list[Case]:
    torch.manual_seed(0)
    a, b = torch.randn(size, size), torch.randn(size, size)
    found = [*_casts(a, b), *_sums(a, b), *_layers(size)]
    row = {"kind": "sums", "name": "e5m2, plain, a loop in Python", "rule": "python"}
    loop = partial(_python_loop, a[:128, :128].contiguous(), b[:128, :128].contiguous())
    found.append((row | {"size": 128}, loop, partial(torch.matmul, a[:128, :128], b[:128, :128])))
    return found


def measure(size: int, rounds: int) -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for row, ours, exact in cases(size):
        own = row.get("size", size)
        ratios, seconds = [], []
        slow = row["kind"] == "sums"
        for turn in range((min(rounds, 3) if slow else rounds) + 1):
            before, mine, after = timed(exact), timed(ours), timed(exact)
            if turn > 0:  # the first round warms up
                ratios.append((before + after) / 2 / mine)
                seconds.append(mine)
        low, middle, high = quartiles(ratios)
        taken = quartiles(seconds)[1]
        more = {"fraction": middle, "fraction_q1": low, "fraction_q3": high, "seconds": taken}
        if row["kind"] == "sums":
            more["gflops"] = 2 * own**3 / taken / 1e9
        rows.append({**row, "level": _C.cpu_level(), "size": own, **more})
    return rows


def run_level(level: str, size: int, rounds: int) -> list[Row]:
    """What `measure` finds in a process of that level."""
    with tempfile.TemporaryDirectory(prefix="cgx-emulate-") as folder:
        result = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "benchmarks.emulate_gemm", "--size", str(size)]
        command += ["--rounds", str(rounds), "--measure-to", str(result)]
        environment = os.environ | {"CGX_CPU_LEVEL": level, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=_command.ROOT, env=environment, check=True, timeout=_LIMIT)
        return list(json.loads(result.read_text()))


def table(rows: list[Row]) -> str:
    lines = [f"{'':<32} {'level':<7} {'ms':>9} {'GFLOP/s':>8} {'of torch':>9} {'q1-q3':>15}"]
    for row in rows:
        spread = f"{row['fraction_q1']:.3g}-{row['fraction_q3']:.3g}"
        rate = f"{row['gflops']:.3g}" if "gflops" in row else ""
        lines.append(
            f"{row['kind'] + ' ' + row['name']:<32} {row['level']:<7} {1e3 * row['seconds']:>9.3g} "
            f"{rate:>8} {row['fraction']:>9.3g} {spread:>15}"
        )
    return "\n".join(lines)


def draw(rows: list[Row], file: str) -> None:
    """Bars of the best level: fractions of torch, and GFLOP/s."""
    some = [row for row in rows if row["level"] == rows[-1]["level"]]
    with _command.picture(file, 1, 2, figsize=(13, 6)) as (_, axes):
        for axis, kinds, key, label in (
            (axes[0, 0], ("casts", "layers"), "fraction", "speed as a fraction of torch's"),
            (axes[0, 1], ("sums",), "gflops", "GFLOP/s of one core"),
        ):
            shown = [row for row in some if row["kind"] in kinds]
            axis.barh([row["name"] for row in shown], [row[key] for row in shown])
            axis.invert_yaxis()
            axis.set_xlabel(label)
            axis.grid(alpha=0.25, axis="x")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.emulate_gemm", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a small size and few rounds")
    parser.add_argument("--size", type=at_least(16), metavar="N", help="1024; 128 with --quick")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="15; 2 with --quick")
    parser.add_argument("--measure-to", metavar="FILE", help=argparse.SUPPRESS)  # see run_level()
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    size = args.size or (128 if args.quick else 1024)
    rounds = args.rounds or (2 if args.quick else 15)
    if args.measure_to:
        Path(args.measure_to).write_text(json.dumps(measure(size, rounds)))
        return 0
    facts = _command.print_facts(size=size, rounds=rounds, threads=1, levels=levels())
    rows: list[Row] = []
    for level in levels():
        rows += run_level(level, size, rounds)
    print(table(rows))
    document = {"benchmark": "emulate_gemm", "machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: draw(rows, file))


if __name__ == "__main__":
    sys.exit(main())
