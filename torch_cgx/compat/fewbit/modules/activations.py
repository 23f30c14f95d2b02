"""FewBit's activation modules: torch.nn's constructors without `inplace` and `approximate`, and
`bits` by keyword. New programs find tables of their own and `inplace` in `torch_cgx.activations`.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torch_cgx.activations.few_bit.derivatives import STEPS
from torch_cgx.activations.tables.table import Table
from torch_cgx.compat.fewbit.functional import activations as functional
from torch_cgx.compat.fewbit.functional.stepwise import step_function, step_table

_LEFT_OUT = ("self", "inplace", "approximate")


class FewBitActivation(nn.Module):
    """Base class, of a class of torch.nn.

    bits: of a table of `functional.store`; None: 3, and 1 for step functions, which have no other.
    NoTable, which is a KeyError and a ValueError: the store has none. ValueError: a step function
    with other bits.
    """

    _function: ClassVar[Callable[..., Tensor]]
    _attributes: ClassVar[tuple[str, ...]] = ()  # that the function takes
    bits: int

    def __init__(self, *args: Any, bits: int | None = None, **options: Any) -> None:
        own = [one for one in type(self)._own().values() if one.name != "bits"]
        super().__init__(**inspect.Signature(own).bind(*args, **options).arguments)
        name = type(self)._function.__name__
        if name in STEPS:
            if bits not in (None, 1):
                raise ValueError(
                    f"{type(self).__name__}: bits={bits!r}; allowed: 1, as its derivative has two "
                    "values"
                )
            self.bits = 1
            return
        self.bits = 3 if bits is None else bits
        if isinstance(self.bits, bool) or not isinstance(self.bits, int):
            raise TypeError(f"{type(self).__name__}: bits={bits!r}; allowed: integers from 1 to 4")
        functional.store.added(name, self.bits)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = inspect.Signature(list(cls._own().values()))  # type: ignore[attr-defined]

    @classmethod
    def _own(cls) -> dict[str, inspect.Parameter]:
        """The parameters of the constructor."""
        base = inspect.signature(cls.__mro__[2].__init__).parameters  # type: ignore[misc]
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        kept = {
            name: one
            for name, one in base.items()
            if name not in _LEFT_OUT and one.kind not in variable
        }
        bits = inspect.Parameter("bits", inspect.Parameter.KEYWORD_ONLY, default=None)
        return {**kept, "bits": bits}

    def forward(self, input: Tensor) -> Tensor:
        function = type(self)._function
        arguments = {name: getattr(self, name) for name in self._attributes}
        if function.__name__ not in STEPS:
            arguments["bits"] = self.bits
        return function(input, **arguments)

    def extra_repr(self) -> str:
        said = [f"{name}={getattr(self, name)}" for name in self._attributes]
        return ", ".join([*said, f"bits={self.bits}"])


class Hardshrink(FewBitActivation, nn.Hardshrink):
    _function, _attributes = staticmethod(functional.hardshrink), ("lambd",)


class Hardsigmoid(FewBitActivation, nn.Hardsigmoid):
    _function = staticmethod(functional.hardsigmoid)


class Hardtanh(FewBitActivation, nn.Hardtanh):
    _function, _attributes = staticmethod(functional.hardtanh), ("min_val", "max_val")


class LeakyReLU(FewBitActivation, nn.LeakyReLU):
    _function, _attributes = staticmethod(functional.leaky_relu), ("negative_slope",)


class ReLU(FewBitActivation, nn.ReLU):
    _function = staticmethod(functional.relu)


class ReLU6(FewBitActivation, nn.ReLU6):
    _function = staticmethod(functional.relu6)


class Softshrink(FewBitActivation, nn.Softshrink):
    _function, _attributes = staticmethod(functional.softshrink), ("lambd",)


class Threshold(FewBitActivation, nn.Threshold):
    _function, _attributes = staticmethod(functional.threshold), ("threshold", "value")


class CELU(FewBitActivation, nn.CELU):
    _function, _attributes = staticmethod(functional.celu), ("alpha",)


class ELU(FewBitActivation, nn.ELU):
    _function, _attributes = staticmethod(functional.elu), ("alpha",)


class GELU(FewBitActivation, nn.GELU):
    _function = staticmethod(functional.gelu)


class Hardswish(FewBitActivation, nn.Hardswish):
    _function = staticmethod(functional.hardswish)


class LogSigmoid(FewBitActivation, nn.LogSigmoid):
    _function = staticmethod(functional.logsigmoid)


class Mish(FewBitActivation, nn.Mish):
    _function = staticmethod(functional.mish)


class SELU(FewBitActivation, nn.SELU):
    _function = staticmethod(functional.selu)


class Sigmoid(FewBitActivation, nn.Sigmoid):
    _function = staticmethod(functional.sigmoid)


class SiLU(FewBitActivation, nn.SiLU):
    _function = staticmethod(functional.silu)


class Softplus(FewBitActivation, nn.Softplus):
    _function, _attributes = staticmethod(functional.softplus), ("beta", "threshold")


class Softsign(FewBitActivation, nn.Softsign):
    _function = staticmethod(functional.softsign)


class Tanh(FewBitActivation, nn.Tanh):
    _function = staticmethod(functional.tanh)


class Tanhshrink(FewBitActivation, nn.Tanhshrink):
    _function = staticmethod(functional.tanhshrink)


class Stepwise(nn.Module):
    """`functional.stepwise` with a table of one's own, which is part of the state dict.

    borders, levels: one-dimensional. Borders are one fewer than levels, or one more, of which the
    first and the last are left out. levels: 2 to 16 (FewBit says 256, and computes none).
    parity, shift: as of the function. ValueError: a table that is not allowed.
    """

    borders: Tensor
    levels: Tensor

    def __init__(
        self, borders: Any, levels: Any, parity: bool | None = None, shift: float | None = None
    ) -> None:
        super().__init__()
        table = step_table(borders, levels, parity)
        self.parity, self.shift = parity, shift
        device = borders.device if isinstance(borders, Tensor) else torch.device("cpu")
        for name, values in (("borders", table.borders), ("levels", table.levels)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64, device=device))
        self._known: tuple[tuple[Tensor, Tensor], tuple[int, int], Table] | None = None

    def forward(self, input: Tensor) -> Tensor:
        return step_function(input, self._table(), self.shift)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Stepwise:
        def moved(buffer: Tensor) -> Tensor:
            """On another device, but float64: bfloat16 may not tell borders apart."""
            new = fn(buffer)
            return new if new.dtype == buffer.dtype else buffer.to(new.device)

        super()._apply(moved, recurse)
        return self

    def _table(self) -> Table:
        """Of the buffers as they are: loading a state dict, `to` and copying change them."""
        known, buffers = self._known, (self.borders, self.levels)
        versions = buffers[0]._version, buffers[1]._version
        same = known is not None and all(map(operator.is_, known[0], buffers))
        if known is None or not same or known[1] != versions:
            known = self._known = buffers, versions, step_table(*buffers, self.parity)
        return known[2]

    def extra_repr(self) -> str:
        return f"levels={len(self.levels)}, parity={self.parity}, shift={self.shift}"


__all__ = [
    "CELU",
    "ELU",
    "FewBitActivation",
    "GELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Stepwise",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]
