"""How commands show numbers, tables and progress."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Aligned columns; `left`: the numbers of the columns that are aligned left."""
    every = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    lines = []
    for row in every:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def size_text(nbytes: float) -> str:
    """As in 512 B, 64 KiB, 1.5 MiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return (
                f"{nbytes / size:.3g} {unit}"
                if nbytes < 1000 * size
                else f"{nbytes / size:.0f} {unit}"
            )
    return f"{nbytes:.0f} B"


def time_text(seconds: float) -> str:
    """As in 12.3 us, 4.56 ms, 7.89 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def rate_text(bits_per_second: float) -> str:
    """As in 940 Mbit/s, 1.2 Gbit/s."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.3g} {unit}"
    return f"{bits_per_second:.0f} bit/s"


def free_memory() -> int:
    """Bytes that this host can give to processes without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@contextlib.contextmanager
def without_log_of_torch() -> Iterator[None]:
    """Nothing reaches stderr: torch's C++ code logs there, with backtraces, what it raises too."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def progress(total: int, what: str, show: bool = True) -> Any:
    """A progress bar on stderr, where that is a terminal: a tqdm with update() and close()."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, disable=not (show and on_terminal()), leave=False)


def on_terminal() -> bool:
    """Whether stderr is a terminal; False where it is missing or closed."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def tenths(samples: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile; of one sample that sample."""
    if len(samples) == 1:
        return samples[0], samples[0]
    found = statistics.quantiles(samples, n=10, method="inclusive")
    return found[0], found[-1]
