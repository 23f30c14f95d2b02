"""docs/activations.md: its blocks run and print what it shows; its table is computed again."""

from __future__ import annotations

import sys

import torch

from tests.docs.documents import ROOT, code_blocks

TEXT = (ROOT / "docs" / "activations.md").read_text()


def test_blocks_run_and_print_what_the_page_shows(capsys):
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    shown = 0
    for block in code_blocks(TEXT, "alone"):
        exec(compile(block, "activations.md", "exec"), names)
        said = capsys.readouterr().out
        after = TEXT.split(f"```python\n{block}```\n", 1)[1]
        if after.startswith("\nprints\n\n"):
            lines = "".join(f"    {line}".rstrip() + "\n" for line in said.splitlines())
            assert after.startswith(f"\nprints\n\n{lines}")
            shown += 1
    assert shown == 2


def test_the_table_of_bytes_is_that_of_its_command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "pictures"))
    import measure_activations

    sys.modules.pop("measure_activations")
    plain, *_, all_of_them = measure_activations.MEASURES
    for line in measure_activations.rows([plain, all_of_them]):
        assert f"\n{line}\n" in TEXT
