"""docs/compatibility.md: the table of torch's ways names tests that exist, and all of them."""

from __future__ import annotations

from tests.docs.documents import ROOT, marked, table

TEXT = (ROOT / "docs" / "compatibility.md").read_text()


def test_the_table_names_every_file_of_tests():
    named = {row["test"] for row in table(marked(TEXT, "ways"))}
    found = {f"tests/compat/{path.name}" for path in (ROOT / "tests/compat").glob("test_*.py")}
    assert named == found
