"""Whether the normalised input of a norm can be computed back from its output y = xhat w + b.

y is rounded to its dtype, so xhat = (y - b) / w has an error of about eps (|xhat| + |b / w|), with
eps the rounding error of that dtype. The parameters decide. They are in range if, for every
feature,

    |b / w| <= 1024 (float32, float64), 32 (float16), 8 (bfloat16)
    |w| >= 1024 times the smallest normal number of the dtype of y

At the limit a value of xhat is off by 2^-14 in float32. A weight of zero is never in range.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

_LIMITS = {torch.float16: 32.0, torch.bfloat16: 8.0}
_LIMIT = 1024.0
_SMALLEST = 1024.0

_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def in_range(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> bool:
    """dtype: of the output. On a CPU the values are looked at in every call, about 10 us. On other
    devices the host waits for the device, so that the answer is kept until an in-place operation
    changes a parameter (a change through `.data` is not seen there). Tensors without values (meta,
    FakeTensor) count as in range."""
    if weight.is_meta or isinstance(weight, FakeTensor):
        return True
    if weight.device.type == "cpu":
        return _look(weight, bias, dtype)
    return remembered(weight, bias, dtype)


def remembered(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> bool:
    """The answer for these versions of the parameters, looked up or computed."""
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        return _look(weight, bias, dtype)  # such tensors have no version
    of_bias = None if bias is None else (id(bias), bias._version)
    facts = (weight._version, of_bias, dtype)
    known = _known.get(weight)
    if known is None or known[0] != facts:
        known = _known[weight] = (facts, _look(weight, bias, dtype))
    return known[1]


def _look(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> bool:
    with torch.no_grad():
        size = weight.abs()
        if not size.numel():
            return True
        inside = size.min() >= _SMALLEST * torch.finfo(dtype).tiny  # False for NaN
        if bias is not None:
            inside &= (bias.abs() <= size * _LIMITS.get(dtype, _LIMIT)).all()
        return bool(inside)


@torch.library.custom_op("torch_cgx::norm_inverse_weight", mutates_args=())
def inverse_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """1 / weight for the backward pass of a compiled graph, in which the choice of what is kept is
    part of the graph. dtype: of the output. RuntimeError if the parameters have left the range."""
    if not in_range(weight, bias, dtype):
        raise RuntimeError(
            "a norm was compiled to keep its output, but its weight or bias has since left the "
            "range in which its input can be computed back. Compile again "
            '(torch.compiler.reset()), or construct the norm with keep="input"'
        )
    return weight.reciprocal()


@inverse_weight.register_fake
def _(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(weight)


def in_range_when_traced(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> bool:
    return in_range(weight, bias, dtype)


# torch.compile takes the result for a constant. torch.compiler's decorator, which does the same,
# would import all of its machinery.
in_range_when_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
