"""Activation functions that keep 1 to 4 bits a value for the backward pass, where torch keeps the
whole tensor. Signatures are torch's, with two more arguments:

bits: 1 to 4, of each value. The derivative is one of 2^bits levels of a table
    (`activations.Table`), which has the least mean square error on [-10, 10]. The derivative of a
    step function has two values and one bit, and is exact.
table: another table for the derivative, in place of the shipped one.

The result is torch's own, bit for bit; the gradient is the incoming one times a level. Kept are
ceil(bits * n / 8) bytes for n values. Inputs: float32, float64, float16 or bfloat16, any shape and
strides, on the CPU or a GPU. The gradient of a NaN is NaN. On a GPU, under torch.compile and under
torch.func's transforms one byte more is kept, and one NaN makes NaN of the tensor's whole gradient.

Errors: TypeError for another dtype, or `bits` and `table` of another type. ValueError for `bits`
outside 1 to 4 or beside a table of others. RuntimeError where the gradient itself is
differentiated: only codes of the first derivative are kept. Errors of torch's own functions pass
through.

The method: Novikov et al., Few-bit Backward (ICML 2023).
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_cgx.activations.few_bit import derivatives as derivatives
from torch_cgx.activations.few_bit.function import apply, check_input, check_table
from torch_cgx.activations.layers.dropout import dropout
from torch_cgx.activations.layers.gates import geglu, reglu, swiglu
from torch_cgx.activations.layers.norms import layer_norm, rms_norm
from torch_cgx.activations.projection.function import linear
from torch_cgx.activations.tables.table import Table


def _step(name: str, input: Tensor, bits: int, table: Table | None) -> None:
    check_input(name, input)
    check_table(name, bits, table, default=1)
    if table is None and bits != 1:
        raise ValueError(f"{name}: bits={bits}; allowed: 1, as its derivative has two values")


def _smooth(name: str, input: Tensor, bits: int, table: Table | None) -> None:
    check_input(name, input)
    check_table(name, bits, table)


def hardshrink(
    input: Tensor, lambd: float = 0.5, *, bits: int = 1, table: Table | None = None
) -> Tensor:
    """x where |x| > lambd, and 0 elsewhere."""
    _step("hardshrink", input, bits, table)
    found = table or derivatives.beyond("hardshrink", float(lambd), input.dtype)
    return apply(F.hardshrink, input, (lambd,), found)


def hardsigmoid(
    input: Tensor, inplace: bool = False, *, bits: int = 1, table: Table | None = None
) -> Tensor:
    """relu6(x + 3) / 6."""
    _step("hardsigmoid", input, bits, table)
    found = table or derivatives.HARDSIGMOID
    return apply(F.hardsigmoid, input, (inplace,), found, inplace)


def hardtanh(
    input: Tensor,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
    *,
    bits: int = 1,
    table: Table | None = None,
) -> Tensor:
    """x, clamped to [min_val, max_val]."""
    _step("hardtanh", input, bits, table)
    found = table or derivatives.inside("hardtanh", float(min_val), float(max_val), input.dtype)
    return apply(F.hardtanh, input, (min_val, max_val, inplace), found, inplace)


def leaky_relu(
    input: Tensor,
    negative_slope: float = 0.01,
    inplace: bool = False,
    *,
    bits: int = 1,
    table: Table | None = None,
) -> Tensor:
    """x where x > 0, and negative_slope * x elsewhere."""
    _step("leaky_relu", input, bits, table)
    found = table or derivatives.above("leaky_relu", 0.0, float(negative_slope), input.dtype)
    return apply(F.leaky_relu, input, (negative_slope, inplace), found, inplace)


def relu(
    input: Tensor, inplace: bool = False, *, bits: int = 1, table: Table | None = None
) -> Tensor:
    """max(x, 0)."""
    _step("relu", input, bits, table)
    found = table or derivatives.above("relu", 0.0, 0.0, input.dtype)
    return apply(F.relu, input, (inplace,), found, inplace)


def relu6(
    input: Tensor, inplace: bool = False, *, bits: int = 1, table: Table | None = None
) -> Tensor:
    """x, clamped to [0, 6]."""
    _step("relu6", input, bits, table)
    found = table or derivatives.inside("relu6", 0.0, 6.0, input.dtype)
    return apply(F.relu6, input, (inplace,), found, inplace)


def softshrink(
    input: Tensor, lambd: float = 0.5, *, bits: int = 1, table: Table | None = None
) -> Tensor:
    """x moved towards 0 by lambd, and 0 where |x| <= lambd."""
    _step("softshrink", input, bits, table)
    found = table or derivatives.beyond("softshrink", float(lambd), input.dtype)
    return apply(F.softshrink, input, (lambd,), found)


def threshold(
    input: Tensor,
    threshold: float,
    value: float,
    inplace: bool = False,
    *,
    bits: int = 1,
    table: Table | None = None,
) -> Tensor:
    """x where x > threshold, and value elsewhere."""
    _step("threshold", input, bits, table)
    found = table or derivatives.above("threshold", float(threshold), 0.0, input.dtype)
    return apply(F.threshold, input, (threshold, value, inplace), found, inplace)


def celu(
    input: Tensor,
    alpha: float = 1.0,
    inplace: bool = False,
    *,
    bits: int = 3,
    table: Table | None = None,
) -> Tensor:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0). The borders are alpha times the
    borders for alpha = 1.
    """
    _smooth("celu", input, bits, table)
    found = table or derivatives.of_alpha("celu", bits, alpha)
    return apply(F.celu, input, (alpha, inplace), found, inplace)


