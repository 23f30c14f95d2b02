"""`linear`: torch's linear function that keeps a part of its input for the gradient of the weight.

y = x W^T + b and dx = dy W are torch's own. With rows x_i of the batch, dW = sum_i dy_i x_i^T is
estimated without bias from k kept rows, or from S x, of which S is made again in backward from a
key: dW ~ (S dy)^T (S x). By features, k columns of x are kept, or x S^T: dW ~ (dy^T x S^T) S.

"wta" by batch samples differences d_i = x_i - m from the mean m of all rows, which is kept, too:
dW = (sum_i dy_i) m^T + sum_i dy_i d_i^T. Its first term is exact, so what is common to all rows
makes no error.

Projections: Bershatsky et al., "Memory-Efficient Backpropagation through Large Linear Layers"
(2022), whose package is FewBit. Sampling: sampling.py.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from torch_cgx.activations._once import once
from torch_cgx.activations._operators import FLOATING
from torch_cgx.activations._samples import saving_samples
from torch_cgx.activations.projection import _operators
from torch_cgx.activations.projection._operators import new_key
from torch_cgx.activations.projection.settings import (
    METHODS,
    SAMPLING,
    By,
    Method,
    Settings,
    checked,
    count_of,
    none_kept,
    ratio_of,
)

_samples = WeakTensorKeyDictionary()  # of inputs: what layers that get the same tensor share
_ops = torch.ops.torch_cgx


class _Sample:
    """What layers that get one tensor share. facts: what it is made of; kept: the sample [k, in]
    or [n, k], or the projection; index: of what is sampled, or a projection's key.

    The latest sample is held until the next one is made or a backward pass uses it, since hooks on
    saved tensors, such as compress_saved's, keep something else. All others live only as long as
    nodes keep them: a checkpoint that drops what is saved drops the samples, too.
    """

    __slots__ = ("__weakref__", "_held", "_index", "_kept", "facts", "used")

    def __init__(self, kept: Tensor, index: Tensor, facts: Any):
        self._kept, self._index, self.facts = TensorWeakRef(kept), TensorWeakRef(index), facts
        self._held: tuple[Tensor, Tensor] | None = kept, index
        self.used = False

    def found(self) -> tuple[Tensor, Tensor] | None:
        """kept, index; None: they are gone, or belong to a step that is over."""
        kept, index = self._kept(), self._index()
        return None if self.used or kept is None or index is None else (kept, index)

    def release(self) -> None:
        self._held = None


_latest: weakref.ref[_Sample] | None = None


class _Projected(torch.autograd.Function):
    """kept, index: inputs, so that autograd saves the same tensors for all that share them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        kept: Tensor,
        index: Tensor,
        method: str,
        by: str,
        sample: weakref.ref[_Sample] | None,
    ) -> Tensor:
        # torch, too, lets a weight change in the meantime where the input needs no gradient.
        ctx.save_for_backward(kept, index, weight if ctx.needs_input_grad[0] else None)
        ctx.method, ctx.by, ctx.sample, ctx.width = method, by, sample, weight.shape[1]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        kept, index, weight = ctx.saved_tensors
        sample = None if ctx.sample is None else ctx.sample()
        if sample is not None:
            sample.used = True
            sample.release()
        dy = gradients[0]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dx = dweight = dbias = None
        with torch.no_grad():
            rows = dy.reshape(-1, dy.shape[-1])
            if needs_x:
                dx = dy @ weight
            if needs_weight:
                dweight = _of_weight(rows, kept, index, ctx.width, ctx.method, ctx.by)
            if needs_bias:
                dbias = rows.sum(0)
        found = once("linear with keep", (dy, weight), (dx, dweight, dbias))
        return *found, None, None, None, None, None


