"""Reading the project's own documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def marked(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and `<!-- /name -->`."""
    parts = re.split(rf"<!-- /?{name} -->\n", text)
    assert len(parts) == 3, f"marks of {name!r}: {len(parts) - 1} instead of 2"
    return parts[1]


def table(text: str) -> list[dict[str, str]]:
    """The rows of the first table, by the names of its columns, without backquotes."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    head, rule, *body = rows
    assert set("".join(rule)) <= {"-", ":"}, rule
    return [dict(zip(head, row, strict=True)) for row in body]


def code_blocks(text: str, mark: str) -> list[str]:
    """The Python blocks that stand behind `<!-- run: mark -->`."""
    return re.findall(rf"<!-- run: {mark} -->\n```python\n(.*?)```", text, re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