def elu(
    input: Tensor,
    alpha: float = 1.0,
    inplace: bool = False,
    *,
    bits: int = 3,
    table: Table | None = None,
) -> Tensor:
    """x where x > 0, and alpha * (exp(x) - 1) elsewhere. Another alpha than 1 has its own table,
    fitted at its first use.
    """
    _smooth("elu", input, bits, table)
    found = table or derivatives.of_alpha("elu", bits, alpha)
    return apply(F.elu, input, (alpha, inplace), found, inplace)


def gelu(
    input: Tensor, *, approximate: str = "none", bits: int = 3, table: Table | None = None
) -> Tensor:
    """x times the normal distribution function of x; approximate="tanh": its approximation by
    tanh, which has a table of its own.
    """
    _smooth("gelu", input, bits, table)
    name = "gelu_tanh" if approximate == "tanh" else "gelu"
    found = table or derivatives.continuous(name, bits)
    return apply(functools.partial(F.gelu, approximate=approximate), input, (), found)


def hardswish(
    input: Tensor, inplace: bool = False, *, bits: int = 3, table: Table | None = None
) -> Tensor:
    """x * relu6(x + 3) / 6."""
    _smooth("hardswish", input, bits, table)
    found = table or derivatives.continuous("hardswish", bits)
    return apply(F.hardswish, input, (inplace,), found, inplace)


def logsigmoid(input: Tensor, *, bits: int = 3, table: Table | None = None) -> Tensor:
    """log(sigmoid(x))."""
    _smooth("logsigmoid", input, bits, table)
    found = table or derivatives.continuous("logsigmoid", bits)
    return apply(F.logsigmoid, input, (), found)


def mish(
    input: Tensor, inplace: bool = False, *, bits: int = 3, table: Table | None = None
) -> Tensor:
    """x * tanh(softplus(x))."""
    _smooth("mish", input, bits, table)
    found = table or derivatives.continuous("mish", bits)
    return apply(F.mish, input, (inplace,), found, inplace)


def selu(
    input: Tensor, inplace: bool = False, *, bits: int = 3, table: Table | None = None
) -> Tensor:
    """elu with the scale and alpha that keep mean and variance."""
    _smooth("selu", input, bits, table)
    found = table or derivatives.continuous("selu", bits)
    return apply(F.selu, input, (inplace,), found, inplace)


def sigmoid(input: Tensor, *, bits: int = 3, table: Table | None = None) -> Tensor:
    """1 / (1 + exp(-x)). Its table is over |x|."""
    _smooth("sigmoid", input, bits, table)
    found = table or derivatives.continuous("sigmoid", bits)
    return apply(torch.sigmoid, input, (), found)


def silu(
    input: Tensor, inplace: bool = False, *, bits: int = 3, table: Table | None = None
) -> Tensor:
    """x * sigmoid(x)."""
    _smooth("silu", input, bits, table)
    found = table or derivatives.continuous("silu", bits)
    return apply(F.silu, input, (inplace,), found, inplace)


def softplus(
    input: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    *,
    bits: int = 3,
    table: Table | None = None,
) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x where beta * x > threshold. The borders for
    beta = 1 are divided by beta.
    """
    _smooth("softplus", input, bits, table)
    found = table or derivatives.of_softplus(bits, beta, threshold)
    return apply(F.softplus, input, (beta, threshold), found)


def softsign(input: Tensor, *, bits: int = 3, table: Table | None = None) -> Tensor:
    """x / (1 + |x|). Its table is over |x|."""
    _smooth("softsign", input, bits, table)
    found = table or derivatives.continuous("softsign", bits)
    return apply(F.softsign, input, (), found)


def tanh(input: Tensor, *, bits: int = 3, table: Table | None = None) -> Tensor:
    """The hyperbolic tangent. Its table is over |x|."""
    _smooth("tanh", input, bits, table)
    found = table or derivatives.continuous("tanh", bits)
    return apply(torch.tanh, input, (), found)


def tanhshrink(input: Tensor, *, bits: int = 3, table: Table | None = None) -> Tensor:
    """x - tanh(x). Its table is over |x|."""
    _smooth("tanhshrink", input, bits, table)
    found = table or derivatives.continuous("tanhshrink", bits)
    return apply(F.tanhshrink, input, (), found)


__all__ = [
    "celu",
    "dropout",
    "elu",
    "geglu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear",
    "logsigmoid",
    "mish",
    "reglu",
    "relu",
    "relu6",
    "rms_norm",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "swiglu",
    "tanh",
    "tanhshrink",
    "threshold",
]
