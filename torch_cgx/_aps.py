"""APS of an all-reduce: the encoded layers of a tensor are shifted by powers of two before it, and
back after it (torch_cgx/_shifts.py; CPD, arXiv 1911.08907).

Before the reduction, one all-reduce MAX carries an exponent of each encoded layer, an int32, over
the same group. The caller waits for it: a reduction that is started later than on other ranks would
be another call there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C, _config, _shifts
from torch_cgx._dtypes import COMPUTED
from torch_cgx._work import WorkWithEnd

Plan = Sequence[tuple[int, "_C.Codec | None"]]


def check(aps: Any) -> None:
    """TypeError."""
    if not isinstance(aps, bool):
        raise TypeError(f"aps={aps!r}; allowed: True, False")


@functools.lru_cache(256)
def top_of(codec: _C.Codec) -> int:
    """U of the format that a codec sends. ValueError for codecs with scales of their own."""
    from torch_cgx import emulate

    given = codec.parameters
    if codec.codec in _config.HALVES:
        return _shifts.top_of(emulate.preset(codec.codec))
    if codec.codec == "float":
        return _shifts.top_of(
            emulate.Float(
                given["exponent"], given["mantissa"], variant=given.get("variant", "ieee")
            )
        )
    raise ValueError(
        f"aps=True with the codec {codec.describe()!r}; allowed: float, fp16, bf16, whose values "
        "have a range of their own; the scales of other codecs follow the values"
    )


class Shift:
    """The shift of a tensor of one rank. layers: of the tensor; exact ones are left alone. count:
    of ranks. dtype: of the tensor, float32, float16 or bfloat16. Not thread-safe.

    ValueError: a layer has a codec without a range.
    """

    def __init__(self, layers: Plan, count: int, dtype: torch.dtype):
        self._count, self._dtype = count, dtype
        self._numels = [numel for numel, _ in layers]
        self._encoded = [number for number, (_, codec) in enumerate(layers) if codec is not None]
        self._tops = [top_of(codec) for _, codec in layers if codec is not None]
        self._there: list[_shifts.Factors] = []
        self._back: list[_shifts.Factors] = []
        self._back_to_residual: list[_shifts.Factors] = []

    def __len__(self) -> int:
        """How many layers are shifted."""
        return len(self._encoded)

    def exponents(self, tensor: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Of this rank's contributions: tensor + residual. int32, on the tensor's device."""
        layers = self._layers(tensor)
        if residual is not None:
            owed = self._layers(residual)
            layers = [a.float() + b.float() for a, b in zip(layers, owed, strict=True)]
        return _shifts.exponents_of(_shifts.maxima_of(layers), self._count)

    def decide(self, exponents: torch.Tensor) -> None:
        """Takes the largest exponents of all ranks."""
        tops = torch.tensor(self._tops, dtype=torch.int32, device=exponents.device)
        shifts = _shifts.shifts_of(exponents, tops, self._dtype)
        self._there, self._back_to_residual = map(_shifts.factors_of, (shifts, -shifts))
        # Formats that saturate would make a finite number of an infinity.
        self._back = _shifts.factors_of(-shifts, exponents == _shifts.NONFINITE)

    def apply(self, tensor: torch.Tensor, residual: torch.Tensor | None) -> None:
        """In place, after `decide`."""
        self._scale(tensor, self._there)
        if residual is not None:
            self._scale(residual, self._there)

    def undo(self, tensor: torch.Tensor, residual: torch.Tensor | None) -> None:
        """In place; a layer whose exponent is not finite becomes NaN."""
        self._scale(tensor, self._back)
        if residual is not None:
            self._scale(residual, self._back_to_residual)

    def _scale(self, tensor: torch.Tensor, factors: list[_shifts.Factors]) -> None:
        for layer, pair in zip(self._layers(tensor), factors, strict=True):
            _shifts.scale_(layer, pair)

    def _layers(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        every = tensor.detach().view(-1).split(self._numels)
        return [every[number] for number in self._encoded]


class ShiftedWork(WorkWithEnd):
    """The work of a reduction of a shifted tensor: its end shifts the tensor back."""


def all_reduce(
    tensor: torch.Tensor,
    layers: Plan,
    residual: torch.Tensor | None,
    group: dist.ProcessGroup | None,
    size: int,
    start: Callable[[], dist.Work],
) -> dist.Work:
    """Shifts the tensor and the residual, calls `start`, which begins the reduction, and returns
    its work, whose end shifts both back. Does nothing else if all layers are exact. An error of
    `start` leaves both as they were.
    """
    shift = Shift(layers, size, tensor.dtype)
    if len(shift) == 0:
        return start()
    with torch.no_grad():
        exponents = shift.exponents(tensor, residual)
        dist.all_reduce(exponents, dist.ReduceOp.MAX, group)
        shift.decide(exponents)
        shift.apply(tensor, residual)
        try:
            work = start()
        except BaseException:
            shift.undo(tensor, residual)
            raise
    return ShiftedWork(work, tensor, lambda: shift.undo(tensor, residual))


@contextlib.contextmanager
def simulated(
    tensors: list[torch.Tensor], residuals: list[torch.Tensor], layers: Plan
) -> Iterator[None]:
    """Inside, the tensors of all ranks are shifted, and their residuals, if there are any."""
    shift = Shift(layers, len(tensors), tensors[0].dtype)
    if len(shift) == 0:
        yield
        return
    owed: list[torch.Tensor | None] = [*residuals] or [None] * len(tensors)
    pairs = list(zip(tensors, owed, strict=True))
    with torch.no_grad():
        exponents = torch.stack([shift.exponents(*pair) for pair in pairs])
        shift.decide(exponents.amax(0))
        for pair in pairs:
            shift.apply(*pair)
        try:
            yield
        finally:
            for pair in pairs:
                shift.undo(*pair)


def check_tensors(
    tensor: torch.Tensor, layers: Plan, op: Any, residual: torch.Tensor | None
) -> None:
    """What would be an error after a shift. TypeError, ValueError."""
    codecs = [codec for _, codec in layers if codec is not None]
    if not codecs:
        return
    for codec in codecs:
        top_of(codec)
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"op={op!r} with aps=True; allowed: SUM, AVG")
    if tensor.dtype not in COMPUTED:
        raise TypeError(
            f"tensor is {tensor.dtype} with aps=True; allowed: {', '.join(map(str, COMPUTED))}"
        )
    if residual is None:
        return
    if residual.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"residual is {residual.dtype}; allowed: torch.float32, torch.bfloat16")
    if residual.shape != tensor.shape or not residual.is_contiguous():
        raise ValueError(
            f"residual has the shape {tuple(residual.shape)} and the strides {residual.stride()}; "
            f"allowed: a contiguous tensor of {tuple(tensor.shape)}"
        )
    if residual.device != tensor.device:
        raise ValueError(f"residual is on {residual.device}; allowed: {tensor.device}")
    if tensor.numel() > 0 and (
        residual.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    ):
        raise ValueError("residual shares memory with tensor; allowed: its own")
