"""How far the estimated gradient of a weight is from the exact one, and from that of other batches.

With rows x_i of an input X [N, in] and y_i of the output's gradient Y [N, out], the gradient is
G = Y^T X = sum_i y_i x_i^T. Write

    A = |X|^2 |Y|^2    C = |X^T Y|^2    D = sum_i |x_i|^2 |y_i|^2    (Frobenius norms)

An estimate from k rows or projections has the mean squared error E|estimate - G|^2

    gaussian      (A + C) / k
    rademacher    (A + C - 2 D) / k
    srht          (A + C - 2 D) / k * (m - k) / (m - 1)      m: the power of two from N on
    rows          N^2 (1 / k - 1 / N) S^2,                   S^2 = (D - C / N) / (N - 1)
    wta           sum_i (1 / p_i - 1) |x_i - m|^2 |y_i|^2    p_i: sampling.inclusion, m: the mean

The first four are exact for every X and Y: the second moments of v^T P v for normal v and random
signs v, and Cochran, "Sampling Techniques" (1977), 2.4, for draws without replacement (those of
srht are rows of a matrix of Hadamard). That of wta is the error of independent draws with the same
probabilities: draws of a fixed number have less where the terms y_i x_i^T point in like directions,
and may have a little more where they cancel.

By features the columns of X take the place of rows: x_i becomes the gradient of the i-th column,
G[:, i], and y_i the i-th unit vector.

FewBit, and "Memory-Efficient Backpropagation through Large Linear Layers" (Bershatsky et al., 2022)
by it, compare (A - C) / k with the variance of the gradient over batches,
N / (N - 1) D - C / (N - 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_cgx.activations._operators import FLOATING
from torch_cgx.activations.projection import function, sampling
from torch_cgx.activations.projection.modules import Linear

_UNLIMITED = ("gaussian", "rademacher")  # which have an error however many rows they keep
Callback = Callable[[float, float, float, int], object]


class Variance(NamedTuple):
    """All in squares of the gradient's unit; nan where the formula divides by 0.

    correlation: alpha = C / A, 0 to 1; 1 where all rows are alike.
    sgd: of the gradient over batches of these N rows, as FewBit estimates it.
    projected: FewBit's formula for a projection, (A - C) / k, whatever the method. It is not the
        error: that of "gaussian" is (A + C) / k.
    expected: E|estimate - G|^2 of the method (for "wta" an estimate of it).
    """

    correlation: float
    sgd: float
    projected: float
    expected: float


def variance(
    input: Tensor,
    grad: Tensor,
    rows: int,
    method: function.Method = "gaussian",
    by: function.By = "batch",
) -> Variance:
    """The variances of the estimated gradient of a linear layer's weight.

    input: X, [..., in]. grad: Y, [..., out], the gradient of the layer's output. float32, float64,
    float16 or bfloat16; the other dimensions are equal, N is their product. Norms are float32, or
    float64 for float64.
    rows: k. More than there are: exact, but for "gaussian" and "rademacher".
    method, by: as of `activations.functional.linear`.

    On a GPU the host waits for the four numbers. TypeError, ValueError: what is not allowed.
    """
    settings = function.checked(1.0, method, by, rows)
    if settings.rows is None:
        raise TypeError("rows=None; allowed: integers from 1")
    x, y = _flat(input, grad)
    return _variance(x, y, settings.rows, settings)


def _flat(input: Any, grad: Any) -> tuple[Tensor, Tensor]:
    for name, tensor in (("input", input), ("grad", grad)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; allowed: a tensor")
        if tensor.dtype not in FLOATING:
            raise TypeError(
                f"{name} is {tensor.dtype}; allowed: float32, float64, float16, bfloat16"
            )
    if input.ndim == 0 or grad.ndim == 0 or input.shape[:-1] != grad.shape[:-1]:
        raise ValueError(
            f"input has the shape {tuple(input.shape)}, grad {tuple(grad.shape)}; allowed: equal "
            "ones, but for the last dimension"
        )
    if not input.numel() or not grad.numel():
        raise ValueError(
            f"input has the shape {tuple(input.shape)}, grad {tuple(grad.shape)}; allowed: at "
            "least one value"
        )
    wide = torch.float64 if torch.float64 in (input.dtype, grad.dtype) else torch.float32
    x, y = input.detach().to(wide), grad.detach().to(wide)
    return x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])


def _variance(x: Tensor, y: Tensor, k: int | None, settings: function.Settings) -> Variance:
    """k: None for all rows, exactly."""
    n = x.shape[0]
    gradient = y.t() @ x
    x_sizes, y_sizes = x.square().sum(1).double(), y.square().sum(1).double()
    features = settings.by == "features"
    centred = x - x.mean(0) if settings.method == "wta" and not features else x
    if features:
        parts, norms = gradient.square().sum(0).double(), x.square().sum(0)
    else:
        norms = centred.square().sum(1)
        parts = norms.double() * y_sizes
    drawn = parts.numel()
    k, exact = (drawn, True) if k is None else (k, k >= drawn and settings.method not in _UNLIMITED)
    independent = parts.sum() * 0.0
    if settings.method == "wta" and not exact:
        chances = sampling.inclusion(norms.sqrt(), k)
        independent = ((1.0 / chances - 1.0) * parts).sum()
    numbers = (
        x_sizes.sum(),
        y_sizes.sum(),
        gradient.square().sum().double(),
        (x_sizes * y_sizes).sum(),
        parts.sum(),
        independent,
    )
    xx, yy, c, d, of_parts, by_chances = torch.stack(numbers).tolist()
    # By features the unit vectors have a squared norm of 1 each, and the product of both is G.
    a = c * drawn if features else xx * yy
    return Variance(
        correlation=_divided(c, xx * yy),
        sgd=_divided(n * d - c, n - 1),
        projected=(a - c) / k,
        expected=0.0 if exact else _expected(settings.method, drawn, k, a, c, of_parts, by_chances),
    )


def _divided(a: float, b: float) -> float:
    return a / b if b else math.nan


def _expected(
    method: str, n: int, k: int, a: float, c: float, d: float, independent: float
) -> float:
    if method == "wta":
        return independent
    if method == "gaussian":
        return (a + c) / k
    if method == "rademacher":
        return (a + c - 2 * d) / k
    if method == "srht":
        m = 1 << (n - 1).bit_length()
        return 0.0 if m == 1 else max(0.0, (a + c - 2 * d) / k * (m - k) / (m - 1))
    return max(0.0, n * n * (1 / k - 1 / n) * (d - c / n) / (n - 1))


class VarianceEstimator:
    """Computes `variance` for a layer in each backward pass of a training.

        with VarianceEstimator(model.fc, lambda alpha, sgd, projected, step: print(step, alpha)):
            loss_of(model, batch).backward()

    layer: an activations.Linear of eager mode. Its forward and backward are not changed.
    callback: called in the backward pass, as soon as the gradient of the layer's output is known,
        with correlation, sgd, projected and the number of the pass, from 1.
    last: the latest `Variance`, None before the first. step: passes so far.

    It keeps the layer's exact input until the backward pass is over, which is what the layer saves
    otherwise: for measurements, not for every step. Nothing is computed while the weight needs no
    gradient. close(), or the end of the context, stops it: graphs that exist are not counted then,
    either.

    TypeError: another layer, a callback that is none. RuntimeError in the backward pass: the input
    was changed in place in the meantime.
    """

    _allowed: tuple[type[torch.nn.Module], str] = (Linear, "activations.Linear")

    def __init__(self, layer: torch.nn.Module, callback: Callback | None = None) -> None:
        kind, name = self._allowed
        if not isinstance(layer, kind):
            raise TypeError(f"layer is a {type(layer).__name__}; allowed: {name}")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback={callback!r}; allowed: None, a function of four numbers")
        self.layer, self.callback = layer, callback
        self.last: Variance | None = None
        self.step = 0
        self._closed = False
        self._handle = layer.register_forward_hook(self._forward, with_kwargs=True)

    def _kept(self, input: Tensor) -> tuple[int | None, function.Settings]:
        """How many rows the layer keeps of this input (None: all, exactly), and its settings."""
        settings: function.Settings = self.layer.settings  # type: ignore[assignment]
        return function.count_of(input, settings), settings

    def _forward(
        self, layer: Any, args: tuple[Any, ...], options: dict[str, Any], output: Any
    ) -> None:
        if not output.requires_grad or not layer.weight.requires_grad:
            return
        input = args[0] if args else options["input"]
        if input.numel():
            output.register_hook(_OnGradient(self, input, *self._kept(input)))

    def _backward(self, found: Variance) -> None:
        self.last = found
        self.step += 1
        if self.callback is not None:
            self.callback(found.correlation, found.sgd, found.projected, self.step)

    def close(self) -> None:
        """Stops. A second call changes nothing."""
        self._closed = True
        self._handle.remove()

    def __enter__(self) -> VarianceEstimator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _version(tensor: Tensor) -> int:
    """How often it was changed. Tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


class _OnGradient:
    """Of one forward pass. A hook of the output and no node of its own: a node that returns the
    output as a view would forbid changing it in place.
    """

    def __init__(
        self,
        estimator: VarianceEstimator,
        input: Tensor,
        rows: int | None,
        settings: function.Settings,
    ) -> None:
        self._estimator, self._rows, self._settings = estimator, rows, settings
        self._input: Tensor | None = input.detach()
        self._version = _version(input)

    def __call__(self, grad: Tensor) -> None:
        input = self._input
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self._input = None  # as autograd frees what it has saved
        if self._estimator._closed or input is None:
            return
        if _version(input) != self._version:
            raise RuntimeError(
                "the input of a layer that VarianceEstimator watches was changed in place before "
                "its backward pass; allowed: a copy, or no estimator"
            )
        with torch.no_grad():
            found = _variance(*_flat(input, grad), self._rows, self._settings)
        self._estimator._backward(found)


__all__ = ["Variance", "VarianceEstimator", "variance"]
