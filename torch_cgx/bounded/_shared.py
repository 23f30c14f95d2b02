"""Storing tensors that partly share memory, such as `w` and `w[:10]`.

Tensors that share memory, directly or through others, are stored as views of one span of values,
which is stored once. So their values are in the file once, and they share memory again when they
are loaded, as with torch.save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_cgx._warnings import warn_of_argument
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import bound_of
from torch_cgx.bounded._named import Named, naming, plain
from torch_cgx.bounded._overlap import groups
from torch_cgx.bounded._rules import Rule, Rules
from torch_cgx.bounded._tree import View

_SHOWN = 4


@dataclass
class Stored:
    """A tensor to store: a tensor of the state, or a span of values of which several are views."""

    views: list[Named]
    _span: Span | None = None

    @property
    def names(self) -> list[str]:
        return [name for one in self.views for name in one.names]

    def named(self) -> Named:
        """The tensor with all its names. A span with gaps is copied by each call, so that only one
        copy is in memory at a time.
        """
        tensor = self.views[0].tensor if self._span is None else self._span.values(self.views)
        return Named(tensor, self.names)

    def rule(self, rules: Rules) -> Rule:
        """The rule within the bounds of all names. `relative` applies to each view by itself (to
        its greatest minus its least value), so it becomes the least `max_error` of all.
        """
        rule = rules.rule_of_all(self.names)
        if self._span is None or rule.kind != "relative" or rule.number == 0:
            return rule
        return Rule("max_error", min(_absolute(one, rules) for one in self.views))


@dataclass
class Span:
    """The values of a storage from the first to the last value of any view."""

    offset: int
    numel: int

    def values(self, views: Sequence[Named]) -> torch.Tensor:
        """The values as a 1-D tensor, with 0 where no view has a value."""
        one = views[0].tensor
        values = _placed(one, self.offset, (self.numel,), (1,))
        seen = torch.zeros(self.numel, dtype=torch.bool, device="cpu")
        for view in views:
            place = _place(view.tensor, self.offset)
            steps = [(n, step) for n, step in zip(place.shape, place.stride, strict=True) if step]
            seen.as_strided([n for n, _ in steps], [s for _, s in steps], place.offset).fill_(True)
        if bool(seen.all()):
            return values
        # By bytes, as torch has no masked copy for some dtypes.
        copy = torch.zeros(self.numel, dtype=one.dtype, device=one.device)
        rows = copy.view(torch.uint8).view(self.numel, one.element_size())
        where = seen.to(one.device)
        rows[where] = values.view(torch.uint8).view(self.numel, one.element_size())[where]
        return copy


def stored(tensors: Sequence[Named]) -> tuple[list[Stored], list[int | View]]:
    """The tensors to store for `tensors`, and the place of each: a number, or a view of one.

    Warns of tensors that share memory and cannot be views of one span, because their dtypes differ:
    each of them is stored by itself.
    """
    spans: dict[int, tuple[list[int], Span]] = {}
    apart = []
    for group in groups(tensors):
        members = [tensors[number] for number in group]
        if len({one.tensor.untyped_storage().data_ptr() for one in members}) > 1:
            continue  # several storages in the same memory: torch.save stores each, too
        span = _span_of(members)
        if span is None:
            apart.append(members)
        else:
            spans.update(dict.fromkeys(group, (group, span)))
    if apart:
        _warn(apart)
    all_stored: list[Stored] = []
    places: list[int | View] = []
    numbers: dict[int, int] = {}  # of a span in all_stored, by the first tensor in it
    for number, one in enumerate(tensors):
        if number not in spans:
            places.append(len(all_stored))
            all_stored.append(Stored([one]))
            continue
        group, span = spans[number]
        if group[0] not in numbers:
            numbers[group[0]] = len(all_stored)
            all_stored.append(Stored([tensors[i] for i in group], span))
        place = _place(one.tensor, span.offset)
        places.append(place._replace(number=numbers[group[0]]))
    return all_stored, places


def _span_of(members: Sequence[Named]) -> Span | None:
    """The span of which all tensors are views; None if there is none."""
    tensors = [one.tensor for one in members]
    if len({tensor.dtype for tensor in tensors}) > 1:
        return None
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        return None
    offset = min(_first(tensor) for tensor in tensors)
    return Span(offset, max(_last(tensor) for tensor in tensors) + 1 - offset)


def _first(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset())


def _last(tensor: torch.Tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return _first(tensor) + sum(step * (size - 1) for size, step in steps)


def _place(tensor: torch.Tensor, offset: int) -> View:
    return View(0, _first(tensor) - offset, tuple(tensor.shape), tensor.stride())


def _placed(
    tensor: torch.Tensor, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), offset, shape, stride)


def _absolute(one: Named, rules: Rules) -> float:
    """The `max_error` that the rule `relative` amounts to for a tensor; 0 for lossless."""
    rule = rules.rule_of_all(one.names)
    arguments = rule.arguments(plain(one.tensor))
    if not arguments:
        return 0.0
    with naming(one.name):
        return bound_of(_dtypes.reals_of(one.tensor), None, arguments["relative"], None).value


def _warn(apart: Sequence[Sequence[Named]]) -> None:
    shown = [" and ".join(one.name for one in members[:_SHOWN]) for members in apart[:_SHOWN]]
    warn_of_argument(
        f"{'; '.join(shown)}{'; ...' if len(apart) > _SHOWN else ''}: these share memory as views "
        "of different dtypes or as conjugates, which a file cannot represent: each is stored in "
        "full, and they share no memory when they are loaded"
    )
