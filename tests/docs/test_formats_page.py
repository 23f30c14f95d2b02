"""docs/formats.md: its tables are computed again. docs/emulation.md: its blocks run and print what
it shows. The blocks of docs/emulated_training.md run.
"""

from __future__ import annotations

import pytest
import torch

from tests.docs.documents import ROOT, code_blocks, marked, table

TEXT = (ROOT / "docs" / "emulation.md").read_text()
TRAINING = (ROOT / "docs" / "emulated_training.md").read_text()


def test_the_tables_are_up_to_date():
    pytest.importorskip("ml_dtypes")
    pytest.importorskip("gfloat")
    from tests.docs import formats_table

    page = formats_table.PAGE.read_text()
    assert formats_table.update(page) == page, "run python -m tests.docs.formats_table --write"


def test_the_table_has_each_preset():
    from torch_cgx import emulate

    rows = table(marked((ROOT / "docs" / "formats.md").read_text(), "formats"))
    assert [row["format"] for row in rows] == list(emulate.presets())


def test_blocks_run_and_print_what_the_page_shows(capsys):
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    shown = 0
    for block in code_blocks(TEXT, "alone"):
        exec(compile(block, "emulation.md", "exec"), names)
        said = capsys.readouterr().out
        after = TEXT.split(f"```python\n{block}```\n", 1)[1]
        if after.startswith("\nprints\n\n"):
            lines = "".join(f"    {line}".rstrip() + "\n" for line in said.splitlines())
            assert after.startswith(f"\nprints\n\n{lines}")
            shown += 1
        else:
            assert not said
    assert shown == 2


def test_blocks_of_the_page_on_training_run(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    blocks = code_blocks(TRAINING, "alone")
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, "emulated_training.md", "exec"), names)
    assert (tmp_path / "sqnr.png").stat().st_size > 1000


def test_the_page_on_training_has_each_recipe():
    from torch_cgx import emulate

    rows = TRAINING.split("| recipe | rounded | source |")[1].split("\n\n")[0]
    for name in emulate.recipes():
        assert f"`{name}`" in rows, name
