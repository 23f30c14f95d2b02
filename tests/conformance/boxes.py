"""Tensors of every layout: views of memory that holds more than their values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.conformance.values import Raw

_FILL = 0xA5
LAYOUTS = ("plain", "offset", "strided", "columns", "scalar")


@dataclasses.dataclass
class Box:
    """A tensor of `n` values in a memory of rows, one for each value or gap."""

    tensor: torch.Tensor
    _rows: npt.NDArray[Any]
    _places: npt.NDArray[Any]  # of the tensor's values, in their order
    _fill: int

    def found(self) -> Raw:
        """The bytes of the values."""
        return np.ascontiguousarray(self._rows[self._places]).reshape(-1)

    def beside(self) -> bool:
        """Whether no byte was written beside the tensor."""
        gaps = np.ones(len(self._rows), bool)
        gaps[self._places] = False
        return bool((self._rows[gaps] == self._fill).all())


def box(n: int, dtype: torch.dtype, layout: str = "plain", bits: Raw | None = None) -> Box:
    """A tensor with the values `bits`, or with what no input has.

    layout: "plain"; "offset" begins at the fourth value of its memory; "strided" has every other
    value; "columns" is a transposed matrix, if n is even; "scalar" has no dimension, if n is 1.
    """
    fill = 1 if dtype == torch.bool else _FILL
    length = {"offset": n + 4, "strided": 2 * n + 2}.get(layout, n)
    rows = np.full((length, dtype.itemsize), fill, np.uint8)
    whole = torch.from_numpy(rows.reshape(-1)).view(dtype)
    places = np.arange(n)
    if layout == "offset":
        tensor, places = whole[3 : 3 + n], places + 3
    elif layout == "strided":
        tensor, places = whole[1 : 1 + 2 * n : 2], 2 * places + 1
    elif layout == "columns" and n % 2 == 0:
        tensor, places = whole.view(n // 2, 2).t(), places.reshape(-1, 2).T.reshape(-1)
    else:
        tensor = whole.view(()) if layout == "scalar" and n == 1 else whole
    if bits is not None:
        rows[places] = bits.reshape(n, dtype.itemsize)
    return Box(tensor, rows, places, fill)
