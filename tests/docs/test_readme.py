"""README.md: its length, its example, its commands and its table of results."""

from __future__ import annotations

import re

from tests.docs.documents import README, ROOT, code_blocks, marked, table


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_the_example_is_short():
    (block,) = code_blocks(README, "two ranks")
    assert len(block.splitlines()) <= 12


def test_one_table_of_results():
    assert 4 <= len(table(marked(README, "benchmark summary"))) <= 7
    assert len(re.findall(r"^\|---", README, re.MULTILINE)) == 1


def test_make_targets_exist():
    targets = re.findall(r"^\s+make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
