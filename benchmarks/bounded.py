"""Error-bounded compression of tensors: ratio and speed of one core, against others.

    python -m benchmarks.bounded [--quick] [--corpora NAME ...] [--rounds N] [--json FILE]
        [--plot FILE]

Every method gets the same values and the same absolute bound (0: lossless); one that fails on them
is a row that holds no bound. Ratio: bytes of the values over bytes of the payload. Rates are GB/s
of the values' bytes on one core, medians over rounds in which everything is measured once, right
after a call that is not; "cgx, 2 threads" has two cores, "cgx, CUDA" its values on a GPU. A bound
holds if no value is off by more, in float64, and what is not finite comes back. Limit: the ratio
that the entropy of Gaussian values allows. Roofs: a copy of the same memory, a min-max scan of it
by torch_cgx, and torch.aminmax; beside them, how many times faster two threads of zlib are than
one: less than 2 on a machine that is busy. Below each corpus stands whether some method is better
than cgx in ratio, compression and decompression at once, or in ratio and one of both.
General-purpose compressors get integers made by NumPy (`compressors/words.py`). For some corpora
other libraries take the place of cgx's entropy stage (`compressors/entropy_stage.py`).

`make bench-peers` installs the peers into .venv-bounded, and downloads the packages that some
corpora are read from into build/corpora (`compressors/packages.py`). The output lists what is
missing. Some corpora are the state of a small GPT, which is trained once, for a minute
(`training/state.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _command, _peers
from benchmarks._command import at_least
from benchmarks.compressors.corpora import CORPORA, MEMORY, Sizes
from benchmarks.compressors.methods import CUDA, METHODS, ORIGINAL, OURS, TWO_THREADS
from benchmarks.report.bounded import BOTH, WAYS, better, near, ratio_text

_TIMEOUT = 3600.0
PANEL = ("N(0,.02)", 1e-4)  # the cell of the picture's left half
# Colour and mark of each method in the picture.
STYLES = {
    OURS: ("#d62728", "*"),
    TWO_THREADS: ("#ff9896", "*"),
    CUDA: ("#e377c2", "*"),
    ORIGINAL: ("black", "s"),
    "zfp": ("#1f77b4", "o"),
    "SZ3": ("#ff7f0e", "o"),
    "SZ3 no prediction": ("#ffbb78", "o"),
    "fpzip": ("#bcbd22", "P"),
    "zipnn": ("#7f7f7f", "X"),
    "zstd 1": ("#9467bd", "^"),
    "zstd 3": ("#c5b0d5", "^"),
    "pcodec": ("#8c564b", "D"),
    "blosc2 bitshuffle 1": ("#2ca02c", "v"),
    "blosc2 bitshuffle 5": ("#98df8a", "v"),
    "blosc2 shuffle 1": ("#17becf", "v"),
}

Row = dict[str, Any]


def run(names: list[str], methods: list[str], sizes: Sizes, rounds: int) -> dict[str, Any]:
    """What a process of its own measures, by the python of .venv-bounded where it is there."""
    try:
        python, missing = str(_peers.bounded_python()), ""
    except _peers.PeerMissing as reason:
        python, missing = sys.executable, str(reason)
    with tempfile.TemporaryDirectory(prefix="cgx-bounded-") as folder:
        result = Path(folder) / "measured.json"
        wanted = {"corpora": names, "methods": methods, "sizes": asdict(sizes), "rounds": rounds}
        command = [python, "-m", "benchmarks.compressors.measure", json.dumps(wanted), str(result)]
        environment = os.environ | {"PYTHONPATH": str(_command.ROOT)}
        # torch would load .venv's torch_cgx by itself; idle threads must not take a core.
        environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_WAIT_POLICY": "passive"}
        subprocess.run(command, cwd=_command.ROOT, env=environment, check=True, timeout=_TIMEOUT)
        measured = dict(json.loads(result.read_text()))
    if missing:
        measured["not_measured"] = {".venv-bounded": missing} | measured["not_measured"]
    return measured


# ---- the table


def _rate(row: Row, way: str) -> str:
    return f"{row[way]:.3g} ({row[f'{way}_q1']:.3g}-{row[f'{way}_q3']:.3g})"


def table(cell: Row) -> str:
    size = _command.size_text(cell["bytes"])
    roofs = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in cell["roofs"].items())
    bound = f"bound {cell['max_error']:g}" if cell["max_error"] else "lossless"
    limit = f", limit {cell['limit']:.3f}" if cell["limit"] else ""
    if cell["second_core"]:
        roofs += f"; a second core gives {cell['second_core']:.2f}x"
    lines = [f"\n{cell['corpus']}: {size} of {cell['dtype']}, {bound}{limit}; {roofs}"]
    lines.append(
        f"  {'method':<20} {'ratio':>9} {'of limit':>8} {'compress GB/s (q1-q3)':>24} "
        f"{'decompress GB/s (q1-q3)':>24} {'error/bound':>11}"
    )
    for row in cell["rows"]:
        limit = f"{100 * row['of_limit']:.1f} %" if row["of_limit"] else ""
        if cell["max_error"]:
            error = f"{row['error'] / cell['max_error']:.6f}"
        else:
            error = f"{row['error']:g}"
        missed = "" if row["held"] else "  bound missed"
        lines.append(
            f"  {row['method']:<20} {ratio_text(row['ratio']):>9} {limit:>8} "
            f"{_rate(row, 'compress'):>24} {_rate(row, 'decompress'):>24} {error:>11}{missed}"
        )
    lines += [f"  {line}" for line in verdict(cell)]
    for row in cell.get("coders", []):
        lines.append(
            f"  entropy stage by {row['coder']:<25} ratio {ratio_text(row['ratio'])}, "
            f"{_rate(row, 'compress')} and {_rate(row, 'decompress')} GB/s of the values"
        )
    return "\n".join(lines)


def verdict(cell: Row) -> list[str]:
    """Who is better than cgx, by how much; the bound held by both. Then who fails, and why."""
    found = better(cell)
    if found is None:
        return ["cgx was not measured here"]
    (ours,) = (row for row in cell["rows"] if row["method"] == OURS)
    lines = [] if found[BOTH] else [f"nobody is better than cgx in {BOTH}"]
    for what, rows in found.items():
        for row in rows:
            times = ", ".join(f"{key} {row[key] / ours[key]:.3g}x" for key in ("ratio", *WAYS))
            lines.append(f"{row['method']} is better than cgx in {what}: {times}")
    broken = (row for row in cell["rows"] if "broke" in row)
    return lines + [f"{row['method']} failed: {row['broke']}" for row in broken]


# ---- the picture


def draw(cells: list[Row], title: str, file: str) -> None:
    """Left: one cell, with its limit. Right: all cells relative to cgx; a point in the upper right
    quarter is better in ratio and in this speed. Hollow: the bound is missed, by little.
    """
    shown = next((c for c in cells if (c["corpus"], c["max_error"]) == PANEL), cells[0])
    methods = list(dict.fromkeys(row["method"] for cell in cells for row in cell["rows"]))
    heights = {"height_ratios": [10, 10, 2]}
    with _command.picture(file, 3, 2, figsize=(13, 12), gridspec_kw=heights) as (figure, axes):
        figure.suptitle(title)
        for way, (left, right) in zip(WAYS, axes, strict=False):
            for row in (one for one in shown["rows"] if near(shown, one)):
                _point(left, row[way], row["ratio"], row, 60)
            if shown["limit"]:
                left.axhline(shown["limit"], linestyle="--", color="grey")
            bound = f"{shown['max_error']:g}" if shown["max_error"] else "lossless"
            left.set(title=f"{shown['corpus']}, {bound}: {way}", ylabel="ratio")
            left.set(xscale="log", xlabel="GB/s")
            _draw_all(right, cells, way)
            for axis in (left, right):
                axis.grid(alpha=0.25)
        half = (len(methods) + 1) // 2
        for axis, some in zip(axes[2], (methods[:half], methods[half:]), strict=True):
            axis.axis("off")
            for method in some:
                color, marker = STYLES[method]
                axis.scatter([], [], color=color, marker=marker, label=method)
            axis.legend(loc="center", ncol=3)


def _draw_all(axis: Any, cells: list[Row], way: str) -> None:
    for cell in cells:
        ours = next((row for row in cell["rows"] if row["method"] == OURS), None)
        if ours is None:
            continue
        for row in cell["rows"]:
            if row["method"] != OURS and near(cell, row):
                _point(axis, row[way] / ours[way], row["ratio"] / ours["ratio"], row, 25)
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set(xscale="log", yscale="log", title=f"all values and bounds: {way}")
    axis.set(xlabel="GB/s over cgx's", ylabel="ratio over cgx's")


def _point(axis: Any, x: float, y: float, row: Row, size: int) -> None:
    color, marker = STYLES[row["method"]]
    face = color if row["held"] else "none"
    axis.scatter([x], [y], s=size, facecolors=face, edgecolors=color, marker=marker)


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bounded", description="Error-bounded compression, one core."
    )
    parser.add_argument("--quick", action="store_true", help="fewer values, rounds and steps")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, metavar="NAME", help="all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="NAME", help="all")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="11; 3 with --quick")
    parser.add_argument("--numel", type=at_least(1024), help="values: 2^20; --quick: 2^18")
    parser.add_argument("--large", type=at_least(1024), help=f"of {MEMORY}: 2^26; --quick: 2^22")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    numel = args.numel or (1 << 18 if args.quick else 1 << 20)
    sizes = Sizes(
        numel=numel,
        round_numel=numel if args.quick or args.numel else Sizes.round_numel,
        large=args.large or (1 << 22 if args.quick else 1 << 26),
        steps=5 if args.quick else Sizes.steps,
    )
    rounds = args.rounds or (3 if args.quick else 11)
    measured = run(args.corpora or list(CORPORA), args.methods or list(METHODS), sizes, rounds)
    facts = _command.print_facts(rounds=rounds, **asdict(sizes), packages=measured["packages"])
    for cell in measured["cells"]:
        print(table(cell))
    for name, why in measured["not_measured"].items():
        print(f"not measured {name}: {why}")
    document = {"benchmark": "bounded", "machine": facts} | {
        key: measured[key] for key in ("cells", "not_measured")
    }
    wrong = [
        f"cgx on {cell['corpus']} at {cell['max_error']:g}: off by {row['error']:g}"
        for cell in measured["cells"]
        for row in cell["rows"]
        if row["method"].startswith(OURS) and not row["held"]
    ]
    title = f"Error-bounded compression ({facts['cpu']}, one core)"
    return _command.finish(args, document, lambda file: draw(measured["cells"], title, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
