"""The table of each function's derivative, for given parameters.

Step functions have torch's derivative at their borders, too: relu's is 1 above 0, hardtanh's is 1
strictly inside its bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeVar

from torch_cgx.activations.tables.files import table_for
from torch_cgx.activations.tables.table import Table

STEPS = (
    "hardshrink",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "relu",
    "relu6",
    "softshrink",
    "threshold",
)
CONTINUOUS = (
    "celu",
    "elu",
    "gelu",
    "hardswish",
    "logsigmoid",
    "mish",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "tanh",
    "tanhshrink",
)


_F = TypeVar("_F", bound=Callable[..., Table])


def _constant(function: _F) -> _F:
    """Cached. torch.compile takes the result for a constant; torch.compiler's decorator, which
    does the same, would import all of its machinery.
    """
    cached = functools.lru_cache(256)(function)

    @functools.wraps(function)
    def call(*args: float | str) -> Table:
        return cached(*args)

    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _below(border: float) -> float:
    """A border whose own value belongs to the piece above it."""
    return math.nextafter(border, -math.inf)


@_constant
def inside(name: str, low: float, high: float) -> Table:
    """1 where low < x < high, and 0 elsewhere."""
    if not low < _below(high):  # torch refuses low > high; of equal bounds nothing is inside
        return Table((low,), (0.0, 0.0), name=name)
    return Table((low, _below(high)), (0.0, 1.0, 0.0), name=name)


@_constant
def above(name: str, border: float, level_below: float = 0.0) -> Table:
    """1 where x > border, and `level_below` elsewhere."""
    return Table((border,), (level_below, 1.0), name=name)


@_constant
def beyond(name: str, border: float) -> Table:
    """1 where |x| > border, and 0 elsewhere."""
    if border < 0:
        return Table((0.0,), (1.0, 1.0), parity=True, name=name)
    return Table((border,), (0.0, 1.0), parity=True, name=name)


HARDSIGMOID = Table((_below(3.0),), (1 / 6, 0.0), parity=True, name="hardsigmoid")


@_constant
def continuous(name: str, bits: int) -> Table:
    return table_for(name, bits)


@_constant
def of_alpha(name: str, bits: int, alpha: float) -> Table:
    return table_for(name, bits, alpha=float(alpha))


@_constant
def of_softplus(bits: int, beta: float, threshold: float) -> Table:
    return table_for("softplus", bits, beta=float(beta), threshold=float(threshold))
