"""What a table minimises: the integral of w(x) (f'(x) - q(x))^2 over a domain, in float64.

f' is the derivative of the activation function, w a weight, q a function that is constant between
borders. For given borders the best level of an interval is the mean of f' by w (for w = 1 the mean
slope of f), so the integrals of w, w f' and w f'^2 over intervals are enough. They are sums over
cells, by Gauss-Legendre quadrature. A cell is halved until its halves give what the whole gives, so
places where f' or w jumps or bends become edges of cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from torch_cgx.activations.tables.catalog import Array, Row, row_of

OfTensor: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
OfArray: TypeAlias = Callable[[Array], Array]
Function: TypeAlias = str | Row | OfTensor
Weight: TypeAlias = str | OfTensor | torch.Tensor | np.ndarray
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_CELLS, _MOST_EDGES, _HALVINGS = 256, 2048, 60
_BINS = 256
_CLOSE = 1e-16  # of two quadratures, as a share of the whole integral


@dataclass(frozen=True)
class Objective:
    """`edges`: rising, from one end of the domain to the other; between two of them f' and w are
    smooth."""

    derivative: OfArray
    density: OfArray
    edges: Array

    def cells(self, edges: Array) -> Array:
        """[4, n] of n + 1 edges: the integrals of w, w f', w f'^2 and f' over each cell."""
        return _cells(self.derivative, self.density, edges[:-1], edges[1:])

    def pieces(self, nodes: Array, borders: Array) -> Array:
        """The same over the intervals between borders; `nodes`: edges of cells."""
        edges = np.union1d(nodes, borders)
        begins = np.concatenate([[0], np.searchsorted(edges, borders)])
        return np.add.reduceat(self.cells(edges), begins, axis=1)

    def error(self, approximation: OfArray, borders: Array) -> float:
        """The integral of w (f' - q)^2; `borders`: where q jumps."""
        inside = borders[(borders > self.edges[0]) & (borders < self.edges[-1])]
        edges = np.union1d(self.edges, inside)
        x, scale = _sample(edges[:-1], edges[1:])
        level = approximation(0.5 * (edges[:-1] + edges[1:]))[:, None]
        squared = self.density(x) * (self.derivative(x) - level) ** 2
        return float((squared * scale).sum())


def make(
    function: Function,
    weight: Weight,
    domain: Sequence[float],
    parity: bool = False,
    derivative: OfTensor | None = None,
) -> Objective:
    """The objective on `domain`, or of an even derivative on its right half, where the weight of -x
    is added to the weight of x. ValueError: a name, domain, weight, derivative that is not allowed.
    """
    low, high = _checked(domain)
    slope, kinks = _derivative(function, derivative)
    density, steps = _density(weight, low, high)
    if parity:
        if low != -high:
            raise ValueError(
                f"domain={(low, high)!r}; allowed with parity=True: symmetric ones, as (-10, 10)"
            )
        kinks, steps = (*kinks, *(-x for x in kinks)), np.concatenate([steps, -steps])
        one_side, low = density, 0.0
        density = lambda x: one_side(x) + one_side(-x)  # noqa: E731
    nodes = np.concatenate([np.linspace(low, high, _CELLS + 1), kinks, steps])
    nodes = np.unique(nodes[(nodes >= low) & (nodes <= high)] + 0.0)  # no -0.0
    _check(slope, density, nodes, parity)
    return Objective(slope, density, _halved(slope, density, nodes))


_FARTHEST, _NARROWEST = 1e6, 1e-6  # of domains


def _checked(domain: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = map(float, domain)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"domain={domain!r}; allowed: two finite numbers, the lower one first")
    if max(-low, high) > _FARTHEST or high - low < _NARROWEST * max(1.0, abs(low), abs(high)):
        raise ValueError(
            f"domain={domain!r}; allowed: numbers up to {_FARTHEST:g} in size, apart by at least "
            f"{_NARROWEST:g} of it"
        )
    return low, high


def _derivative(
    function: Function, derivative: OfTensor | None
) -> tuple[OfArray, tuple[float, ...]]:
    if isinstance(function, (str, Row)):
        row = row_of(function) if isinstance(function, str) else function
        if derivative is not None:
            raise ValueError(f"derivative= with function={row.name!r}, which has its own")
        return row.derivative, row.kinks
    if derivative is not None:
        return _of_arrays(derivative, "derivative"), ()
    if not callable(function):
        raise TypeError(
            f"function: {type(function).__name__}; allowed: a name, or a callable on tensors"
        )
    return _of_arrays(lambda x: _slope(function, x), "function"), ()


