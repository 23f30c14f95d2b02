"""Writes the units that sources are compiled in (build_engine.py) as files, and prints their names.
For the Makefiles of tests that build the core by themselves.

    python3 tests/units.py FOLDER SOURCE...

A unit that is as it was keeps its time. In a copy of csrc/ and tests/ without build_engine.py every
source is a unit.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True


def main(folder: str, *sources: str) -> None:
    paths = [str(Path(source).resolve().relative_to(ROOT)) for source in sources]
    if not (ROOT / "build_engine.py").exists():
        print(*(_alone(Path(folder), path) for path in paths))
        return
    import build_engine

    for unit in build_engine.units_of(paths, build_engine.in_units()):
        print(build_engine.write_unit(Path(folder), unit))


def _alone(folder: Path, path: str) -> Path:
    unit, text = folder / path, f'#include "{path.partition("/")[2]}"\n'
    if not unit.exists() or unit.read_text() != text:
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)
    return unit


if __name__ == "__main__":
    main(*sys.argv[1:])
