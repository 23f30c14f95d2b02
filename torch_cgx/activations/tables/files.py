"""Files of tables, in FewBit's format, and the shipped tables.

A NumPy .npz file; for each table the arrays NAMEbb-borders (float64, with the ends of the domain,
-100 and 100 or beyond) and NAMEbb-levels, where bb is the number of bits in two digits, as in
gelu03-levels. What FewBit does not read: NAMEbb-parity, only of tables over |x|, and
torch_cgx_version. A file without a version is FewBit's own.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_cgx.activations.tables.catalog import (
    celu_borders,
    elu_row,
    row_of,
    softplus_borders,
    softplus_row,
)
from torch_cgx.activations.tables.fit import check_bits
from torch_cgx.activations.tables.table import Table

Tables = dict[tuple[str, int], Table]
SHIPPED = Path(__file__).with_name("tables.npz")
_VERSION = 1
_VERSION_KEY = "torch_cgx_version"
_END = 100.0
_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
_KEY = re.compile(r"(.+)(\d\d)-(borders|levels|parity)")


def save(path: str | os.PathLike[str], tables: Iterable[Table]) -> None:
    """Writes a file with these tables, which replaces a former one as a whole. ValueError, before
    anything is written: a table without a name, two of equal name and bits.
    """
    from torch_cgx.bounded._replace import replacing

    arrays: dict[str, npt.NDArray[np.generic]] = {_VERSION_KEY: np.array(_VERSION)}
    for table in tables:
        if not table.name:
            raise ValueError("a table without a name cannot be saved; give it one: Table(name=...)")
        if not _NAME.fullmatch(table.name):
            raise ValueError(
                f"a table named {table.name!r} cannot be saved; allowed: Table(name=...) of ASCII "
                "letters, digits, and _ . : -"
            )
        key = f"{table.name}{table.bits:02d}"
        if f"{key}-levels" in arrays:
            raise ValueError(f"two tables named {table.name!r} of {table.bits} bits")
        low, high = min(-_END, 2 * table.borders[0]), max(_END, 2 * table.borders[-1])
        arrays[f"{key}-borders"] = np.array([low, *table.borders, high])
        arrays[f"{key}-levels"] = np.array(table.levels)
        if table.parity:
            arrays[f"{key}-parity"] = np.array(True)
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load(path: str | os.PathLike[str]) -> Tables:
    """The tables of a file by name and bits. OSError: the file cannot be read. ValueError names the
    file and the array that is not allowed, or the version.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {key: found[key] for key in found.files}
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception:  # NumPy's and zipfile's of a damaged file are of a dozen types
        raise ValueError(f"{os.fspath(path)}: not an .npz file of tables") from None
    version = arrays.pop(_VERSION_KEY, np.array(_VERSION))
    if version.shape or version.dtype.kind not in "iu" or version != _VERSION:
        raise ValueError(
            f"{os.fspath(path)}: tables of version {version}; this torch_cgx reads version "
            f"{_VERSION}, and FewBit's files"
        )
    parts: dict[tuple[str, int], dict[str, npt.NDArray[np.generic]]] = {}
    for key, array in arrays.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"{os.fspath(path)}: array {key!r}; allowed: names as gelu03-borders, gelu03-levels"
            )
        parts.setdefault((match[1], int(match[2])), {})[match[3]] = array
    return {
        key: _table(f"{os.fspath(path)}: {key[0]}{key[1]:02d}", *key, part)
        for key, part in parts.items()
    }


def _table(where: str, name: str, bits: int, part: dict[str, npt.NDArray[np.generic]]) -> Table:
    for what in ("borders", "levels"):
        if what not in part:
            raise ValueError(f"{where}-{what} is missing")
        if part[what].ndim != 1 or part[what].dtype.kind not in "fiu":
            raise ValueError(
                f"{where}-{what}: shape {part[what].shape}, dtype {part[what].dtype}; allowed: one "
                "dimension of real numbers"
            )
    parity = part.get("parity", np.array(False))
    if parity.shape or parity.dtype != bool:
        raise ValueError(f"{where}-parity: {parity!r}; allowed: one bool")
    try:
        table = Table.from_fewbit(
            part["borders"].tolist(), part["levels"].tolist(), parity=bool(parity), name=name
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if table.bits != bits:
        raise ValueError(f"{where}: {len(table.levels)} levels, which is {table.bits} bits")
    return table


def add(path: str | os.PathLike[str], *tables: Table) -> None:
    """Writes the tables into a file, which keeps its others."""
    known = load(path) if os.path.exists(path) else {}
    save(path, (known | {(table.name, table.bits): table for table in tables}).values())


def pick(path: str | os.PathLike[str], name: str, bits: int) -> Table:
    """One table of a file. ValueError, which lists the file's tables, if it is missing."""
    tables = load(path)
    if (name, bits) not in tables:
        has = ", ".join(f"{known} {width}" for known, width in tables)
        raise ValueError(f"{os.fspath(path)} has no table {name!r} of {bits!r} bits; it has: {has}")
    return tables[name, bits]


@functools.cache
def _shipped() -> Tables:
    return load(SHIPPED)


def shipped(name: str, bits: int) -> Table:
    """The table of a function of the catalogue: uniform weight on [-10, 10], over |x| where the
    derivative is even. ValueError: no such name, bits outside 1 to 4.
    """
    row_of(name)
    check_bits(bits)
    return _shipped()[name, bits]


@functools.lru_cache(maxsize=256, typed=True)
def table_for(
    name: str, bits: int, *, alpha: float = 1.0, beta: float = 1.0, threshold: float = 20.0
) -> Table:
    """The table of a function with parameters: alpha of celu and elu, beta and threshold of
    softplus. One that does not follow from a shipped table is fitted at the first use, in 0.1 s.
    ValueError: a parameter that the function does not have, or that is not allowed.
    """
    table = shipped(name, bits)
    given = {"alpha": alpha != 1.0, "beta": beta != 1.0, "threshold": threshold != 20.0}
    has = {"celu": {"alpha"}, "elu": {"alpha"}, "softplus": {"beta", "threshold"}}.get(name, set())
    for parameter, set_ in given.items():
        if set_ and parameter not in has:
            raise ValueError(f"{parameter}= with {name!r}, which does not have it")
    borders = table.borders
    if name == "celu":
        borders = celu_borders(borders, alpha)
    elif name == "elu" and given["alpha"]:
        if not math.isfinite(alpha):
            raise ValueError(f"alpha={alpha!r}; allowed: finite numbers")
        return Table.fit(elu_row(alpha), bits)
    elif name == "softplus":
        low, high = row_of(name).domain
        if not threshold > low:
            raise ValueError(f"threshold={threshold!r}; allowed: numbers above {low:g}")
        if threshold < high:
            table = Table.fit(softplus_row(threshold), bits)
        borders = softplus_borders(table.borders, beta)
    return Table(borders, table.levels, table.parity, name)
