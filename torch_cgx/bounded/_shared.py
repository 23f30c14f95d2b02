"""Tensors that share memory partly: what is stored for them, as torch.save stores storages.

A tensor that shares memory with another one, as `w` and `w[:10]`, is stored as a view: all that
share memory, directly or through others, are places in one run of values, which is stored once. So
they take the memory once in the file, and share it again when they are loaded.
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
    """A tensor to store: one of the state, or a run of values with several of them in it."""

    views: list[Named]
    _run: Run | None = None

    @property
    def names(self) -> list[str]:
        return [name for one in self.views for name in one.names]

    def named(self) -> Named:
        """A run with gaps is copied here, so that only one is in memory at a time."""
        tensor = self.views[0].tensor if self._run is None else self._run.values(self.views)
        return Named(tensor, self.names)

    def rule(self, rules: Rules) -> Rule:
        """Within the bounds of all names; `relative` is of the range of each view."""
        rule = rules.rule_of_all(self.names)
        if self._run is None or rule.kind != "relative" or rule.number == 0:
            return rule
        return Rule("max_error", min(_absolute(one, rules) for one in self.views))


@dataclass
class Run:
    """Values of a storage from the first that a view has to the last."""

    offset: int
    numel: int

    def values(self, views: Sequence[Named]) -> torch.Tensor:
        """1-D: 0 where no view has a value."""
        one = views[0].tensor
        run = _placed(one, self.offset, (self.numel,), (1,))
        seen = torch.zeros(self.numel, dtype=torch.bool, device="cpu")
        for view in views:
            place = _place(view.tensor, self.offset)
            steps = [(n, step) for n, step in zip(place.shape, place.stride, strict=True) if step]
            seen.as_strided([n for n, _ in steps], [s for _, s in steps], place.offset).fill_(True)
        if bool(seen.all()):
            return run
        # Bytes: some dtypes have no masked copy.
        copy = torch.zeros(self.numel, dtype=one.dtype, device=one.device)
        rows = copy.view(torch.uint8).view(self.numel, one.element_size())
        where = seen.to(one.device)
        rows[where] = run.view(torch.uint8).view(self.numel, one.element_size())[where]
        return copy


def stored(tensors: Sequence[Named]) -> tuple[list[Stored], list[int | View]]:
    """What to store for tensors, and where each one is: a number, or a view of one.

    Warns of tensors that share memory and cannot be views of one run, as they are of two dtypes:
    each is stored for itself.
    """
    runs: dict[int, tuple[list[int], Run]] = {}
    apart = []
    for group in groups(tensors):
        members = [tensors[number] for number in group]
        if len({one.tensor.untyped_storage().data_ptr() for one in members}) > 1:
            continue  # torch.save does not see it, either
        run = _run_of(members)
        if run is None:
            apart.append(members)
        else:
            runs.update(dict.fromkeys(group, (group, run)))
    if apart:
        _warn(apart)
    all_stored: list[Stored] = []
    places: list[int | View] = []
    numbers: dict[int, int] = {}  # of the run, by the first tensor in it
    for number, one in enumerate(tensors):
        if number not in runs:
            places.append(len(all_stored))
            all_stored.append(Stored([one]))
            continue
        group, run = runs[number]
        if group[0] not in numbers:
            numbers[group[0]] = len(all_stored)
            all_stored.append(Stored([tensors[i] for i in group], run))
        place = _place(one.tensor, run.offset)
        places.append(place._replace(number=numbers[group[0]]))
    return all_stored, places


def _run_of(members: Sequence[Named]) -> Run | None:
    """None: they are no views of one run of values."""
    tensors = [one.tensor for one in members]
    if len({tensor.dtype for tensor in tensors}) > 1:
        return None
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        return None
    offset = min(_first(tensor) for tensor in tensors)
    return Run(offset, max(_last(tensor) for tensor in tensors) + 1 - offset)


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
    """The bound on the difference that `relative` amounts to; 0: lossless."""
    rule = rules.rule_of_all(one.names)
    arguments = rule.arguments(plain(one.tensor))
    if not arguments:
        return 0.0
    with naming(one.name):
        return bound_of(_dtypes.parts_of(one.tensor), None, arguments["relative"], None).value


def _warn(apart: Sequence[Sequence[Named]]) -> None:
    shown = [" and ".join(one.name for one in members[:_SHOWN]) for members in apart[:_SHOWN]]
    warn_of_argument(
        f"{'; '.join(shown)}{'; ...' if len(apart) > _SHOWN else ''}: these share memory, as views "
        "of different dtypes or conjugates, and a file cannot keep that: each is stored in full, "
        "and they come back apart"
    )
