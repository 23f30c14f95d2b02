"""`StepwiseStore`: the tables of derivatives, by the name of a function and bits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_cgx.activations.few_bit.derivatives import CONTINUOUS
from torch_cgx.activations.tables import files
from torch_cgx.activations.tables.table import Table

Pair = tuple[Tensor, Tensor]  # borders with the ends of the domain, levels
_END = 100.0  # of FewBit's domain


class NoTable(KeyError, ValueError):
    """There is no table of a name and bits. KeyError, as in FewBit, and ValueError."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError's own would quote it


def numbers(what: str, values: Any) -> list[float]:
    """Of a tensor (of any device), array or sequence of one dimension. TypeError, ValueError."""
    if isinstance(values, Tensor):
        values = values.detach().to(torch.device("cpu"), torch.float64).numpy()
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{what}={values!r}; allowed: a tensor or sequence of numbers") from None
    if found.ndim != 1:
        raise ValueError(f"{what} has the shape {found.shape}; allowed: one dimension")
    return found.tolist()


def custom_table(borders: Any, values: Any, name: str = "") -> Table:
    """A table of borders with the two ends of the domain, which may be infinite. ValueError."""
    edges, levels = numbers("borders", borders), numbers("values", values)
    if len(edges) != len(levels) + 1:
        raise ValueError(
            f"{len(edges)} borders for {len(levels)} values; allowed: {len(levels) + 1}, the two "
            "ends of the domain included"
        )
    return Table(tuple(edges[1:-1]), tuple(levels), name=name)


def both_sides(table: Table) -> tuple[list[float], list[float]]:
    """Borders with the ends of the domain, and levels. A table over |x| is unfolded."""
    borders, levels = list(table.borders), list(table.levels)
    if table.parity:
        if borders[0] == 0:  # of which only 0 itself is on the lower side
            borders, levels = borders[1:], levels[1:]
        borders = [-border for border in reversed(borders)] + borders
        levels = levels[:0:-1] + levels
    farthest = max([_END, *(2 * abs(border) for border in borders)])
    return [-farthest, *borders, farthest], levels


class StepwiseStore:
    """Tables that `fewbit.functional` takes for the derivatives of its functions.

    It begins with the shipped tables of torch_cgx: 13 functions, 1 to 4 bits. What `add` and `load`
    bring in takes their places, FewBit's own file included.
    """

    def __init__(self) -> None:
        self._added: dict[tuple[str, int], Table] = {}
        self._cache: dict[tuple[str, int, torch.device, torch.dtype], Pair] = {}

    def add(
        self, name: str, bits: int, table: Table | tuple[Sequence[float] | Tensor, Any]
    ) -> None:
        """table: (borders, levels), with one border more than levels, the ends of the domain
        included; or an activations.Table. ValueError: a table that is not allowed, or one of
        another number of bits.
        """
        if not isinstance(table, Table):
            table = custom_table(*table, name=name)
        if table.bits != bits:
            raise ValueError(
                f"{name}: bits={bits!r} for {len(table.levels)} levels; allowed: {table.bits}"
            )
        self._set({(name, bits): table})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Adds the tables of an .npz file, of FewBit or of `activations.Table.save`. ValueError,
        before anything is added: no such file.
        """
        self._set(files.load(path))

    def _set(self, tables: dict[tuple[str, int], Table]) -> None:
        self._added.update(tables)
        for key in [key for key in self._cache if key[:2] in tables]:
            del self._cache[key]

    def added(self, name: str, bits: int) -> Table | None:
        """A table that was added; None: the shipped one holds. NoTable: there is neither."""
        found = self._added.get((name, bits))
        if found is None and (name not in CONTINUOUS or bits not in (1, 2, 3, 4)):
            has = [str(known) for other, known in sorted(self._keys()) if other == name]
            raise NoTable(
                f"there is no table of {bits!r} bits for {name!r}; allowed: "
                f"{', '.join(has) or 'none of this name'}"
            )
        return found

    def table(self, name: str, bits: int) -> Table:
        """NoTable (KeyError, ValueError): there is none."""
        return self.added(name, bits) or files.shipped(name, bits)

    def get(
        self,
        name: str,
        bits: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Pair:
        """Borders with the ends of the domain, and levels: float64 on the CPU by default. The same
        tensors each time. A table over |x| (sigmoid, softsign, tanh, tanhshrink) is unfolded to
        both sides, with up to 2^(bits + 1) - 1 levels. NoTable (KeyError, ValueError).
        """
        table = self.table(name, bits)
        key = (name, bits, torch.device(device or "cpu"), dtype or torch.float64)
        if key not in self._cache:
            borders, levels = (
                torch.tensor(part, dtype=key[3], device=key[2]) for part in both_sides(table)
            )
            self._cache[key] = borders, levels
        return self._cache[key]

    def items(self, cached: bool = False) -> Iterator[tuple[Any, Pair]]:
        """((name, bits), (borders, levels)) of all tables. cached: ((name, bits, device, dtype),
        (borders, levels)) of what `get` has made.
        """
        if cached:
            yield from list(self._cache.items())
            return
        for name, bits in sorted(self._keys()):
            yield (name, bits), self.get(name, bits)

    def _keys(self) -> set[tuple[str, int]]:
        return {(name, bits) for name in CONTINUOUS for bits in (1, 2, 3, 4)} | set(self._added)

    def __len__(self) -> int:
        return len(self._keys())


__all__ = ["NoTable", "StepwiseStore"]
