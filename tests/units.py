"""Writes the units that sources are compiled in (build_engine.py) as files, and prints their names.
For the Makefiles of tests that build the core by themselves.

    python3 tests/units.py FOLDER SOURCE...

A unit that is as it was keeps its time.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True
import build_engine  # noqa: E402


def main(folder: str, *sources: str) -> None:
    paths = [str(Path(source).resolve().relative_to(ROOT)) for source in sources]
    for unit in build_engine.units_of(paths, build_engine.in_units()):
        print(build_engine.write_unit(Path(folder), unit))


if __name__ == "__main__":
    main(*sys.argv[1:])
