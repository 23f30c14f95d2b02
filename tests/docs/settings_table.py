"""The table of settings in docs/configuration.md, made from the extension's own list.

    python -m tests.docs.settings_table [--write]

Without --write the status is 1 where the page has another table.
"""

from __future__ import annotations

import re
import sys

from tests.docs.documents import ROOT, marked
from torch_cgx import _C

PAGE = ROOT / "docs" / "configuration.md"
HEAD = """\
| option | variable | default | allowed | read | meaning |
|---|---|---|---|---|---|
"""


def allowed(rule: str) -> str:
    """Allowed values, from the words of the engine's errors."""
    if limits := re.fullmatch(r"integers from (\d+) to (\d+)", rule):
        return f"{limits[1]} to {_power(int(limits[2]))}"
    if choices := re.fullmatch(r"one of ([\w,]+)", rule):
        return choices[1].replace(",", ", ")
    if choices := re.fullmatch(r"a comma-separated list \(or 'none'\) of ([\w,]+)", rule):
        return f"list of {choices[1].replace(',', ', ')}, or none"
    return {"0 or 1": "0, 1", "0, 1 or AUTO": "0, 1, AUTO"}.get(rule, rule)


def _power(number: int) -> str:
    bits = number.bit_length()
    return f"2^{bits} - 1" if bits > 32 and number == 2**bits - 1 else str(number)


def table() -> str:
    lines = []
    for row in _C.settings():
        default = f"`{row['default']}`" if row["default"] else "(empty)"
        cells = [f"`{row['name']}`", f"`{row['variable']}`", default, allowed(row["allowed"])]
        cells += ["call" if row["per_call"] else "group", row["meaning"]]
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def main(argv: list[str]) -> int:
    if argv not in ([], ["--write"]):
        print(__doc__)
        return 2
    page = PAGE.read_text()
    old = marked(page, "settings")
    if argv:
        PAGE.write_text(page.replace(old, table()))
        return 0
    return int(old != table())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
