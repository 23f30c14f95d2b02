"""Writes torch_cgx/activations/tables/tables.npz, the shipped tables of few-bit functions.

    python tools/fit_tables.py            writes the file, where it is not up to date
    python tools/fit_tables.py --check    exit status 1 where it is not up to date

Every function of torch_cgx/activations/_catalog.py at 1 to 4 bits, uniform weight on its domain. A
file whose numbers are within 1e-9 is up to date: libraries of mathematics differ in last digits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch_cgx.activations.tables.catalog import CATALOG
from torch_cgx.activations.tables.files import SHIPPED, Tables, load, save
from torch_cgx.activations.tables.table import Table

_CLOSE = 1e-9


def fitted() -> Tables:
    """All tables, by name and bits."""
    return {
        (row.name, bits): Table.fit(row, bits, domain=row.domain, parity=row.parity)
        for row in CATALOG.values()
        for bits in range(1, 5)
    }


def stale(made: Tables, kept: Tables) -> Iterator[str]:
    """What differs, a line each."""
    for key in made.keys() | kept.keys():
        name = f"{key[0]} {key[1]}"
        if key not in kept or key not in made:
            yield f"{name}: {'missing' if key in made else 'not a function of the catalogue'}"
            continue
        new, old = made[key], kept[key]
        if (new.parity, len(new.levels)) != (old.parity, len(old.levels)):
            yield f"{name}: another form"
            continue
        pairs = zip(new.borders + new.levels, old.borders + old.levels, strict=True)
        distance = max(abs(a - b) for a, b in pairs)
        if distance > _CLOSE:
            yield f"{name}: differs by {distance:.3g}"


def main() -> None:
    made = fitted()
    lines = sorted(stale(made, load(SHIPPED) if SHIPPED.exists() else {}))
    if not lines:
        return
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join([*lines, f"{SHIPPED.name}: run python tools/fit_tables.py"]))
    save(SHIPPED, made.values())
    print(f"wrote {SHIPPED.name}: {SHIPPED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
