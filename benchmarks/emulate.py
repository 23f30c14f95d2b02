"""Casts to formats of numbers against a copy, one core, beside other implementations.

    python -m benchmarks.emulate [--quick] [--numel N] [--rounds N] [--json FILE] [--plot FILE]

Ours: `emulate.cast(x, format, out=y)` of 2^24 values (64 MiB of float32), which come from memory.
Fraction: the time of `y.copy_(x)` of the same tensor over the time of the cast; every cast stands
between two copies, and the fraction is by their mean, median of all rounds. Each SIMD level of the
CPU but scalar is measured in a process of its own.

Others: the values of the same tensor in a format and back in float32, which takes most of them two
steps, and a new tensor. `make bench-peers` installs ml_dtypes, gfloat, torchao and qtorch into
.venv-emulate; the benchmark prints the names of missing ones. Every peer runs between two copies as
well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks import _command, _emulate_peers, _peers
from benchmarks._command import at_least, quartiles
from benchmarks.report.emulate import label
from torch_cgx import _C, emulate

Row = dict[str, Any]
Case = tuple[Row, Callable[[], object], torch.Tensor]  # what it is, the call, what it reads
NARROW = (torch.float16, torch.bfloat16, torch.float64)
_LIMIT = 600.0  # seconds of a process


def formats() -> dict[str, tuple[str, emulate.Format]]:
    """Name -> kind, which targets are for, and format."""
    found: dict[str, tuple[str, emulate.Format]] = {}
    for name in ("e4m3fn", "e5m2", "e2m1", "fp16", "bf16"):
        found[name] = "nearest", emulate.preset(name)
    for name in ("e4m3fn", "e2m1"):
        found[f"{name}, zero"] = "zero", emulate.preset(name, rounding="zero")
    for name in ("e4m3fn", "e5m2", "bf16"):
        found[f"{name}, stochastic"] = "stochastic", emulate.preset(name, rounding="stochastic")
    for name in ("mxfp8_e4m3", "mxfp6_e3m2", "mxfp4", "nvfp4", "fp8_block128"):
        found[name] = "block", emulate.preset(name)
    found["mxfp4, rceil"] = "block", emulate.preset("mxfp4", scale_rounding="rceil")
    found["mxfp4, stochastic"] = "stochastic block", emulate.preset("mxfp4", rounding="stochastic")
    others = {"Fixed": (8, 4), "Integer": (8,), "ZScore": (6, 8), "S2FP8": ()}
    for name, arguments in others.items():
        made = getattr(emulate, name, None)
        if made is not None:
            found[name] = name, made(*arguments)
    return found


def cases(numel: int, best: bool) -> Iterator[Case]:
    """Ours; other dtypes and statistics at the best level only."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0)).reshape(-1, 1024)
    y = torch.empty_like(x)
    known = formats()
    for name, (kind, format) in known.items():
        row = {"kind": kind, "name": name, "dtype": "float32", "statistics": False}
        yield row, partial(emulate.cast, x, format, out=y), x
    if not best:
        return
    for name in ("e4m3fn", "mxfp4"):
        kind, format = known[name]
        row = {"kind": kind, "name": name, "dtype": "float32", "statistics": True}
        yield row, partial(emulate.cast, x, format, out=y, statistics=True), x
    for dtype in NARROW:
        # The copy of float64 is of as many bytes.
        given = x.to(dtype) if dtype != torch.float64 else x[: len(x) // 2].to(dtype)
        into = torch.empty_like(given)
        for name in ("e4m3fn", "e4m3fn, stochastic", "mxfp4"):
            kind, format = known[name]
            text = str(dtype).removeprefix("torch.")
            row = {"kind": kind, "name": name, "dtype": text, "statistics": False}
            yield row, partial(emulate.cast, given, format, out=into), given


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(numel: int, rounds: int, peers: bool, best: bool) -> dict[str, Any]:
    """Rows of this process's SIMD level, and what could not be measured."""
    torch.set_num_threads(1)
    every = list(cases(numel, best))
    missing: dict[str, str] = {}
    if peers:
        found, missing = _emulate_peers.cases(every[0][2])
        every += [({**row, "kind": "peer", "dtype": "float32"}, run, t) for row, run, t in found]
    copies = {id(x): (x, torch.empty_like(x)) for _, _, x in every}
    ratios: list[list[float]] = [[] for _ in every]
    seconds: list[list[float]] = [[] for _ in every]
    for turn in range(rounds + 1):
        for place, (_, run, x) in enumerate(every):
            a, b = copies[id(x)]
            before = timed(partial(b.copy_, a))
            mine = timed(run)
            after = timed(partial(b.copy_, a))
            if turn > 0:  # the first round warms up
                ratios[place].append((before + after) / 2 / mine)
                seconds[place].append(mine)
    rows = []
    for (row, _, x), some, taken in zip(every, ratios, seconds, strict=True):
        low, middle, high = quartiles(some)
        rate = x.nbytes / quartiles(taken)[1] / 1e9
        more = {"fraction": middle, "fraction_q1": low, "fraction_q3": high, "gb_per_s": rate}
        rows.append({**row, "level": _C.cpu_level(), "bytes": x.nbytes, **more})
    return {"rows": rows, "not_measured": missing}


def levels() -> list[str]:
    """SIMD levels of this CPU beside scalar, the best one last."""
    return [level for level in _C.cpu_levels().split(",") if level != "scalar"] or ["scalar"]


def run_level(
    python: str, level: str, best: bool, numel: int, rounds: int, peers: bool
) -> dict[str, Any]:
    """What `measure` finds in a process of that python and level."""
    with tempfile.TemporaryDirectory(prefix="cgx-emulate-") as folder:
        result = Path(folder) / "measured.json"
        command = [python, "-m", "benchmarks.emulate", "--numel", str(numel)]
        command += ["--rounds", str(rounds), "--measure-to", str(result)]
        command += ["--peers"] * peers + ["--best"] * best
        path = os.pathsep.join([str(_command.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        # qtorch compiles by the ninja beside this python.
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "PATH": tools, "OMP_NUM_THREADS": "1"}
        environment |= {"CGX_CPU_LEVEL": level, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run(command, cwd=_command.ROOT, env=environment, check=True, timeout=_LIMIT)
        return dict(json.loads(result.read_text()))


# ---- the table and the picture


def table(rows: list[Row]) -> str:
    lines = [f"{'cast':<34} {'level':<7} {'GB/s':>7} {'of copy_':>9} {'q1-q3':>15}"]
    for row in rows:
        spread = f"{row['fraction_q1']:.3g}-{row['fraction_q3']:.3g}"
        lines.append(
            f"{label(row):<34} {row['level']:<7} {row['gb_per_s']:>7.3g} {row['fraction']:>9.3g} "
            f"{spread:>15}"
        )
    return "\n".join(lines)


def draw(rows: list[Row], title: str, file: str) -> None:
    """A bar for each row of the best level, on a logarithmic scale."""
    some = [row for row in rows if row["level"] == rows[-1]["level"]]
    with _command.picture(file, 1, 1, figsize=(9, 0.27 * len(some) + 1.5)) as (figure, axes):
        figure.suptitle(title)
        axis = axes[0, 0]
        colors = ["#7f7f7f" if row["kind"] == "peer" else "#1f77b4" for row in some]
        axis.barh([label(row) for row in some], [row["fraction"] for row in some], color=colors)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_xlabel("speed as a fraction of Tensor.copy_, one core")
        axis.grid(alpha=0.25, axis="x")


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.emulate", description="Casts to formats, one core."
    )
    parser.add_argument("--quick", action="store_true", help="fewer values and rounds")
    parser.add_argument("--numel", type=at_least(2048), help="values: 2^24; --quick: 2^20")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="21; 3 with --quick")
    parser.add_argument("--measure-to", metavar="FILE", help=argparse.SUPPRESS)  # see run_level()
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--best", action="store_true", help=argparse.SUPPRESS)
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    numel = args.numel or (1 << 20 if args.quick else 1 << 24)
    numel = numel // 2048 * 2048
    rounds = args.rounds or (3 if args.quick else 21)
    if args.measure_to:
        found = measure(numel, rounds, args.peers, args.best)
        Path(args.measure_to).write_text(json.dumps(found))
        return 0
    try:
        python = str(_peers.emulate_python())
    except _peers.PeerMissing:
        python = sys.executable
    facts = _command.print_facts(numel=numel, rounds=rounds, threads=1, levels=levels())
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for level in levels():
        best = level == levels()[-1]
        found = run_level(python, level, best, numel, rounds, peers=best)
        rows += found["rows"]
        missing |= found["not_measured"]
    print(table(rows))
    for peer, why in missing.items():
        print(f"not measured: {peer}: {why}")
    document = {"benchmark": "emulate", "machine": facts, "rows": rows, "not_measured": missing}
    return _command.finish(args, document, lambda file: draw(rows, "emulate.cast", file))


if __name__ == "__main__":
    sys.exit(main())
