"""FewBit's activation functions: those of `activations.functional`, with FewBit's arguments.

Step functions have one bit and an exact derivative. The others take, by keyword,

bits: of a table of `store`; None: 3.
borders, values: a table of one's own, in place of bits. borders: with the two ends of the domain,
    so one more than values, of which 2 to 16 are allowed.

ValueError: both `bits` and a table, one of `borders` and `values` without the other, or a table
that is not allowed. NoTable, which is a KeyError and a ValueError: bits that the store does not
have. A NaN has the gradient NaN; in FewBit it had the last level.

alpha, beta and threshold change the tables of celu, elu and softplus. Tables that were added to the
store are taken as they are, and only for torch's default parameters.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torch_cgx.activations import functional as few
from torch_cgx.activations.tables.table import Table
from torch_cgx.compat.fewbit.functional.stepwise import stepwise
from torch_cgx.compat.fewbit.store import StepwiseStore, custom_table

store = StepwiseStore()


def _choice(
    name: str, bits: Any, borders: Any, values: Any, plain: bool = True
) -> dict[str, int | Table]:
    """The arguments of the function of `activations.functional`. plain: torch's parameters."""
    given = {"borders": borders is not None, "values": values is not None}
    if bits is not None and any(given.values()):
        beside = " and ".join(key for key, is_given in given.items() if is_given)
        raise ValueError(f"{name}: bits={bits!r} with {beside}; allowed: one of both")
    if any(given.values()):
        missing = [key for key, is_given in given.items() if not is_given]
        if missing:
            raise ValueError(f"{name}: {missing[0]} is missing; allowed: both borders and values")
        return {"table": custom_table(borders, values, name)}
    bits = 3 if bits is None else bits
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"{name}: bits={bits!r}; allowed: integers from 1 to 4, None")
    added = store.added(name, bits)
    return {"table": added} if added is not None and plain else {"bits": bits}


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """`activations.functional.hardshrink` with FewBit's arguments."""
    return few.hardshrink(input, lambd)


def hardsigmoid(input: Tensor) -> Tensor:
    """`activations.functional.hardsigmoid` with FewBit's arguments."""
    return few.hardsigmoid(input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`activations.functional.hardtanh` with FewBit's arguments."""
    return few.hardtanh(input, min_val, max_val)


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`activations.functional.leaky_relu` with FewBit's arguments."""
    return few.leaky_relu(input, negative_slope)


def relu(input: Tensor) -> Tensor:
    """`activations.functional.relu` with FewBit's arguments."""
    return few.relu(input)


def relu6(input: Tensor) -> Tensor:
    """`activations.functional.relu6` with FewBit's arguments."""
    return few.relu6(input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """`activations.functional.softshrink` with FewBit's arguments."""
    return few.softshrink(input, lambd)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """`activations.functional.threshold` with FewBit's arguments."""
    return few.threshold(input, threshold, value)


def celu(
    input: Tensor,
    alpha: float = 1.0,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.celu` with FewBit's arguments."""
    chosen: Any = _choice("celu", bits, borders, values, alpha == 1)
    return few.celu(input, alpha, **chosen)


def elu(
    input: Tensor,
    alpha: float = 1.0,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.elu` with FewBit's arguments."""
    chosen: Any = _choice("elu", bits, borders, values, alpha == 1)
    return few.elu(input, alpha, **chosen)


def softplus(
    input: Tensor,
    beta: float = 1,
    threshold: float = 20,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.softplus` with FewBit's arguments."""
    plain = beta == 1 and threshold == 20
    chosen: Any = _choice("softplus", bits, borders, values, plain)
    return few.softplus(input, beta, threshold, **chosen)


def gelu(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.gelu` with FewBit's arguments."""
    chosen: Any = _choice("gelu", bits, borders, values)
    return few.gelu(input, **chosen)


def hardswish(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.hardswish` with FewBit's arguments."""
    chosen: Any = _choice("hardswish", bits, borders, values)
    return few.hardswish(input, **chosen)


def logsigmoid(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.logsigmoid` with FewBit's arguments."""
    chosen: Any = _choice("logsigmoid", bits, borders, values)
    return few.logsigmoid(input, **chosen)


def mish(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.mish` with FewBit's arguments."""
    chosen: Any = _choice("mish", bits, borders, values)
    return few.mish(input, **chosen)


def selu(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.selu` with FewBit's arguments."""
    chosen: Any = _choice("selu", bits, borders, values)
    return few.selu(input, **chosen)


def sigmoid(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.sigmoid` with FewBit's arguments."""
    chosen: Any = _choice("sigmoid", bits, borders, values)
    return few.sigmoid(input, **chosen)


def silu(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.silu` with FewBit's arguments."""
    chosen: Any = _choice("silu", bits, borders, values)
    return few.silu(input, **chosen)


def softsign(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.softsign` with FewBit's arguments."""
    chosen: Any = _choice("softsign", bits, borders, values)
    return few.softsign(input, **chosen)


def tanh(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.tanh` with FewBit's arguments."""
    chosen: Any = _choice("tanh", bits, borders, values)
    return few.tanh(input, **chosen)


def tanhshrink(
    input: Tensor,
    *,
    bits: int | None = None,
    borders: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """`activations.functional.tanhshrink` with FewBit's arguments."""
    chosen: Any = _choice("tanhshrink", bits, borders, values)
    return few.tanhshrink(input, **chosen)


__all__ = [
    "celu",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "stepwise",
    "store",
    "tanh",
    "tanhshrink",
    "threshold",
]
