"""The tables of docs/formats.md, made by casting: what each format is, and errors of blocks.

    python -m tests.docs.formats_table [--write]

Without --write the status is 1 where the page has other tables. Needs ml_dtypes and gfloat.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from tests.docs.documents import ROOT, marked
from tests.emulate.models import differ
from tests.emulate.oracles import FORMATS, oracles, values
from torch_cgx import emulate
from torch_cgx.cli.formats import range_of, rows

PAGE = ROOT / "docs" / "formats.md"
STRIDE = 1 << 12  # of the floats that tests/emulate/test_oracles.py compares
ELEMENTS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8")
OF_BLOCKS = {
    **dict.fromkeys(ELEMENTS, "model in NumPy, gfloat, torchao"),
    "mxint8": "model in NumPy",
    "nvfp4": "model in NumPy, torchao",
    "fp8_block128": "model in NumPy",
}
ROUNDINGS = ("floor", "ceil", "even", "rceil")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _compared(name: str) -> str:
    """With what tests/emulate compares how many values, none of which differs."""
    if name in FORMATS:
        x = values(name, STRIDE)
        counts = [(one.name, int(one.holds(x).sum())) for one in oracles(name)]
        return ", ".join(f"{oracle}: 0 of {_spaced(n)}" for oracle, n in counts)
    if name in OF_BLOCKS:
        return f"0: {OF_BLOCKS[name]}"
    different, count = differ(name)
    return f"model in NumPy: {_spaced(different)} of {_spaced(count)}"


def _spaced(n: int) -> str:
    return f"{n:,}".replace(",", " ")


def formats_table() -> str:
    titles = ["format", "bits", "least to largest", "step at 1", "NaN", "±Inf", "-0", "beyond"]
    titles += ["where used", "values that differ"]
    lines = [_line(titles), "|---" * len(titles) + "|\n"]
    for row in rows():
        lines.append(
            _line(
                [
                    f"`{row['name']}`",
                    f"{row['bits']:.4g}",
                    range_of(row).replace(" x s", " × scale"),
                    "" if row["step"] is None else f"{row['step']:.3g}",
                    *(row[what].replace("all of", "of all in") for what in ("nan", "infinite")),
                    row["zero"],
                    row["beyond"],
                    row["used"],
                    _compared(row["name"]),
                ]
            )
        )
    return "".join(lines)


def error(format: emulate.Format) -> float:
    """Of 2^22 values from N(0, 1), the norm of the errors over the norm of the values."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(1 << 22, np.float32))
    y = emulate.cast(x, format)
    return float((y - x).double().norm() / x.double().norm())


def errors_table() -> str:
    lines = [
        _line(["blocks", *(f"`{rounding}`" for rounding in ROUNDINGS)]),
        "|---|---|---|---|---|\n",
    ]
    for name in ELEMENTS:
        formats = [emulate.preset(name, scale_rounding=rounding) for rounding in ROUNDINGS]
        lines.append(_line([f"`{name}`", *(f"{100 * error(f):#.3g} %" for f in formats)]))
    return "".join(lines)


TABLES = {"formats": formats_table, "block errors": errors_table}


def update(page: str) -> str:
    for name, make in TABLES.items():
        begin = f"<!-- {name} -->\n"
        page = page.replace(begin + marked(page, name), begin + make())
    return page


def main(argv: list[str]) -> int:
    if argv not in ([], ["--write"]):
        print(__doc__)
        return 2
    page = PAGE.read_text()
    new = update(page)
    if argv:
        PAGE.write_text(new)
        return 0
    return int(new != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
