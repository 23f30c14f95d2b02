"""Tensors of a state dict by name: which are the same, and their payloads."""

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
    """Tensors, each once: two that are the same memory are one tensor with two names."""

    all: list[Named] = field(default_factory=list)
    _places: dict[Any, int] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor, name: str) -> int:
        """Its number. ValueError, with the name: a tensor of a kind that payloads do not hold."""
        with naming(name):
            _dtypes.check(plain(tensor), also=BYTES)
        # The Named keeps the tensor, so its memory is not taken by another one meanwhile.
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
    """Puts a name before the text of a TypeError or ValueError within."""
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
    """`compress` of it; errors have its name. note: is given the values and the bound."""
    tensor = plain(one.tensor)
    with naming(one.name):
        return compress_noting(tensor, note, **rule.arguments(tensor))


def join(name: str, key: Any) -> str:
    """The name of what `key` leads to, below `name`."""
    return f"{name}.{key}" if name else str(key)
