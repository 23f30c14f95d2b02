"""`Table`: the few values that stand for the derivative of an activation function in backward."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from torch_cgx.activations.tables.objective import Function, OfTensor, Weight

_VERSION = 1  # of the pickled form
_MOST = 16  # levels


@dataclass(frozen=True, slots=True)
class Table:
    """A piecewise constant function: level i for values above i borders.

    borders: finite, strictly rising, one fewer than levels, without the ends of the domain. A value
    equal to a border belongs to the lower piece; -Inf to the first piece, +Inf to the last; NaN
    gives NaN.
    levels: finite, 2 to 16.
    parity: borders are compared with |x|; none is negative.
    name: of the function, for files and messages.

    ValueError names the first number that is not allowed.
    """

    borders: tuple[float, ...]
    levels: tuple[float, ...]
    parity: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        borders, levels = _floats("borders", self.borders), _floats("levels", self.levels)
        if not 2 <= len(levels) <= _MOST:
            raise ValueError(f"{len(levels)} levels; allowed: 2 to {_MOST}")
        if len(borders) != len(levels) - 1:
            raise ValueError(
                f"{len(borders)} borders for {len(levels)} levels; allowed: {len(levels) - 1}, "
                "without the ends of the domain"
            )
        if not isinstance(self.parity, bool):
            raise TypeError(f"parity={self.parity!r}; allowed: True, False")
        if not isinstance(self.name, str):
            raise TypeError(f"name={self.name!r}; allowed: a str")
        if self.parity and borders[0] < 0:
            raise ValueError(f"borders[0]={borders[0]!r}; allowed with parity=True: 0 or more")
        object.__setattr__(self, "borders", borders)
        object.__setattr__(self, "levels", levels)

    @property
    def bits(self) -> int:
        """Bits of a code, 1 to 4."""
        return (len(self.levels) - 1).bit_length()

    def codes(self, x: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """How many borders are below each value (NaN: all of them), compared in float64."""
        values = np.asarray(x, np.float64)
        if self.parity:
            values = np.abs(values)
        return np.searchsorted(np.array(self.borders), values, side="left")

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    @overload
    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]: ...
    def __call__(self, x: npt.ArrayLike | torch.Tensor) -> npt.NDArray[np.float64] | torch.Tensor:
        """The level of each value, float64, in x's shape; a tensor on x's device if x is one."""
        if isinstance(x, torch.Tensor):
            values = x.detach().to(torch.device("cpu"), torch.float64).numpy()
            return torch.from_numpy(np.asarray(self(values))).to(x.device)
        given = np.asarray(x, np.float64)
        return np.where(np.isnan(given), np.nan, np.array(self.levels)[self.codes(given)])

    @classmethod
    def fit(
        cls,
        function: Function,
        bits: int,
        *,
        weight: Weight = "uniform",
        domain: Sequence[float] = (-10.0, 10.0),
        parity: bool = False,
        derivative: OfTensor | None = None,
        points: int = 768,
        name: str | None = None,
    ) -> Table:
        """The table q of 2^bits levels with the least integral of w(x) (f'(x) - q(x))^2 over
        `domain` (Novikov et al., Few-Bit Backward, ICML 2023).

        function: f, a name or row of the catalogue ("gelu", ...), or a callable on float64 tensors
            of one dimension that autograd differentiates.
        bits: 1 to 4. Fewer levels come back where more lower the integral by nothing, as for relu.
        weight: w. "uniform" is 1, "normal" the density of N(0, 1); a callable density on float64
            tensors; or a tensor or array of inputs, whose histogram is taken (inputs beyond the
            domain count at its ends).
        parity: fit on |x|, for an even f' and a domain symmetric about 0: twice as many pieces.
        derivative: f', a callable on float64 tensors, where autograd cannot have it.
        points: nodes of the dynamic programming, 64 to 2048; time grows by their square.
        name: of the table; by default the function's.

        Takes about 0.1 s. ValueError names what is not allowed.
        """
        from torch_cgx.activations.tables import fit as fitting

        borders, levels = fitting.fit(function, bits, weight, domain, parity, derivative, points)
        if name is None:
            name = function if isinstance(function, str) else _name(function)
        return cls(borders, levels, parity, name)

    def error(
        self,
        function: Function,
        *,
        weight: Weight = "uniform",
        domain: Sequence[float] = (-10.0, 10.0),
        derivative: OfTensor | None = None,
    ) -> float:
        """The integral of w(x) (f'(x) - q(x))^2 over `domain`; arguments as of `fit`. By a normal
        or histogram weight it is a mean squared error, by "uniform" it is in units of x.
        """
        from torch_cgx.activations.tables import objective

        borders = np.array(self.borders)
        if self.parity:
            borders = np.concatenate([-borders, borders])
        made = objective.make(function, weight, domain, derivative=derivative)
        return made.error(self, borders)

    @classmethod
    def from_fewbit(
        cls,
        borders: Iterable[float],
        levels: Iterable[float],
        *,
        parity: bool = False,
        name: str = "",
    ) -> Table:
        """A table of borders as FewBit has them: the two ends of the domain, which are left out
        here, included. ValueError unless there is one border more than levels.
        """
        given, values = _floats("borders", borders), _floats("levels", levels)
        if len(given) != len(values) + 1:
            raise ValueError(
                f"{len(given)} borders for {len(values)} levels; allowed: {len(values) + 1}, the "
                "two ends of the domain included"
            )
        return cls(given[1:-1], values, parity, name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Adds the table to the .npz file `path`, in place of one of equal name and bits. The file
        is replaced as a whole. ValueError: the table has no name, or the file is none of tables.
        """
        from torch_cgx.activations.tables import files

        files.add(path, self)

    @staticmethod
    def load(path: str | os.PathLike[str], name: str, bits: int) -> Table:
        """The table of a function in a file of `save` or of FewBit. ValueError, which lists what
        the file has, if it has no such table.
        """
        from torch_cgx.activations.tables import files

        return files.pick(path, name, bits)

    def __reduce__(self) -> tuple[Callable[..., Table], tuple[Any, ...]]:
        return _unpickled, (_VERSION, self.borders, self.levels, self.parity, self.name)


def _unpickled(version: int, *fields: Any) -> Table:
    if version != _VERSION:
        raise ValueError(
            f"pickled Table of version {version!r}; this torch_cgx reads version {_VERSION}"
        )
    return Table(*fields)


def _name(function: object) -> str:
    found = getattr(function, "name", None) or getattr(function, "__name__", "")
    return found if isinstance(found, str) and found.isidentifier() else ""  # no "<lambda>"


def _floats(what: str, values: Iterable[float]) -> tuple[float, ...]:
    """Finite numbers; borders also strictly rising."""
    try:
        found = tuple(float(value) + 0.0 for value in values)  # no -0.0
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what}={values!r}; allowed: a sequence of numbers") from None
    for i, value in enumerate(found):
        if not math.isfinite(value):
            raise ValueError(f"{what}[{i}]={value!r}; allowed: finite numbers")
        if what == "borders" and i and value <= found[i - 1]:
            raise ValueError(
                f"borders[{i}]={value!r} after {found[i - 1]!r}; allowed: strictly rising numbers"
            )
    return found
