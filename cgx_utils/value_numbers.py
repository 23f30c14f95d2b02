"""Numbers of a model's values, which key their random numbers whatever the layout of buckets."""

from __future__ import annotations

import torch

from cgx_utils.names import Names


class ValueNumbers:
    """The number of each parameter's first value: parameters with known names in the model's order,
    then others in the order in which they are asked for.
    """

    def __init__(self) -> None:
        self._firsts: dict[int, int] = {}  # by id of the parameter
        self._next = 0

    def forget(self) -> None:
        """The model is gone, or has another layout."""
        self._firsts, self._next = {}, 0

    def first_of(self, parameter: torch.Tensor, names: Names) -> int:
        if not self._firsts:
            self._next = 0
            for _, one in names.known():
                self._add(one)
        if id(parameter) not in self._firsts:  # its name is not known
            self._add(parameter)
        return self._firsts[id(parameter)]

    def _add(self, parameter: torch.Tensor) -> None:
        self._firsts[id(parameter)] = self._next
        self._next += parameter.numel()