def _of_weight(dy: Tensor, kept: Tensor, index: Tensor, width: int, method: str, by: str) -> Tensor:
    sampled = method in SAMPLING
    if by == "batch":
        if not sampled:
            part = _ops.projection_project(dy, index, kept.shape[0], method)
            return part.t() @ kept
        part = dy.index_select(0, index)
        rows = kept[: index.shape[0]]
        found = _enlarged(part.t() @ rows, kept, dy.shape[0] / rows.shape[0], sampled)
        if method == "wta":  # the mean's part is exact
            found = found.addr(dy.sum(0), kept[-1].to(found.dtype))
        return found
    product = dy.t() @ kept
    if not sampled:
        return _ops.projection_back(product, index, width, method)
    product = _enlarged(product, kept, width / kept.shape[1], sampled)
    # Not of kept's type: a backward pass under autocast gives the type of autocast.
    found = product.new_zeros(product.shape[0], width, dtype=product.dtype, device=kept.device)
    return found.index_add_(1, index, product)


def _enlarged(product: Tensor, kept: Tensor, by: float, sampled: bool) -> Tensor:
    """What `_scaled` has left out for float16."""
    return product * by if sampled and kept.dtype == torch.float16 else product


def _scaled(factor: Tensor, x: Tensor, n: int, count: int) -> Tensor:
    """Factors 1 / p of what is kept. Those of float16 are without n / count, their size for equal
    rows: 1 / p times a value that float16 holds may be more than it holds, and no scale of the loss
    would help."""
    return factor * (count / n) if x.dtype == torch.float16 else factor


def _sample(x: Tensor, key: Tensor, count: int, settings: Settings) -> tuple[Tensor, Tensor]:
    """What is kept of x [n, width], and the index or key that backward needs."""
    turned = x.t() if settings.by == "features" else x
    if settings.method not in SAMPLING:
        kept = _ops.projection_project(turned, key, count, settings.method)
        return (kept.t().contiguous() if settings.by == "features" else kept), key
    centred = settings.method == "wta" and settings.by == "batch"
    mean = x.mean(0, keepdim=True) if centred else None
    index, factor = _ops.projection_choose(turned, key, count, settings.method, mean)
    factor = _scaled(factor, x, turned.shape[0], count)
    if settings.by == "features":
        return (x.index_select(1, index) * factor).to(x.dtype), index
    kept = x.index_select(0, index)
    if mean is None:
        return (kept * factor[:, None]).to(x.dtype), index
    return torch.cat([((kept - mean) * factor[:, None]).to(x.dtype), mean]), index


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    keep: float = 0.2,
    method: Method = "wta",
    by: By = "batch",
    rows: int | None = None,
    _key: Tensor | None = None,
) -> Tensor:
    """torch.nn.functional.linear that keeps a part of its input for the gradient of the weight.

    input: [..., in], weight: [out, in], bias: [out] or None; float32, float64, float16 or bfloat16.
    The result and the gradients of input and bias are exact; the gradient of the weight is an
    estimate with the right mean. Kept are k = int(keep * n) of the n rows of the batch (the product
    of all dimensions but the last), so keep * n * in values in place of n * in:

    method: "wta" keeps the mean of all rows, those that differ most from it, and others with a
        probability proportional to the norm of the difference; "rows" keeps rows at random, all
        alike; "gaussian", "rademacher" and "srht" keep a random projection of all rows, which takes
        longer.
    by: "batch", or "features": k = int(keep * in) columns or projections of the columns.
    rows: k itself, in place of keep. More than there are: exact with sampling and "srht".

    keep=1, a weight that requires no gradient, an empty input, torch.no_grad() and torch.func's
    transforms are torch's own function. Random numbers come from a key of 63 bits that each call
    draws from torch's generator of the CPU, and from the rank: torch.manual_seed, a restored state
    of the generator and checkpoints repeat them. Layers that get the same tensor, such as query,
    key and value, share what is kept (in eager mode, if they get the same tensor object and
    settings, and it is no leaf; inside a checkpoint or compress_saved, if no other tensor comes in
    between). Second derivatives are a RuntimeError.

    TypeError: another dtype, layout, or a DTensor. ValueError: settings that are not allowed; k
    would be 0; a weight that has not two dimensions.
    """
    settings = checked(keep, method, by, rows)
    return projected(input, weight, bias, settings, _key)


