"""The 8-bit codec against that of hivemind, on one core, in one process.

    python -m benchmarks.codec_peers [--numel 16777216] [--rounds 9] [--quick]
        [--json FILE] [--plot FILE]

hivemind's uniform 8-bit quantisation has one scale for the whole tensor and a table of means;
`quantize` is its arithmetic, `compress` adds the message that it sends; torch_cgx's codec has a
minimum and a step per bucket of 512. Rates are GB/s of fp32, medians over rounds in which
everything is measured once. Needs .venv-hivemind (make bench-peers), and says so where that is not
there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _machine, _peers
from benchmarks._arguments import add_output_arguments, at_least
from benchmarks._report import spread

# Which of ours does what theirs does.
OURS = {
    "hivemind quantize 8": "cgx encode 8",
    "hivemind compress 8": "cgx encode 8",
    "hivemind extract 8": "cgx decode 8",
}
_TIMEOUT = 250.0


def to_rows(measured: dict[str, Any], nbytes: int) -> list[dict[str, Any]]:
    """One row per case. ours: how many times faster this project's codec is, median of the rounds
    (None: not a peer's).
    """
    rows = []
    for name, seconds in measured["seconds"].items():
        low, median, high = spread(seconds)
        ours = measured["seconds"].get(OURS.get(name, ""))
        ratio = [t / o for t, o in zip(seconds, ours, strict=True)] if ours else None
        rows.append(
            {
                "name": name,
                "gb_per_s": nbytes / median / 1e9,
                "gb_per_s_p10": nbytes / high / 1e9,
                "gb_per_s_p90": nbytes / low / 1e9,
                "ours": spread(ratio)[1] if ratio else None,
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'measurement':<22} {'GB/s':>7} {'p10 - p90':>15} {'cgx is faster':>14}"]
    for row in rows:
        between = f"{row['gb_per_s_p10']:.2f} - {row['gb_per_s_p90']:.2f}"
        ours = f"{row['ours']:.1f}x" if row["ours"] else ""
        lines.append(f"{row['name']:<22} {row['gb_per_s']:>7.2f} {between:>15} {ours:>14}")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], title: str, file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    colors = ["#1f77b4" if row["name"].startswith("cgx") else "#7f7f7f" for row in rows]
    axis.barh([row["name"] for row in rows], [row["gb_per_s"] for row in rows], color=colors)
    axis.set(xlabel="GB/s of fp32, one core", title=title)
    axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codec_peers", description="8-bit codecs of others, one core."
    )
    parser.add_argument("--numel", type=at_least(1024), help="values: 2^24; --quick: 2^20")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="9; 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer values and rounds")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    try:
        python = _peers.hivemind_python()
    except _peers.PeerMissing as reason:
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 0
    numel = args.numel or (1 << 20 if args.quick else 1 << 24)
    rounds = args.rounds or (3 if args.quick else 9)
    with tempfile.TemporaryDirectory(prefix="cgx-hivemind-") as folder:
        result = Path(folder) / "measured.json"
        command = [str(python), "-m", "benchmarks._hivemind", str(numel), str(rounds), str(result)]
        environment = os.environ | {"PYTHONPATH": str(_machine.ROOT), "OMP_NUM_THREADS": "1"}
        # What torch would load by itself is that of .venv.
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        subprocess.run(command, cwd=_machine.ROOT, env=environment, check=True, timeout=_TIMEOUT)
        measured = json.loads(result.read_text())
    facts = _machine.facts() | {"numel": numel, "rounds": rounds, "threads": 1}
    facts |= {"peers": measured["versions"]}
    print(_machine.line(facts))
    rows = to_rows(measured, 4 * numel)
    print(table(rows))
    for key in ("relative_error", "encoded_bytes"):
        print(f"{key}: {measured[key]}")
    if args.json:
        document = {"benchmark": "codec_peers", "machine": facts, "rows": rows}
        document |= {key: measured[key] for key in ("relative_error", "encoded_bytes")}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(rows, f"8-bit codecs ({facts['cpu']})", args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
