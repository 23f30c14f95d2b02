"""Sums in a format of numbers: what N ranks get that round each partial sum to it, as CPD emulates
them (arXiv 1911.08907).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_cgx import _shifts

if TYPE_CHECKING:
    from torch_cgx.emulate import Format

ORDERS = ("rank", "reverse")


@dataclasses.dataclass(frozen=True)
class FormatSum:
    """How to sum. format: of each partial sum. kahan: carries the rounding error of each addition
    along, in the format, too. order: "rank" or "reverse", of the ranks. aps: shifts the values, by
    one power of two for all ranks, and rounds them to the format. node: micro-batches of a rank.
    """

    format: Format
    kahan: bool = False
    order: str = "rank"
    aps: bool = False
    node: int = 1

    def run(self, tensors: Sequence[torch.Tensor], step: int) -> torch.Tensor:
        """The float32 sum over the ranks of tensors[rank * node : (rank + 1) * node]. step: keys
        random numbers, with the number of the cast in this sum.
        """
        caster = _Caster(self.format, step)
        ranks = len(tensors) // self.node
        if self.node == 1:
            given = [tensor.float() for tensor in tensors]
        else:
            given = [
                self._local_sum(tensors[rank * self.node : (rank + 1) * self.node], caster)
                for rank in range(ranks)
            ]
        if self.order == "reverse":
            given.reverse()
        add = _kahan_sum if self.kahan else _plain_sum
        total = torch.zeros_like(given[0])
        if not self.aps:
            return add(total, given, caster)
        shift = Shift(self.format, given, ranks)
        # One at a time: hundreds of copies may not fit the memory.
        return shift.undone(add(total, (caster(shift.applied(one)) for one in given), caster))

    def _local_sum(self, tensors: Sequence[torch.Tensor], caster: _Caster) -> torch.Tensor:
        """The sum of one rank's micro-batches."""
        given = [tensor.float() for tensor in tensors]
        total = torch.zeros_like(given[0])
        if not self.aps:
            return _plain_sum(total, (caster(one) for one in given), caster)
        shift = Shift(self.format, given, self.node)
        scaled = (caster(shift.applied(one)) for one in given)
        return shift.undone(_plain_sum(total, scaled, caster))

    def sent_bytes(self, tensor: torch.Tensor, ranks: int) -> int:
        """Bytes that a rank sends to gather the values: of the format's bits where the values are
        numbers of it (with `aps`, or sums of micro-batches), else of the tensor's type; with `aps`,
        four bytes more for the exponent.
        """
        numel = tensor.numel()
        if self.aps or self.node > 1:
            bits = self.format.info(tensor.detach()).total_bits
            assert bits is not None
            payload = -int(-bits // 8)
        else:
            payload = numel * tensor.element_size()
        return (ranks - 1) * (payload + (4 if self.aps else 0))


class _Caster:
    """Casts float32 tensors; each call draws random numbers of its own."""

    def __init__(self, format: Format, step: int):
        self._format, self._step, self._number = format, step, 0

    def __call__(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        from torch_cgx.emulate import cast

        number, self._number = self._number, self._number + 1
        return cast(values, self._format, out, step=self._step, number=number)


class Shift:
    """The shift of float32 tensors that `count` of them share."""

    def __init__(self, format: Format, tensors: Sequence[torch.Tensor], count: int):
        exponent = _shifts.exponents_of(_shifts.maxima_of(tensors).amax(), count)
        device = exponent.device
        self._finite = bool(exponent != _shifts.NONFINITE)
        tops = torch.tensor(_shifts.top_of(format), dtype=torch.int32, device=device)
        self._shifts = _shifts.shifts_of(exponent, tops, torch.float32).view(1)

    def applied(self, values: torch.Tensor) -> torch.Tensor:
        return self._scaled(values, self._shifts)

    def undone(self, values: torch.Tensor) -> torch.Tensor:
        scaled = self._scaled(values, -self._shifts)
        return scaled if self._finite else scaled.fill_(float("nan"))

    @staticmethod
    def _scaled(values: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
        result = values.clone()
        _shifts.scale_(result, *_shifts.factors_of(shifts))
        return result


def _plain_sum(total: torch.Tensor, given: Iterable[torch.Tensor], caster: _Caster) -> torch.Tensor:
    wide = torch.empty_like(total)
    for values in given:
        caster(torch.add(total, values, out=wide), total)
    return total


def _kahan_sum(total: torch.Tensor, given: Iterable[torch.Tensor], caster: _Caster) -> torch.Tensor:
    excess = torch.zeros_like(total)
    for values in given:
        wanted = caster(values - excess)
        longer = caster(total + wanted)
        excess = caster(caster(longer - total) - wanted)
        total = longer
    return total


def make(accumulate: Any, kahan: Any, order: Any, aps: Any, node: Any, count: int) -> FormatSum:
    """Of the arguments of `simulate`, checked. count: of its tensors. TypeError, ValueError."""
    from torch_cgx.emulate import cast
    from torch_cgx.emulate._format import check_format

    try:
        format = check_format(accumulate)
    except (TypeError, ValueError) as error:
        raise type(error)(f"accumulate: {error}") from None
    if bool(cast(torch.zeros(1, dtype=torch.float32, device="cpu"), format) != 0):
        raise ValueError(f"accumulate={format}, which has no zero; allowed: formats with a zero")
    if aps:
        _shifts.top_of(format)
    if count % node != 0:
        raise ValueError(
            f"emulate_node={node} with {count} tensors; allowed: divisors of their number, which "
            "is ranks * emulate_node"
        )
    return FormatSum(format, kahan, order, aps, node)
