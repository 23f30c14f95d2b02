"""benchmarks/readme_table.py, and the README's table against the results in the tree."""

from __future__ import annotations

import json

import pytest

from benchmarks import readme_table

MACHINE = {"repeats": 5, "ranks": 2, "cpu": "a CPU", "cores": 2, "torch": "2.13.0", "threads": 1}


def _document(sizes):
    rows = []
    for size in sizes:
        rows.append({"bytes": size, "method": "gloo fp32", "seconds": size / 1e9, "speedup": 1.0})
        other = {"method": "cgx shm 4 bit", "seconds": size / 2e9, "speedup": 2.04}
        rows.append({"bytes": size, **other, "wire_bytes": size * 0.129})
    for row in rows:
        row.setdefault("wire_bytes", row["bytes"])
    return {"machine": MACHINE, "rows": rows}


def test_table_has_a_column_per_size_and_a_row_per_method():
    text = readme_table.table(_document([64, 4096, 1 << 20, 1 << 26]))
    head, rule, base, row = text.split("\n\n")[1].splitlines()
    assert head == "| fp32 vector of | 4 KiB | 1 MiB | 64 MiB | bytes |"
    assert rule == "|---|---|---|---|---|"
    assert base == "| gloo fp32: time | 4 us | 1.05 ms | 67.1 ms | |"
    assert row == "| cgx shm 4 bit | 2.04 | 2.04 | 2.04 | 0.129 |"


def test_sizes_are_spread_and_the_largest_is_there():
    sizes = [4**k for k in range(1, 14)]
    assert readme_table.choose(sizes) == [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 26]
    assert readme_table.choose([8, 4]) == [4, 8]


def test_marks_must_be_there_once():
    text = "a\n<!-- benchmark -->\nold\n<!-- /benchmark -->\nb\n"
    new = "a\n<!-- benchmark -->\nnew\n<!-- /benchmark -->\nb\n"
    assert readme_table.insert(text, "new\n") == new
    for bad in ("no marks", text + text):
        with pytest.raises(ValueError, match="once each"):
            readme_table.insert(bad, "new\n")


def test_nothing_to_compare_with_is_an_error():
    document = _document([4096])
    document["rows"] = document["rows"][1:]
    with pytest.raises(ValueError, match="gloo fp32"):
        readme_table.table(document)


def test_the_readme_shows_the_results_in_the_tree():
    readme = readme_table.README.read_text()
    if readme_table.RESULTS.exists():
        text = readme_table.table(json.loads(readme_table.RESULTS.read_text()))
        assert readme_table.insert(readme, text) == readme, "run python benchmarks/readme_table.py"
    else:
        assert "Not measured yet" in readme
