"""Matrix products as hardware with few bits computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torch_cgx._constant import constant
from torch_cgx.emulate._cast import word_of
from torch_cgx.emulate.gemm.formats import OPERANDS, GemmFormats, Scaled, gemm_formats
from torch_cgx.emulate.gemm.linear import autocast, widened
from torch_cgx.emulate.gemm.operand import Key, cast_along
from torch_cgx.emulate.gemm.product import Accumulation, product


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Any = None,
    accumulate: Any = "fp32",
    kahan: bool = False,
    order: str = "sequential",
    block: int | None = None,
    *,
    seed: int = 0,
    step: int = 0,
) -> torch.Tensor:
    """a b with operands and partial sums in formats; both GEMMs of its backward pass, too.

    a: [..., M, K] or [K]. b: [..., K, N] or [K]. As torch.matmul's, of one dtype: float32, float64,
        float16 or bfloat16, on one device. The result has this dtype; formats of accumulation
        compute in float32, 16-bit operands are widened to it. Under autocast operands are first
        cast to its dtype, as torch.matmul's are.
    inputs: the operands' format, or a dict of formats by GEMM and operand, as a recipe's "gemm"
        (`apply`); b, transposed, is the "weight". Blocks lie along each contraction: K in the
        forward pass, N in that of a's gradient, M in that of b's. None: exact.
    accumulate, kahan, order, block: see `Accumulation`: "fp32", as torch.matmul adds; a Float or
        Fixed, in which each product and each partial sum is rounded; "hopper14".
    seed, step: of stochastic formats, as of `cast`.

    ValueError, TypeError: an argument is not allowed, shapes do not fit (torch's own error).
    """
    chosen: dict[str, Any] = {} if block is None else {"block": block}
    if torch.compiler.is_compiling():
        sums = (accumulate, kahan, order, block)
        how = _traced_number(_frozen(inputs), *sums)
    else:
        how = _number(inputs, Accumulation(accumulate, kahan, order, **chosen))
    _check(a, b)
    key = (word_of("seed", seed), word_of("step", step))
    if not torch.is_autocast_enabled(a.device.type):
        return _matmul(a, b, how, key)
    dtype = torch.get_autocast_dtype(a.device.type)
    with torch.autocast(a.device.type, enabled=False):
        return _matmul(autocast(a, dtype), autocast(b, dtype), how, key)


def _matmul(a: torch.Tensor, b: torch.Tensor, how: int, key: tuple[int, int]) -> torch.Tensor:
    if min(a.dim(), b.dim()) == 0 or a.dtype != b.dtype:
        return torch.matmul(a, b)  # an error
    left, right = a[None] if a.dim() == 1 else a, b[:, None] if b.dim() == 1 else b
    if left.shape[-1] != right.shape[-2]:
        return torch.matmul(a, b)  # an error
    y: torch.Tensor = torch.ops.torch_cgx.emulate_matmul(left, right, how, *key)
    y = y.squeeze(-2) if a.dim() == 1 else y
    return y.squeeze(-1) if b.dim() == 1 else y


class _How(NamedTuple):
    formats: GemmFormats
    accumulation: Accumulation


_hows: list[_How] = []
_numbers: dict[_How, int] = {}


def _number(inputs: Any, accumulation: Accumulation) -> int:
    """Of the formats, for the operators. ValueError, TypeError: they are not allowed."""
    formats = _formats(inputs) if isinstance(inputs, str) else gemm_formats(inputs, "inputs")
    if not formats.accumulation.fp32 or formats.hadamard:
        raise ValueError(
            "inputs has accumulate or hadamard; allowed: accumulate, kahan, order, block as "
            "arguments of matmul"
        )
    for operand, format in formats.operands:
        if isinstance(format, Scaled) and format.scale == "delayed":
            raise ValueError(
                f"inputs: {operand} has scale='delayed', which remembers earlier tensors; allowed: "
                "scale='current', or a layer (QuantLinear, emulate.apply)"
            )
    how = _How(formats, accumulation)
    if how not in _numbers:
        _numbers[how] = len(_hows)
        _hows.append(how)
    return _numbers[how]


@constant
def _formats(name: str) -> GemmFormats:
    return gemm_formats(name, "inputs")


_kept: list[Any] = []


@constant
def _place(given: Any) -> int:
    _kept.append(given)
    return len(_kept) - 1


def _frozen(given: Any) -> Any:
    """Dicts as tuples of plain values, for torch.compile."""
    if not isinstance(given, Mapping):
        return _place(given)
    pairs: tuple[Any, ...] = ()
    for key, value in given.items():
        pairs = (*pairs, (key, _frozen(value)))
    return pairs


def _thawed(given: Any) -> Any:
    return _kept[given] if isinstance(given, int) else {key: _thawed(one) for key, one in given}


@constant
def _traced_number(inputs: Any, accumulate: Any, kahan: Any, order: Any, block: Any) -> int:
    chosen: dict[str, Any] = {} if block is None else {"block": block}
    return _number(_thawed(inputs), Accumulation(accumulate, kahan, order, **chosen))


def _check(a: Any, b: Any) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}, allowed: a torch.Tensor")
        if not tensor.is_floating_point() or tensor.element_size() == 1:
            raise TypeError(
                f"{name}.dtype is {tensor.dtype}, allowed: float32, float64, float16, bfloat16"
            )


def _cast(x: torch.Tensor, how: int, operand: str, axis: int, seed: int, step: int) -> torch.Tensor:
    """As a layer casts it: a is its input [..., M, K], b transposed its weight [..., N, K]."""
    format, x = _hows[how].formats.by_name.get(operand), widened(x)
    if format is None:
        return x
    key = Key(seed % 2**64, step % 2**64, OPERANDS.index(operand))
    return cast_along(x, format, axis, key).values


def _product(a: torch.Tensor, b: torch.Tensor, how: int, dtype: torch.dtype) -> torch.Tensor:
    accumulation = _hows[how].accumulation
    if accumulation.fp32:
        return torch.matmul(a, b).to(dtype)
    return product(a.float(), b.float(), accumulation).to(dtype)


def _forward(a: torch.Tensor, b: torch.Tensor, how: int, seed: int, step: int) -> torch.Tensor:
    x = _cast(a, how, "forward.input", -1, seed, step)
    weight = _cast(b.transpose(-1, -2), how, "forward.weight", -1, seed, step)
    return _product(x, weight.transpose(-1, -2), how, a.dtype)


def _gradient(
    grad: torch.Tensor, other: torch.Tensor, how: int, seed: int, step: int, which: int
) -> torch.Tensor:
    """Of a (which = 0), other being b, or of b (1), other being a."""
    if which == 0:
        g = _cast(grad, how, "dgrad.gradient", -1, seed, step)
        weight = _cast(other.transpose(-1, -2), how, "dgrad.weight", -2, seed, step)
        return _product(g, weight, how, other.dtype)
    x = _cast(other, how, "wgrad.input", -2, seed, step)
    g = _cast(grad, how, "wgrad.gradient", -2, seed, step)
    return _product(x.transpose(-1, -2), g, how, other.dtype)


_LIBRARY = torch.library.Library("torch_cgx", "FRAGMENT")
_LIBRARY.define("emulate_matmul(Tensor a, Tensor b, int how, SymInt seed, SymInt step) -> Tensor")
_LIBRARY.define(
    "emulate_matmul_gradient(Tensor grad, Tensor other, int how, SymInt seed, SymInt step, "
    "int which) -> Tensor"
)
_LIBRARY.impl("emulate_matmul", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("emulate_matmul_gradient", _gradient, "CompositeExplicitAutograd")


@torch.library.register_fake("torch_cgx::emulate_matmul")
def _fake_forward(a: torch.Tensor, b: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.matmul(a, b)


@torch.library.register_fake("torch_cgx::emulate_matmul_gradient")
def _fake_gradient(grad: torch.Tensor, other: torch.Tensor, *others: Any) -> torch.Tensor:
    turned = other.transpose(-1, -2)
    return torch.matmul(grad, turned) if others[-1] == 0 else torch.matmul(turned, grad)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, *ctx.how = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    a, b = ctx.saved_tensors
    da = db = None
    gradient = torch.ops.torch_cgx.emulate_matmul_gradient
    if ctx.needs_input_grad[0]:
        da = gradient(grad, b, *ctx.how, 0).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        db = gradient(grad, a, *ctx.how, 1).sum_to_size(b.shape)
    return da, db, None, None, None


torch.library.register_autograd("torch_cgx::emulate_matmul", _backward, setup_context=_setup)
