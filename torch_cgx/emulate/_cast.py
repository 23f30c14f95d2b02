"""Casts: tensors as they would be in another format."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from torch_cgx._operators import _check_out
from torch_cgx.emulate import _operators
from torch_cgx.emulate._dtensor import is_dtensor, take_dtensors
from torch_cgx.emulate._format import Format, Way, check_format, way_of
from torch_cgx.emulate._statistics import Statistics

_ops = torch.ops.torch_cgx


@overload
def cast(
    x: torch.Tensor,
    format: Format | str,
    out: torch.Tensor | None = ...,
    seed: int = ...,
    step: int = ...,
    statistics: Literal[False] = ...,
    number: int = ...,
) -> torch.Tensor: ...
@overload
def cast(
    x: torch.Tensor,
    format: Format | str,
    out: torch.Tensor | None = ...,
    seed: int = ...,
    step: int = ...,
    *,
    statistics: Literal[True],
    number: int = ...,
) -> tuple[torch.Tensor, Statistics]: ...
def cast(
    x: torch.Tensor,
    format: Format | str,
    out: torch.Tensor | None = None,
    seed: int = 0,
    step: int = 0,
    statistics: bool = False,
    number: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, Statistics]:
    """`x` with each value replaced by the number that `format` has for it: a new tensor of its
    shape, dtype and strides, or `out`. One rounding from x's own type; where that lacks the number,
    as float16 lacks large ones of bf16, it is rounded to it.

    x: float32, float64, float16 or bfloat16, of any shape and strides, on the CPU or a GPU.
    format: a format of torch_cgx.emulate, or the name of one.
    out: of x's shape and dtype; `x` itself for a cast in place, which happens only so.
    seed, step, number: what random numbers of a stochastic rounding are a function of, with the
        number of the element in x (with `axis`, in x with that dimension as its last one): integers
        from 0 to 2^64 - 1. step: of the training; number: of the tensor in the step. Equal ones
        repeat a result; there is no state.
    statistics: also returns the `Statistics` of the cast.

    TypeError, ValueError: x is no such tensor (integer, complex, sparse, nested), or an argument is
    not allowed. A backward pass through the result raises RuntimeError: `cast_ste` has a gradient.
    """
    way = way_of(format)
    _check_arguments(x, out)
    if not isinstance(statistics, bool):
        raise TypeError(f"statistics={statistics!r}, allowed: True, False")
    key = [
        word_of(name, value) for name, value in (("seed", seed), ("step", step), ("number", number))
    ]
    if is_dtensor(x):
        take_dtensors(x, check_format(format))
    if way.axis is not None:
        return _along(x, way, out, key, statistics)
    if not statistics:
        if out is None:
            return _ops.cast(x, way.text, *key)  # type: ignore[no-any-return]
        _ops.cast.out(x, way.text, *key, out=out)
        return out
    if out is None:
        y, numbers = _ops.cast_statistics(x, way.text, *key)
        return y, Statistics(numbers)
    return out, Statistics(_ops.cast_statistics.out(x, way.text, *key, out=out))


def _along(
    x: torch.Tensor, way: Way, out: torch.Tensor | None, key: list[int], statistics: bool
) -> Any:
    """Blocks along another dimension than the last one, channels of another than the first one."""
    _operators._check_floating("tensor", x)
    if out is not None:
        _check_out(x, out)
    assert way.axis is not None
    home = 0 if way.by_channels else -1
    moved = x.movedim(way.axis, home)
    numbers = None
    if statistics:
        y, numbers = _ops.cast_statistics(moved, way.text, *key)
    else:
        y = _ops.cast(moved, way.text, *key)
    y = y.movedim(home, way.axis)
    if out is not None:
        with torch.no_grad():
            y = out.copy_(y)
    return y if numbers is None else (y, Statistics(numbers))


def cast_ste(
    x: torch.Tensor, format: Format | str, seed: int = 0, step: int = 0, number: int = 0
) -> torch.Tensor:
    """`cast` whose gradient is passed on unchanged: the straight-through estimator (Bengio,
    Leonard, Courville 2013). Arguments as there.
    """
    # torch.compile takes no function that has forward derivatives of its own.
    function = _StraightThrough if torch.compiler.is_compiling() else _WithForwardDerivatives
    return function.apply(x, format, seed, step, number)  # type: ignore


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: torch.Tensor, format: Format | str, seed: int, step: int, number: int
    ) -> torch.Tensor:
        return cast(x, format, seed=seed, step=step, number=number)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        return grad, None, None, None, None


class _WithForwardDerivatives(_StraightThrough):
    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *others: None) -> torch.Tensor:
        return tangent.view_as(tangent)


def _check_arguments(x: object, out: object) -> None:
    for what, one in (("x", x), ("out", out)):
        if isinstance(one, torch.Tensor) or (one is None and what == "out"):
            continue
        raise TypeError(f"{what} is of type {type(one).__name__}, allowed: a torch.Tensor")
    if isinstance(x, torch.Tensor) and x.is_complex():
        raise TypeError(
            f"x is {x.dtype}, allowed: real values; torch.view_as_real(x) has both parts of each"
        )


def word_of(name: str, value: object) -> int:
    """As operators take it: a signed integer of the same 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, torch.SymInt):
            return value  # type: ignore[return-value]
        raise TypeError(f"{name} is {value!r}, allowed: an int from 0 to 2**64 - 1")
    if not 0 <= value < 2**64:
        raise ValueError(f"{name} is {value}, allowed: 0 to 2**64 - 1")
    return value - 2**64 if value >= 2**63 else value


__all__ = ["_operators", "cast", "cast_ste"]
