"""Made-up results of the benchmark of error-bounded compression."""

from __future__ import annotations

from benchmarks.compressors.corpora import MEMORY
from benchmarks.compressors.methods import ORIGINAL, OURS, TWO_THREADS
from benchmarks.report.bounded import GAUSSIAN


def row_of(method, ratio, compress, decompress, held=True, nbytes=100, of_limit=None):
    row = {"method": method, "threads": 1, "bytes": nbytes, "ratio": ratio, "of_limit": of_limit}
    row |= {"error": 0.0 if held else 1.0, "held": held}
    for way, rate in (("compress", compress), ("decompress", decompress)):
        row |= {way: rate, f"{way}_q1": rate, f"{way}_q3": rate}
    return row


def cell_of(corpus, max_error, rows, **more):
    base = {"corpus": corpus, "max_error": max_error, "rows": rows, "bytes": 4000}
    return (
        base
        | {"shape": [1000], "dtype": "float32", "limit": None, "roofs": {}, "second_core": None}
        | more
    )


def document_of(**changed):
    """All that the targets need, each of them just met; changed: rows of cgx by corpus."""
    cells = []
    for corpus, bound in GAUSSIAN:
        rows = [row_of(OURS, 3.21, 1, 1, of_limit=0.97), row_of(ORIGINAL, 3.0, 0.1, 0.1)]
        cells.append(cell_of(corpus, bound, rows, limit=3.3))
    sine = [row_of(name, 41, 1, 1) for name in (OURS, ORIGINAL, "SZ3")]
    cells.append(cell_of("sine", 1e-4, sine))
    zeros = [row_of(OURS, 2e4, 1, 1, nbytes=200), row_of("zstd 1", 2.02e4, 1, 1)]
    cells.append(cell_of("zeros", 1e-4, zeros, shape=[10**6]))
    memory = [row_of(OURS, 3.6, 1.2, 2.0), row_of(TWO_THREADS, 3.6, 2.04, 3.5)]
    roofs = {"copy": 6.66, "scan": 10.0, "stage alone": 3.0}
    cells.append(cell_of(MEMORY, 1e-4, memory, roofs=roofs))
    for cell in cells:
        cell["rows"][0] |= changed.get(cell["corpus"], {})
    machine = {"simd": "avx2", "cpu": "a CPU", "cores": 2, "torch": "2", "rounds": 11}
    return {"machine": machine, "cells": cells, "not_measured": {}}