def projected(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: Settings,
    key: Tensor | None = None,
    training: bool = True,
) -> Tensor:
    """`linear` with settings that are checked. training: a key is drawn without autograd, too."""
    _check(x, weight)
    compiling = torch.compiler.is_compiling()
    count = None
    if weight.requires_grad and x.ndim and x.numel() and weight.numel():
        count = count_of(x, settings)
    transforms = not compiling and torch._C._are_functorch_transforms_active()
    if count is None or transforms:
        return F.linear(x, weight, bias)
    enabled = torch.is_grad_enabled()
    if key is None and (training or enabled):
        # Also without autograd: a reentrant checkpoint runs its forward pass twice, first without,
        # and what draws after this call must draw the same numbers.
        key = _ops.projection_key(x.detach()) if compiling else new_key()
    if not enabled:
        return F.linear(x, weight, bias)
    if count == 0:
        raise none_kept(x, settings)
    assert key is not None
    own = x
    device = x.device.type
    known = torch.amp.is_autocast_available(device)  # not for meta
    if known and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    flat = x.detach().reshape(-1, x.shape[-1])
    if compiling:
        kept, index = _sample(flat, key, count, settings)
        return _Projected.apply(x, weight, bias, kept, index, settings.method, settings.by, None)
    kept, index, sample = _shared(own, flat, key, count, settings)
    with saving_samples():
        return _Projected.apply(x, weight, bias, kept, index, settings.method, settings.by, sample)


def _shared(
    own: Tensor, flat: Tensor, key: Tensor, count: int, settings: Settings
) -> tuple[Tensor, Tensor, weakref.ref[_Sample] | None]:
    """The sample of `flat`, or the one that another layer has made of the same tensor `own`.

    A leaf does not share: it may be the batch of many steps, each of which needs new numbers. For
    the same reason a sample that a backward pass has used is not used again.
    """
    global _latest
    if own.grad_fn is None:
        with torch.no_grad():
            return *_sample(flat, key, count, settings), None
    # Assignments to own.data change no version.
    place = own.untyped_storage()._cdata, own.shape, own.stride(), own.storage_offset()
    facts = own._version, place, flat.dtype, count, settings
    before: _Sample | None = _samples.get(own)
    if before is not None and before.facts == facts:
        found = before.found()
        if found is not None:
            return *found, weakref.ref(before)
    with torch.no_grad():
        kept, index = _sample(flat, key, count, settings)
    held = None if _latest is None else _latest()
    if held is not None:
        held.release()
    made = _Sample(kept, index, facts)
    _samples[own], _latest = made, weakref.ref(made)
    return kept, index, _latest


def _check(x: Any, weight: Tensor) -> None:
    for name, tensor in (("input", x), ("weight", weight)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; allowed: torch.Tensor")
        if tensor.is_nested or tensor.layout != torch.strided:
            layout = "nested" if tensor.is_nested else str(tensor.layout)
            raise TypeError(f"{name} is {layout}; allowed: strided tensors")
        if tensor.dtype not in FLOATING:
            raise TypeError(
                f"{name} is {tensor.dtype}; allowed: float32, float64, float16, bfloat16"
            )
        spread = sys.modules.get("torch.distributed.tensor")
        if spread is not None and isinstance(tensor, spread.DTensor):
            raise TypeError(
                f"{name} is a DTensor; allowed: plain tensors, as of FSDP2 and "
                "DistributedDataParallel. Tensor parallelism needs torch.nn.Linear"
            )
    if weight.ndim != 2:
        raise ValueError(f"weight has the shape {tuple(weight.shape)}; allowed: [out, in]")


__all__ = [
    "METHODS",
    "SAMPLING",
    "By",
    "Method",
    "Settings",
    "_operators",
    "checked",
    "count_of",
    "linear",
    "projected",
    "ratio_of",
]
