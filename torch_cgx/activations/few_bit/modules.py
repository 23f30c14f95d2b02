"""The few-bit activation functions as modules: torch.nn's classes with `bits` and `table`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from torch_cgx.activations import functional as few
from torch_cgx.activations.few_bit.derivatives import STEPS
from torch_cgx.activations.few_bit.function import check_table
from torch_cgx.activations.tables.table import Table


class FewBitModule(nn.Module):
    """Base class: a module of torch.nn whose forward is a function of `activations.functional`.
    It takes the arguments of torch.nn's class, and `bits` and `table` by keyword.
    """

    _function: ClassVar[Callable[..., torch.Tensor]]
    _arguments: ClassVar[tuple[str, ...]] = ()  # attributes that the function takes
    bits: int
    table: Table | None

    def __init__(self, *args: Any, bits: int | None = None, table: Table | None = None, **kw: Any):
        super().__init__(*args, **kw)
        self._set(bits, table)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # For help() and editors, which would show *args.
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in (("bits", cls._default_bits()), ("table", None))
        ]
        base = inspect.signature(cls.__mro__[2])
        own = [one for one in base.parameters.values() if one.kind != one.VAR_KEYWORD]
        own = [one for one in own if one.kind != one.VAR_POSITIONAL]
        cls.__signature__ = base.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]

    @classmethod
    def _default_bits(cls) -> int:
        return 1 if cls._function.__name__ in STEPS else 3

    def _set(self, bits: int | None, table: Table | None) -> None:
        default = self._default_bits()
        name = type(self).__name__
        check_table(name, default if bits is None else bits, table, default)
        if table is not None:
            self.bits = table.bits
        else:
            self.bits = default if bits is None else bits
            if default == 1 and self.bits != 1:
                raise ValueError(
                    f"{name}: bits={bits}; allowed: 1, as its derivative has two values"
                )
        self.table = table

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        arguments = {name: getattr(self, name) for name in self._arguments}
        return type(self)._function(input, **arguments, bits=self.bits, table=self.table)

    def extra_repr(self) -> str:
        own = super().extra_repr()
        said = f"bits={self.bits}" + ("" if self.table is None else ", table=...")
        return f"{own}, {said}" if own else said


class Hardshrink(FewBitModule, nn.Hardshrink):
    _function, _arguments = staticmethod(few.hardshrink), ("lambd",)


class Hardsigmoid(FewBitModule, nn.Hardsigmoid):
    _function, _arguments = staticmethod(few.hardsigmoid), ("inplace",)


class Hardtanh(FewBitModule, nn.Hardtanh):
    _function, _arguments = staticmethod(few.hardtanh), ("min_val", "max_val", "inplace")


class LeakyReLU(FewBitModule, nn.LeakyReLU):
    _function, _arguments = staticmethod(few.leaky_relu), ("negative_slope", "inplace")


class ReLU(FewBitModule, nn.ReLU):
    _function, _arguments = staticmethod(few.relu), ("inplace",)


class ReLU6(FewBitModule, nn.ReLU6):
    _function, _arguments = staticmethod(few.relu6), ("inplace",)


class Softshrink(FewBitModule, nn.Softshrink):
    _function, _arguments = staticmethod(few.softshrink), ("lambd",)


class Threshold(FewBitModule, nn.Threshold):
    _function, _arguments = staticmethod(few.threshold), ("threshold", "value", "inplace")


class CELU(FewBitModule, nn.CELU):
    _function, _arguments = staticmethod(few.celu), ("alpha", "inplace")


class ELU(FewBitModule, nn.ELU):
    _function, _arguments = staticmethod(few.elu), ("alpha", "inplace")


class GELU(FewBitModule, nn.GELU):
    _function, _arguments = staticmethod(few.gelu), ("approximate",)


class Hardswish(FewBitModule, nn.Hardswish):
    _function, _arguments = staticmethod(few.hardswish), ("inplace",)


class LogSigmoid(FewBitModule, nn.LogSigmoid):
    _function = staticmethod(few.logsigmoid)


class Mish(FewBitModule, nn.Mish):
    _function, _arguments = staticmethod(few.mish), ("inplace",)


class SELU(FewBitModule, nn.SELU):
    _function, _arguments = staticmethod(few.selu), ("inplace",)


class Sigmoid(FewBitModule, nn.Sigmoid):
    _function = staticmethod(few.sigmoid)


class SiLU(FewBitModule, nn.SiLU):
    _function, _arguments = staticmethod(few.silu), ("inplace",)


class Softplus(FewBitModule, nn.Softplus):
    _function, _arguments = staticmethod(few.softplus), ("beta", "threshold")


class Softsign(FewBitModule, nn.Softsign):
    _function = staticmethod(few.softsign)


class Tanh(FewBitModule, nn.Tanh):
    _function = staticmethod(few.tanh)


class Tanhshrink(FewBitModule, nn.Tanhshrink):
    _function = staticmethod(few.tanhshrink)


# By torch.nn's class: the few-bit class, and the attributes that its constructor takes.
MODULES: dict[type[nn.Module], tuple[type[FewBitModule], tuple[str, ...]]] = {
    made.__mro__[2]: (made, made._arguments)
    for made in (
        *(Hardshrink, Hardsigmoid, Hardtanh, LeakyReLU, ReLU, ReLU6, Softshrink, Threshold),
        *(CELU, ELU, GELU, Hardswish, LogSigmoid, Mish, SELU, Sigmoid, SiLU, Softplus, Softsign),
        *(Tanh, Tanhshrink),
    )
}
__all__ = ["MODULES", "FewBitModule", *sorted(made.__name__ for made, _ in MODULES.values())]
