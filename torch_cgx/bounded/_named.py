"""Tensors of a state dict with their names: equal ones are found, and compressed once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._coarse import Note
from torch_cgx.bounded._compress import compress_noting
from torch_cgx.bounded._dtypes import BYTES, EIGHTHS
from torch_cgx.bounded._rules import Rule


@dataclass
class Named:
    """A tensor and all its names, in the order they were found."""

    tensor: torch.Tensor
    names: list[str]

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass
class Tensors:
    """A list of different tensors. Two with the same memory, dtype, shape and strides are one
    tensor with two names.
    """

    all: list[Named] = field(default_factory=list)
    _places: dict[Any, int] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor, name: str) -> int:
        """Adds a tensor; returns its number in `all`. ValueError, with the name: a payload cannot
        hold the tensor.
        """
        with naming(name):
            _dtypes.check(plain(tensor), also=BYTES)
        # The Named keeps the tensor, so no other tensor gets its memory meanwhile.
        how = (tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        place = (tensor.data_ptr(), tensor.dtype, tensor.device, *how)
        if tensor.numel() > 0 and place in self._places:
            number = self._places[place]
            self.all[number].names.append(name)
            return number
        self._places[place] = len(self.all)
        self.all.append(Named(tensor, [name]))
        return len(self.all) - 1

    @property
    def names(self) -> list[str]:
        return [name for one in self.all for name in one.names]


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts a name before the text of a TypeError or ValueError of the body."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"{name or 'the tensor'}: {error}") from None


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes if its dtype has no number in the format."""
    return tensor.detach().view(torch.uint8) if tensor.dtype in EIGHTHS else tensor


def payload_of(one: Named, rule: Rule, note: Note) -> torch.Tensor:
    """The payload of a tensor; the text of an error begins with its name. note: is called with the
    values and the bound.
    """
    tensor = plain(one.tensor)
    with naming(one.name):
        return compress_noting(tensor, note, **rule.arguments(tensor))


def join(name: str, key: Any) -> str:
    """The name of the entry `key` of the dict, list or tuple `name`."""
    return f"{name}.{key}" if name else str(key)
