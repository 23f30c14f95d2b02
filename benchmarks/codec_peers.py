"""The 8-bit codec against hivemind's, on one core, in one process.

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
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _command, _peers
from benchmarks._command import NOTHING, at_least, spread

# Which of ours does what theirs does.
OURS = {
    "hivemind quantize 8": "cgx encode 8",
    "hivemind compress 8": "cgx encode 8",
    "hivemind extract 8": "cgx decode 8",
}
_TIMEOUT = 250.0


def measure(numel: int, rounds: int) -> dict[str, Any]:
    """Both codecs, and the roofs, on the same values in turns on one thread. In a process of its
    own, by the python of .venv-hivemind: hivemind 1.1.12 wants a NumPy before 2.4.
    """
    import numpy
    import torch
    from hivemind.compression import Uniform8BitQuantization  # type: ignore[import-not-found]
    from hivemind.compression.base import CompressionInfo  # type: ignore[import-not-found]

    import torch_cgx

    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = torch.randn(numel)
    target = torch.zeros(numel)
    theirs, ours = Uniform8BitQuantization(), torch_cgx.codecs.MaxMin(bits=8, bucket_size=512)
    info = CompressionInfo.from_tensor(values)
    message, payload = theirs.compress(values, info), ours.encode(values)
    indices, lookup = theirs.quantize(values)
    cases: dict[str, Callable[[], Any]] = {
        "torch aminmax": lambda: torch.aminmax(values),
        "memcpy": lambda: target.copy_(values),
        "cgx encode 8": lambda: ours.encode(values),
        "hivemind quantize 8": lambda: theirs.quantize(values),
        "hivemind compress 8": lambda: theirs.compress(values, info),
        "cgx decode 8": lambda: ours.decode(payload, numel=numel),
        "hivemind extract 8": lambda: theirs.extract(message),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if turn > 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)

    def error(restored: torch.Tensor) -> float:
        return float((restored - values).norm() / values.norm())

    return {
        "versions": {
            "hivemind": version("hivemind"),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
        },
        "seconds": seconds,
        "relative_error": {
            "cgx": error(ours.decode(payload, numel=numel)),
            "hivemind": error(theirs.extract(message)),
        },
        "encoded_bytes": {
            "cgx": payload.numel(),
            "hivemind": indices.nbytes + lookup.nbytes,
        },
    }


def run(python: Path, numel: int, rounds: int) -> dict[str, Any]:
    """What `measure` finds in a process of that python."""
    with tempfile.TemporaryDirectory(prefix="cgx-hivemind-") as folder:
        result = Path(folder) / "measured.json"
        command = [str(python), "-m", "benchmarks.codec_peers", "--numel", str(numel)]
        command += ["--rounds", str(rounds), "--measure-to", str(result)]
        environment = os.environ | {"PYTHONPATH": str(_command.ROOT), "OMP_NUM_THREADS": "1"}
        # torch would load .venv's torch_cgx by itself.
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        subprocess.run(command, cwd=_command.ROOT, env=environment, check=True, timeout=_TIMEOUT)
        return dict(json.loads(result.read_text()))


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
    with _command.picture(file, 1, 1, figsize=(8, 3.6)) as (_, ((axis,),)):
        colors = ["#1f77b4" if row["name"].startswith("cgx") else "#7f7f7f" for row in rows]
        axis.barh([row["name"] for row in rows], [row["gb_per_s"] for row in rows], color=colors)
        axis.set(xlabel="GB/s of fp32, one core", title=title)
        axis.invert_yaxis()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codec_peers", description="8-bit codecs of others, one core."
    )
    parser.add_argument("--numel", type=at_least(1024), help="values: 2^24; --quick: 2^20")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="9; 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer values and rounds")
    parser.add_argument("--measure-to", metavar="FILE", help=argparse.SUPPRESS)  # see run()
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    numel = args.numel or (1 << 20 if args.quick else 1 << 24)
    rounds = args.rounds or (3 if args.quick else 9)
    if args.measure_to:
        Path(args.measure_to).write_text(json.dumps(measure(numel, rounds)))
        return 0
    try:
        python = _peers.hivemind_python()
    except _peers.PeerMissing as reason:
        print(f"{NOTHING}{reason}", file=sys.stderr)
        return 0
    measured = run(python, numel, rounds)
    facts = _command.print_facts(numel=numel, rounds=rounds, threads=1, peers=measured["versions"])
    rows = to_rows(measured, 4 * numel)
    print(table(rows))
    document = {"benchmark": "codec_peers", "machine": facts, "rows": rows}
    for key in ("relative_error", "encoded_bytes"):
        print(f"{key}: {measured[key]}")
        document[key] = measured[key]
    title = f"8-bit codecs ({facts['cpu']})"
    return _command.finish(args, document, lambda file: draw(rows, title, file))


if __name__ == "__main__":
    sys.exit(main())
