"""The tables of error-bounded compression by kind of data, of made-up results."""

from __future__ import annotations

import math

from benchmarks import bounded
from benchmarks.compressors.corpora import CORPORA
from benchmarks.compressors.methods import ORIGINAL, OURS
from benchmarks.report import bounded as figures
from benchmarks.report import bounded_kinds
from tests.benchmarks.bounded_rows import cell_of, document_of, row_of

FACTS = {"simd": "avx2", "cpu": "a CPU", "cores": 2, "torch": "2", "rounds": 11}
FACTS |= {"packages": {"iris-sample-data": "2.5.2", "zfpy": "1"}}
CLAMPED = row_of(ORIGINAL, 9000, 9, 9, held=False) | {"error": 1e20}


def _document():
    sea, smooth = "sea surface, NEMO", "field 2-D"
    cells = [
        cell_of("N(0,.02)", 1e-3, [row_of(OURS, 5.9, 2, 4), row_of("zfp", 3, 1, 1)], kind="noise"),
        cell_of(smooth, 0.005, [row_of(OURS, 15, 1, 1)], kind="smooth", share=1e-3),
        cell_of(smooth, 0.0, [row_of(OURS, 1.5, 1, 1)], kind="smooth", share=0.0),
        *(
            cell_of(
                sea,
                round(37 * share, 5),
                [row_of(OURS, 2.4, 1, 1), row_of("SZ3", 12.067, 1, 2), CLAMPED],
                kind="fields from packages",
                share=share,
                shape=[330, 360],
            )
            for share in (1e-3, 1e-4)
        ),
    ]
    return {"machine": FACTS, "cells": cells, "not_measured": {}}


def test_a_line_for_each_kind_that_was_measured():
    lines = bounded_kinds.table(_document()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[1:] == [
        "| noise, as weights before training | N(0,.02): 1000, float32 | 5.90 |  |  | zfp 3.00 |",
        "| smooth field, 2-D | field 2-D: 1000, float32 | 15.00 |  | 1.50 |  |",
        "| masked field, 1e20 | sea surface, NEMO (iris-sample-data 2.5.2): 330 x 360, float32 | "
        "2.40 | 2.40 |  | SZ3 12.07, SZ3 12.07 |",
    ]


def test_every_example_is_a_corpus():
    assert {corpus for _, corpus in bounded_kinds.EXAMPLES} <= set(CORPORA)


def test_older_results_have_the_examples_whose_bounds_are_absolute():
    lines = bounded_kinds.table(document_of()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[1:] == [
        "| noise, as weights before training | N(0,.02): 1000, float32 | 3.21 | 3.21 |  | "
        f"{ORIGINAL} 3.00, {ORIGINAL} 3.00 |"
    ]


def test_the_long_table_has_a_part_for_each_kind():
    lines = figures.table(_document()).splitlines()
    titles = [line for line in lines if line.endswith(":") and "|" not in line]
    assert titles == ["Noise:", "Smooth:", "Fields from packages (iris-sample-data 2.5.2):"]
    heads = [line for line in lines if line.startswith("| values")]
    assert heads[0] == ("| values | bound | ratio | compress | decompress | best other | better |")
    assert "best other" not in heads[1]
    assert "| field 2-D | 0.001 of range | 15.000 | 1.00 | 1.00 | nobody |" in lines
    assert "| field 2-D | lossless | 1.500 | 1.00 | 1.00 | nobody |" in lines
    # What the original format makes of values that it clamps says nothing.
    assert ORIGINAL not in heads[2] and "9000" not in "".join(lines)


def test_a_ratio_of_clamped_values_is_left_out(tmp_path):
    document = document_of()
    cell = document["cells"][0]
    clamped = row_of(ORIGINAL, 99, 1, 1, held=False) | {"error": math.inf}
    assert not figures.near(cell, clamped)
    assert figures.near(cell, clamped | {"error": 1.9e-4})
    cell["rows"][1] = clamped
    bounded.draw(document["cells"], "title", str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert bounded.verdict(cell | {"rows": [cell["rows"][0], clamped | {"broke": "E: x"}]}) == [
        "nobody is better than cgx in ratio and both speeds",
        f"{ORIGINAL} failed: E: x",
    ]
