"""The table of each function's derivative, for given parameters.

Step functions have torch's derivative at their borders, too: relu's is 1 above 0, hardtanh's is 1
strictly inside its bounds.
"""

from __future__ import annotations

import math

from torch_cgx.activations._constant import constant
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


def _below(border: float) -> float:
    """A border whose own value belongs to the piece above it."""
    return math.nextafter(border, -math.inf)


@constant
def inside(name: str, low: float, high: float) -> Table:
    """1 where low < x < high, and 0 elsewhere."""
    if not low < _below(high):  # torch refuses low > high; of equal bounds nothing is inside
        return Table((low,), (0.0, 0.0), name=name)
    return Table((low, _below(high)), (0.0, 1.0, 0.0), name=name)


@constant
def above(name: str, border: float, level_below: float = 0.0) -> Table:
    """1 where x > border, and `level_below` elsewhere."""
    return Table((border,), (level_below, 1.0), name=name)


@constant
def beyond(name: str, border: float) -> Table:
    """1 where |x| > border, and 0 elsewhere."""
    if border < 0:
        return Table((0.0,), (1.0, 1.0), parity=True, name=name)
    return Table((border,), (0.0, 1.0), parity=True, name=name)


HARDSIGMOID = Table((_below(3.0),), (1 / 6, 0.0), parity=True, name="hardsigmoid")


@constant
def continuous(name: str, bits: int) -> Table:
    return table_for(name, bits)


@constant
def of_alpha(name: str, bits: int, alpha: float) -> Table:
    return table_for(name, bits, alpha=float(alpha))


@constant
def of_softplus(bits: int, beta: float, threshold: float) -> Table:
    return table_for("softplus", bits, beta=float(beta), threshold=float(threshold))
