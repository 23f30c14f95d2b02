"""Writes the measured speed-ups of benchmarks/allreduce.py into the README.

    python benchmarks/readme_table.py [--check]

Reads benchmarks/results/allreduce.json and replaces what stands between the marks `<!-- benchmark
-->` and `<!-- /benchmark -->` of README.md. With --check nothing is written, and the status is 1 if
the README is not up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "allreduce.json"
BEGIN, END = "<!-- benchmark -->\n", "<!-- /benchmark -->"
BASE = "gloo fp32"
LEAST = 4096  # bytes: below, latency alone is measured
MOST_SIZES = 5  # columns


def size_text(nbytes: int) -> str:
    """4096 -> "4 KiB"; sizes that are no whole number of a unit have one decimal."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


def choose(sizes: list[int]) -> list[int]:
    """At most MOST_SIZES of the sizes from LEAST on, evenly spread, the largest included; all of
    them where none is so large."""
    large = [size for size in sorted(set(sizes)) if size >= LEAST] or sorted(set(sizes))
    if len(large) <= MOST_SIZES:
        return large
    last = len(large) - 1
    return [large[round(i * last / (MOST_SIZES - 1))] for i in range(MOST_SIZES)]


def table(document: dict[str, Any]) -> str:
    """The text between the marks: a sentence on the machine, and methods by sizes.

    ValueError where the document holds no row to compare with.
    """
    rows, facts = document["rows"], document["machine"]
    methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name != BASE]
    base = {row["bytes"]: row["seconds"] for row in rows if row["method"] == BASE}
    if not base or not methods:
        raise ValueError(f"no rows of {BASE!r} and another method; found {methods}")
    sizes = choose(list(base))
    found = {(row["method"], row["bytes"]): row for row in rows}
    caption = (
        f"Times faster than `{BASE}`, median of {facts['repeats']} repetitions; {facts['ranks']} "
        f"ranks on one host ({facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}), "
        f"{facts['threads']} thread each. Above 1 is faster. `bytes`: sent per rank, relative to "
        "the vector, at the largest size."
    )
    lines = [
        textwrap.fill(caption, 118),
        "",
        "| fp32 vector of | " + " | ".join(map(size_text, sizes)) + " | bytes |",
        "|---" * (len(sizes) + 2) + "|",
        "| gloo fp32: time | " + " | ".join(_time(base[size]) for size in sizes) + " | |",
    ]
    for name in methods:
        cells = [_speedup(found.get((name, size))) for size in sizes]
        sent = found.get((name, sizes[-1]))
        share = f"{sent['wire_bytes'] / sizes[-1]:.3f}" if sent else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {share} |")
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _speedup(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['speedup']:.2f}"


def insert(readme: str, text: str) -> str:
    """`readme` with `text` between the marks. ValueError unless each mark is there once."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"the README must hold {BEGIN.strip()} and {END} once each")
    head, _, rest = readme.partition(BEGIN)
    return head + BEGIN + text + END + rest.partition(END)[2]


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args(argv)
    if not RESULTS.exists():
        print(f"{RESULTS.relative_to(ROOT)} is not there; run benchmarks/allreduce.py --json first")
        return 1
    before = README.read_text()
    after = insert(before, table(json.loads(RESULTS.read_text())))
    if args.check:
        print("up to date" if before == after else "README.md is not up to date")
        return int(before != after)
    README.write_text(after)
    print(f"wrote the table of {RESULTS.relative_to(ROOT)} into README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