def _slope(function: OfTensor, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone().requires_grad_()
        y = function(x)
        if not isinstance(y, torch.Tensor) or y.shape != x.shape or not y.requires_grad:
            raise ValueError(
                "function: its result has no gradient for each value; allowed: functions of one "
                "tensor that autograd differentiates, or derivative="
            )
        return torch.autograd.grad(y.sum(), x)[0]


def _of_arrays(function: OfTensor, name: str) -> OfArray:
    """A function of flat float64 tensors on the CPU as one of arrays."""

    def call(x: Array) -> Array:
        given = torch.from_numpy(np.ascontiguousarray(x).reshape(-1))
        y = function(given)
        if not isinstance(y, torch.Tensor) or y.shape != given.shape:
            raise ValueError(f"{name}: not a tensor of its argument's shape")
        return y.detach().to(torch.device("cpu"), torch.float64).numpy().reshape(x.shape)

    return call


def _density(weight: Weight, low: float, high: float) -> tuple[OfArray, Array]:
    """w, and where it jumps."""
    nowhere = np.empty(0)
    if isinstance(weight, str):
        if weight == "uniform":
            return np.ones_like, nowhere
        if weight == "normal":
            return lambda x: np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi), nowhere
    elif isinstance(weight, (torch.Tensor, np.ndarray)):
        return _histogram(weight, low, high)
    elif callable(weight):
        return _of_arrays(weight, "weight"), nowhere
    raise ValueError(
        f"weight={weight!r}; allowed: 'uniform', 'normal', a callable density, or a tensor or "
        "array of inputs"
    )


def _histogram(weight: torch.Tensor | np.ndarray, low: float, high: float) -> tuple[OfArray, Array]:
    if isinstance(weight, torch.Tensor):
        weight = weight.detach().to(torch.device("cpu"), torch.float64).numpy()
    inputs = np.asarray(weight, np.float64).reshape(-1)
    wrong = int(np.count_nonzero(~np.isfinite(inputs)))
    if wrong or not inputs.size:
        what = f"{wrong} of {inputs.size} inputs are NaN or infinite" if wrong else "no inputs"
        raise ValueError(f"weight: {what}; allowed: finite inputs, at least one")
    inputs = np.clip(inputs, low, high)
    first, last = float(inputs.min()), float(inputs.max())
    least = 1e-6 * (high - low)
    if last - first < least:  # all in one place
        first, last = max(low, first - least), min(high, last + least)
    heights, edges = np.histogram(inputs, _BINS, (first, last), density=True)
    padded = np.concatenate([[0.0], heights, [0.0]])
    return lambda x: padded[np.searchsorted(edges, x)], edges


def _sample(low: Array, high: Array) -> tuple[Array, Array]:
    """Points of the quadrature over each cell, [n, 8], and what their values are multiplied by."""
    half = 0.5 * (high - low)[:, None]
    return 0.5 * (low + high)[:, None] + half * _POINTS, half * _WEIGHTS


def _cells(slope: OfArray, density: OfArray, low: Array, high: Array) -> Array:
    x, scale = _sample(low, high)
    y, w = slope(x), density(x)
    parts = (w * scale, w * y * scale, w * y * y * scale, y * scale)
    return np.stack([part.sum(1) for part in parts])


def _check(slope: OfArray, density: OfArray, nodes: Array, parity: bool) -> None:
    x, _ = _sample(nodes[:-1], nodes[1:])
    y, w = slope(x), density(x)
    bad = ~np.isfinite(y)
    if bad.any():
        raise ValueError(f"function: its derivative is {y[bad][0]} at {x[bad][0]:.6g}")
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        raise ValueError(
            f"weight: {w[bad][0]} at {x[bad][0]:.6g}; allowed: finite, 0 or more everywhere"
        )
    if not w.any():
        raise ValueError("weight: 0 everywhere in the domain")
    bad = np.abs(y - slope(-x)) > 1e-9 * np.abs(y).max() if parity else np.zeros(1, bool)
    if bad.any():
        raise ValueError(
            f"parity=True with a derivative that is not even: {y[bad][0]:.6g} at "
            f"{x[bad][0]:.6g}, {slope(-x)[bad][0]:.6g} at {-x[bad][0]:.6g}"
        )


def _halved(slope: OfArray, density: OfArray, edges: Array) -> Array:
    """The edges with the middles of cells whose halves give other integrals, and so on in those."""
    low, high = edges[:-1], edges[1:]
    whole = _cells(slope, density, low, high)
    close = _CLOSE * np.abs(whole).sum(1, keepdims=True)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        left = _cells(slope, density, low, middle)
        right = _cells(slope, density, middle, high)
        bad = (np.abs(left + right - whole) > close).any(0) & (low < middle) & (middle < high)
        if not bad.any() or edges.size + int(bad.sum()) > _MOST_EDGES:
            break
        edges = np.union1d(edges, middle[bad])
        low, high = (
            np.concatenate([low[bad], middle[bad]]),
            np.concatenate([middle[bad], high[bad]]),
        )
        whole = np.concatenate([left[:, bad], right[:, bad]], axis=1)
    return edges
