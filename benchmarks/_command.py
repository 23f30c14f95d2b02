"""What the commands of all benchmarks share: arguments, facts of the machine, the text of numbers,
the JSON file and the picture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOTHING = "nothing measured: "  # begins the line on stderr of a benchmark that cannot run here
BITS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
_COLORS = {32: "#1f77b4", 16: "#17becf", 8: "#2ca02c", 4: "#ff7f0e", 2: "#d62728"}  # by bits
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


# ---- arguments


def parse_size(text: str) -> int:
    """ "64K", "64KiB", "65536" -> 65536. ArgumentTypeError unless a positive multiple of 4."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    nbytes = int(match[1]) << _UNITS[match[2]] if match else 0
    if nbytes < 4 or nbytes % 4:
        raise argparse.ArgumentTypeError(
            f"size {text!r}; allowed: positive multiples of 4 bytes, as 4, 64K, 16MiB"
        )
    return nbytes


def at_least(minimum: int) -> Callable[[str], int]:
    """The type of an argument: integers from `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: integers from {minimum}")
        return value

    return parse


def add_sizes_argument(parser: argparse.ArgumentParser, examples: str) -> None:
    parser.add_argument(
        "--sizes", nargs="+", type=parse_size, metavar="SIZE", help=f"bytes of fp32: {examples}"
    )


def add_reduction_arguments(parser: argparse.ArgumentParser, sizes: str) -> None:
    """What every measurement of compressed all-reduces has; `sizes`: examples, for the help."""
    add_sizes_argument(parser, sizes)
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=[32, 8, 4, 2])
    add_bucket_size_argument(parser)
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="15; 5 with --quick")


def add_bucket_size_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bucket-size", type=at_least(1), default=512, metavar="N")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write rows and facts of the machine")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture (needs matplotlib)")


def _settings(text: str) -> dict[str, Any]:
    """ "a=1,b=x" -> {"a": 1, "b": "x"}: options of a cgx group."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(
                f"{text!r}; allowed: options of torch_cgx.Options as NAME=VALUE,NAME=VALUE"
            )
        found[name] = int(value) if value.lstrip("-").isdigit() else value
    return found


def add_settings_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """`--with`, for settings that are to be compared; `what` is measured with them."""
    parser.add_argument(
        "--with",
        dest="settings",
        action="append",
        type=_settings,
        default=[],
        metavar="NAME=VALUE,...",
        help=f"{what}, with these torch_cgx.Options; may be given several times",
    )


def settings_label(settings: dict[str, Any]) -> str:
    """As `--with` takes them, with blanks between."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


# ---- facts


def cpu_model() -> str:
    """The model name of the first core, or what the platform module knows of it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git_revision() -> str | None:
    """The revision of the source tree, with "+" if files differ from it; None outside of one."""
    try:
        revision = _git("rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def machine_facts() -> dict[str, Any]:
    """Everything of this machine that a measurement should be filed with; JSON types only."""
    import torch

    import torch_cgx
    from torch_cgx import _C

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_model(),
        "cores": usable,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cgx": torch_cgx.__version__,
        "simd": _C.cpu_level(),
        "revision": git_revision(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("CGX_")},
    }


def print_facts(**more: Any) -> dict[str, Any]:
    """Facts of the machine and of this measurement, which are printed."""
    facts = machine_facts() | more
    print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    return facts


# ---- numbers


def spread(samples: list[float]) -> tuple[float, float, float]:
    """10th percentile, median, 90th percentile (linear interpolation between samples)."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return tenths[0], statistics.median(samples), tenths[-1]


def quartiles(samples: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; between samples, never beyond them."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, median, third


def size_text(nbytes: float) -> str:
    """12345678 -> "11.8M"; whole numbers where they are exact."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= factor:
            value = nbytes / factor
            return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
    return f"{nbytes:.0f}"


def time_text(seconds: float) -> str:
    """At least three significant digits, in us or ms."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def rate_text(rate: str | None) -> str:
    """ "200mbit" -> "200 Mbit/s" """
    if rate is None:
        return "any speed"
    match = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate)
    return f"{match[1]} {match[2].upper()}bit/s" if match else rate


# ---- results


def finish(
    args: argparse.Namespace,
    document: dict[str, Any],
    draw: Callable[[str], None],
    wrong: Sequence[str] = (),
    indent: int | None = 1,
) -> int:
    """Writes the files that --json and --plot name; the exit status. draw: takes the picture's
    file; wrong: what was wrong with results, which is told on stderr.
    """
    if args.json:
        write_json(Path(args.json), document, indent)
    if args.plot:
        draw(args.plot)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return int(bool(wrong))


def write_json(file: Path, document: dict[str, Any], indent: int | None = 1) -> None:
    file.write_text(json.dumps(document, indent=indent) + "\n")


@contextlib.contextmanager
def picture(file: str, rows: int, columns: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, an array of `rows` by `columns`; written to `file` in the end, in the
    format of its suffix. options: of pyplot.subplots. ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, squeeze=False, **options)
    yield figure, axes
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def color(method: str, bits: int) -> str:
    """Of cgx by its bits; gloo's fp32 is black, everything else grey."""
    if method.startswith("cgx"):
        return _COLORS.get(bits, "#9467bd")
    return "black" if method == "gloo fp32" else "#7f7f7f"


def size_axis(axis: Any, sizes: Sequence[int], y: str = "ratio", **options: Any) -> None:
    """Sizes to the right, on a logarithmic scale; upwards a "ratio", in powers of 2, or a "log" or
    "linear" scale. options: of the ticks.
    """
    axis.set_xscale("log", base=4)
    if y == "ratio":
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axis.set_yscale(y)
    axis.set_xticks(sizes, [size_text(size) for size in sizes], **options)
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.set_xlabel("bytes of fp32")
