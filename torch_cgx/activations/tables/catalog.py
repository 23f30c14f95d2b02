"""The continuous activation functions that have shipped tables: values and derivatives, in float64.

NumPy arrays in and out, as an oracle that does not share code with torch's kernels. celu and elu
are for alpha = 1, softplus for beta = 1 and threshold = 20. Other parameters:

* celu: the derivative is that of alpha = 1 at x / alpha, so borders are multiplied by alpha
  (`celu_borders`), and levels stay.
* softplus: the derivative is that of beta = 1 at beta * x, so borders are divided by beta
  (`softplus_borders`), and levels stay. A threshold below 10 changes the derivative on the tables'
  domain: `softplus_row`.
* elu: alpha multiplies the derivative on one side only, so each alpha has a fit: `elu_row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
DOMAIN = (-10.0, 10.0)
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Row:
    """One function. `parity`: the derivative is even, so that its table is over |x|. `kinks`: where
    the derivative jumps or bends. `domain`: what the shipped tables are fitted on.
    """

    name: str
    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    parity: bool = False
    kinks: tuple[float, ...] = ()
    domain: tuple[float, float] = DOMAIN


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # at most 1: no overflow, and full relative precision at both ends
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _sech_squared(x: Array) -> Array:
    small = np.exp(-2.0 * np.abs(x))
    return 4.0 * small / (1.0 + small) ** 2


def _normal_cdf(x: Array) -> Array:
    return 0.5 * _erfc(-x / math.sqrt(2.0))


def _gelu_derivative(x: Array) -> Array:
    return _normal_cdf(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _gelu_tanh(x: Array) -> Array:
    # (1 + tanh u) / 2 is sigmoid(2 u), which keeps its relative precision where tanh nears -1.
    return x * _sigmoid(2.0 * _gelu_tanh_argument(x))


def _gelu_tanh_argument(x: Array) -> Array:
    return math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)


def _gelu_tanh_derivative(x: Array) -> Array:
    u = _gelu_tanh_argument(x)
    slope = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * x * x)
    return _sigmoid(2.0 * u) + 0.5 * x * _sech_squared(u) * slope


def _hardswish_derivative(x: Array) -> Array:
    return np.where(x <= -3.0, 0.0, np.where(x < 3.0, x / 3.0 + 0.5, 1.0))


def _mish_derivative(x: Array) -> Array:
    inner = _softplus(x)
    return np.tanh(inner) + x * _sech_squared(inner) * _sigmoid(x)


def _negative(x: Array) -> Array:
    """The negative part, so that exp of it never overflows."""
    return np.minimum(x, 0.0)


def elu_row(alpha: float) -> Row:
    """elu of any alpha: the derivative jumps at 0 from alpha to 1."""
    return Row(
        "elu",
        lambda x: np.where(x > 0, x, alpha * np.expm1(_negative(x))),
        lambda x: np.where(x > 0, 1.0, alpha * np.exp(_negative(x))),
        kinks=(0.0,),
    )


def softplus_row(threshold: float = 20.0) -> Row:
    """softplus for beta = 1: x itself above `threshold`, where the derivative jumps to 1."""
    return Row(
        "softplus",
        lambda x: np.where(x > threshold, x, _softplus(x)),
        lambda x: np.where(x > threshold, 1.0, _sigmoid(x)),
        kinks=(threshold,),
    )


def celu_borders(borders: Sequence[float], alpha: float) -> tuple[float, ...]:
    """Borders for celu with `alpha`, of borders for alpha = 1. ValueError unless alpha > 0."""
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha={alpha!r}; allowed: positive finite numbers")
    return tuple(border * alpha for border in borders)


def softplus_borders(borders: Sequence[float], beta: float) -> tuple[float, ...]:
    """Borders for softplus with `beta`, of borders for beta = 1. ValueError unless beta > 0."""
    if not 0 < beta < math.inf:
        raise ValueError(f"beta={beta!r}; allowed: positive finite numbers")
    return tuple(border / beta for border in borders)


_ROWS = (
    Row(
        "celu",
        lambda x: np.where(x > 0, x, np.expm1(_negative(x))),
        lambda x: np.exp(_negative(x)),
        kinks=(0.0,),
    ),
    elu_row(1.0),
    Row("gelu", lambda x: x * _normal_cdf(x), _gelu_derivative),
    Row("gelu_tanh", _gelu_tanh, _gelu_tanh_derivative),
    Row(
        "hardswish",
        lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
        _hardswish_derivative,
        kinks=(-3.0, 3.0),
    ),
    Row("logsigmoid", lambda x: -_softplus(-x), lambda x: _sigmoid(-x)),
    Row("mish", lambda x: x * np.tanh(_softplus(x)), _mish_derivative),
    Row(
        "selu",
        lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(_negative(x))),
        lambda x: _SELU_SCALE * np.where(x > 0, 1.0, _SELU_ALPHA * np.exp(_negative(x))),
        kinks=(0.0,),
    ),
    Row("sigmoid", _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), parity=True),
    Row(
        "silu",
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (1.0 + x * _sigmoid(-x)),
    ),
    softplus_row(),
    Row(
        "softsign",
        lambda x: x / (1.0 + np.abs(x)),
        lambda x: (1.0 + np.abs(x)) ** -2,
        parity=True,
        kinks=(0.0,),
    ),
    Row("tanh", np.tanh, _sech_squared, parity=True),
    Row("tanhshrink", lambda x: x - np.tanh(x), lambda x: np.tanh(x) ** 2, parity=True),
)
CATALOG: dict[str, Row] = {row.name: row for row in _ROWS}


def row_of(name: str) -> Row:
    """The row of a name. ValueError, which lists the names, if there is none."""
    if name not in CATALOG:
        raise ValueError(f"function {name!r}; allowed: {', '.join(CATALOG)}, or a callable")
    return CATALOG[name]
