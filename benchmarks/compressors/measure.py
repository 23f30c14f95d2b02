"""The measuring process of benchmarks/bounded.py:

    python -m benchmarks.compressors.measure WANTED RESULT

WANTED is JSON: names of corpora and methods, `corpora.Sizes`, rounds. RESULT: a JSON file. It is a
process of its own because the peers' packages need their own environment, and because it binds
itself to one core.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._codec_cases import CODES
from benchmarks._command import quartiles
from benchmarks.compressors import corpora, entropy_stage, methods, packages
from benchmarks.compressors.compressor import Compressor, words_of
from tests import _machinery

ENTROPY = "entropy stage, {}"  # how names of coders read, which are no methods
LEAST_SECONDS = 0.005  # of a sample: shorter calls are repeated within it
LARGE = 1 << 23  # bytes: values beyond a cache, where a round takes up to 20 s ...
MOST_ROUNDS = 5  # ... have fewer
CONTROL = "control, {} threads"  # how names of controls read; the number of threads
_CHUNK = 1 << 22  # values that are compared at once
_WAYS = ("compress", "decompress")

Row = dict[str, Any]
Calls = dict[tuple[str, str], Callable[[], object]]  # by method, or "", and what it does


class Cores:
    """Which cores this process has, and the last of them to measure on."""

    def __init__(self) -> None:
        pinning = hasattr(os, "sched_setaffinity")
        self._all = sorted(os.sched_getaffinity(0)) if pinning else []
        self.count = len(self._all) or os.cpu_count() or 1

    @contextlib.contextmanager
    def bound(self, threads: int) -> Iterator[None]:
        """Binds this thread, and the threads that it starts, to the last `threads` cores; torch
        uses as many threads.
        """
        before = torch.get_num_threads(), os.sched_getaffinity(0) if self._all else set()
        self._set(threads, set(self._all[-threads:]))
        try:
            yield
        finally:
            self._set(*before)

    def _set(self, threads: int, cores: set[int]) -> None:
        if self._all:
            os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def worst_error(exact: torch.Tensor, found: Any, lossless: bool) -> float:
    """Largest |exact - found| in float64, 0 for NaN of NaN and for equal infinities; inf where one
    alone is NaN, or where lossless values have other bits. found: the values in their order, tensor
    or array.
    """
    x = words_of(exact)
    tensor = isinstance(found, torch.Tensor)
    y = words_of(found.cpu()) if tensor else found.reshape(-1)
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{y.shape} values of {y.dtype} came back of {x.shape} of {x.dtype}")
    if lossless:
        return 0.0 if x.tobytes() == y.tobytes() else math.inf
    worst = 0.0
    for start in range(0, x.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        a, b = x[part].astype(np.float64), y[part].astype(np.float64)
        with np.errstate(invalid="ignore"):  # inf - inf
            error = np.abs(a - b)
        error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
        largest = float(error.max())
        worst = max(worst, largest if not math.isnan(largest) else math.inf)
    return worst


def control(threads: int) -> Callable[[], object]:
    """zlib, twice: two cores take half the time for it, unless the machine is busy. threads: 1 or
    2.
    """
    piece = np.random.RandomState(0).bytes(1 << 19)

    def half() -> None:
        zlib.compress(piece, 1)

    def run() -> None:
        if threads == 1:
            half()
            half()
            return
        other = threading.Thread(target=half)
        other.start()
        half()
        other.join()

    return run


def measure(cell: corpora.Cell, names: list[str], rounds: int, cores: Cores) -> Row:
    """The row of a cell, with a row for each method that takes its dtype and bound."""
    x, lossless = cell.values, cell.max_error == 0
    other = x.clone()
    calls: Calls = {("", "copy"): lambda: other.copy_(x)}
    if x.dtype != torch.uint16:  # which it does not know
        calls["", "torch aminmax"] = lambda: torch.aminmax(x)
    if x.dtype in CODES:
        calls["", "scan"] = lambda: _machinery.codec_scan(x.data_ptr(), CODES[x.dtype], x.numel())
    stage = None if lossless else methods.stage_alone(x, cell.max_error)
    if stage is not None:
        calls["", "stage alone"] = stage
    if cores.count > 1:
        calls |= {("", CONTROL.format(threads)): control(threads) for threads in (1, 2)}
    rows = {}
    for name in names:
        method = methods.METHODS[name]
        if not method.takes(x, cell.max_error):
            continue
        try:
            with cores.bound(method.threads):
                compressor = method.make(x, cell.max_error)
                payload = compressor.compress()
                error = worst_error(x, compressor.decompress(payload), lossless)
        except Exception as broke:
            if name in methods.OWN:
                raise
            rows[name] = _broken(name, method.threads, broke)
            continue
        nbytes = compressor.nbytes(payload)
        rows[name] = _row(name, method.threads, cell, nbytes, error)
        calls[name, "compress"] = compressor.compress
        calls[name, "decompress"] = _decompression(compressor, payload)
    coders: dict[str, Row] = {}
    if cell.corpus in entropy_stage.CORPORA:
        entropy = entropy_stage.Stage(x, cell.max_error)
        for name, (compress, decompress, ratio) in entropy.calls().items():
            coders[name] = {"coder": name, "ratio": float(f"{ratio:.5g}"), "bytes": entropy.nbytes}
            calls[ENTROPY.format(name), "compress"] = compress
            calls[ENTROPY.format(name), "decompress"] = decompress
    roofs: dict[str, float] = {}
    measured = timed(calls, rounds, cores)
    one, two = (measured.pop(("", CONTROL.format(threads)), None) for threads in (1, 2))
    found = rows | {ENTROPY.format(name): row for name, row in coders.items()}
    for (name, what), seconds in measured.items():
        nbytes = found[name]["bytes"] if name.startswith(ENTROPY.format("")) else x.nbytes
        q1, median, q3 = (float(f"{nbytes / s / 1e9:.4g}") for s in reversed(quartiles(seconds)))
        if name:
            found[name] |= {what: median, f"{what}_q1": q1, f"{what}_q3": q3}
        else:
            roofs[what] = median
    return {
        "corpus": cell.corpus,
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "bytes": x.nbytes,
        "kind": cell.kind,
        "max_error": cell.max_error,
        "share": cell.share,
        "limit": cell.limit,
        "rounds": rounds,
        "roofs": roofs,
        # How many times faster two threads of the control are than one.
        "second_core": round(statistics.median(one) / statistics.median(two), 3)
        if one and two
        else None,
        "rows": list(rows.values()),
        "coders": list(coders.values()),
    }


def _decompression(compressor: Compressor, payload: Any) -> Callable[[], object]:
    return lambda: compressor.decompress(payload)


def _row(name: str, threads: int, cell: corpora.Cell, nbytes: int, error: float) -> Row:
    ratio = cell.values.nbytes / nbytes
    return {
        "method": name,
        "threads": threads,
        "bytes": nbytes,
        "ratio": float(f"{ratio:.5g}"),
        "of_limit": None if cell.limit is None else round(ratio / cell.limit, 4),
        "error": error,
        "held": error <= cell.max_error,
    }


def _broken(name: str, threads: int, why: Exception) -> Row:
    """Of a method that fails on these values: it holds no bound, and nothing of it is timed."""
    row: Row = {"method": name, "threads": threads, "bytes": 0, "ratio": 0.0, "of_limit": None}
    row |= {"error": math.inf, "held": False, "broke": f"{type(why).__name__}: {why}"[:200]}
    return row | dict.fromkeys((f"{way}{q}" for way in _WAYS for q in ("", "_q1", "_q3")), 0.0)


def timed(calls: Calls, rounds: int, cores: Cores) -> dict[tuple[str, str], list[float]]:
    """Seconds of each call in each round; the first call of each, not counted, says how many make
    a sample. A call that is a sample by itself follows another one, which is not counted either:
    memory that nobody has used for seconds may belong to a virtual machine's host again, and to get
    it back can take longer than the call.
    """
    repeats: dict[tuple[str, str], int] = {}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):
        for key, call in calls.items():
            count = repeats.get(key, 1)
            with cores.bound(_threads(*key)):
                if turn > 0 and count == 1:
                    call()
                start = time.perf_counter()
                for _ in range(count):
                    call()
                took = (time.perf_counter() - start) / count
            if turn == 0:
                repeats[key] = max(1, math.ceil(LEAST_SECONDS / max(took, 1e-7)))
            else:
                seconds[key].append(took)
    assert all(statistics.median(s) > 0 for s in seconds.values())
    return seconds


def _threads(method: str, what: str) -> int:
    if method in methods.METHODS:
        return methods.METHODS[method].threads
    return 2 if what == CONTROL.format(2) else 1


def _rounds(cell: corpora.Cell, wanted: int) -> int:
    return min(wanted, MOST_ROUNDS) if cell.values.nbytes > LARGE else wanted


def measure_all(wanted: dict[str, Any]) -> dict[str, Any]:
    cores = Cores()
    missing = {name: methods.METHODS[name].missing() for name in wanted["methods"]}
    for name, method in methods.METHODS.items():
        if name in missing and method.threads > cores.count:
            missing[name] = f"needs {method.threads} cores"
    names = [name for name, why in missing.items() if not why]
    sets = {name: packages.missing(corpora.CORPORA[name]) for name in wanted["corpora"]}
    there = [name for name, why in sets.items() if not why]
    with cores.bound(1):
        cells = [
            measure(cell, names, _rounds(cell, wanted["rounds"]), cores)
            for cell in corpora.cells(there, corpora.Sizes(**wanted["sizes"]))
        ]
    return {
        "cells": cells,
        "not_measured": {name: why for name, why in (missing | sets).items() if why},
        "packages": _packages(there),
    }


def _packages(names_of_sets: list[str]) -> dict[str, str]:
    """Versions of the packages that have the methods, and of the packages that have the sets."""
    names = {method.package for method in methods.METHODS.values() if method.package}
    found = packages.pins_of(corpora.CORPORA[name] for name in names_of_sets)
    for name in sorted(names | {"numpy"}):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main(argv: list[str]) -> int:
    wanted, result = argv
    Path(result).write_text(json.dumps(measure_all(json.loads(wanted))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
