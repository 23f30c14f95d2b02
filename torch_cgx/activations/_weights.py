"""Which tensors belong to weights: parameters, their views, and their casts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from torch_cgx.activations._history import COPIES, VIEWS, behind

_SAMPLE = 16  # values by which a cast of a frozen weight is recognised


def is_weight(tensor: torch.Tensor) -> bool:
    """Whether autograd's records say that the tensor is a leaf that requires a gradient or a
    parameter, or a view or cast of one.
    """
    if tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, nn.Parameter)):
        return True
    if tensor._is_view():
        base = tensor._base
        if base is not None and base.is_leaf:
            if base.requires_grad or isinstance(base, nn.Parameter):
                return True
    node = behind(tensor.grad_fn, VIEWS | COPIES)
    return node is not None and isinstance(getattr(node, "variable", None), nn.Parameter)


def is_cast_of(tensor: torch.Tensor, weights: Mapping[torch.Size, list[torch.Tensor]]) -> bool:
    """Whether the tensor without a history is a cast of one of these tensors (by shape), or a view
    of a cast, as autocast makes them of frozen weights: of the same shape, another type, and equal
    at a sample of places.
    """
    base = tensor._base if tensor._is_view() else None
    whole = tensor if base is None else base
    for weight in weights.get(whole.shape, ()):
        if weight.dtype == whole.dtype or weight.device != whole.device:
            continue
        step = max(1, weight.numel() // _SAMPLE)
        sample = weight.detach().reshape(-1)[::step].to(whole.dtype)
        if torch.equal(sample, whole.detach().reshape(-1)[::step]):
            return True
    return False


def frozen_of(tensors: Iterable[torch.Tensor]) -> dict[torch.Size, list[torch.Tensor]]:
    """Those of a model's tensors that require no gradient, by shape."""
    found: dict[torch.Size, list[torch.Tensor]] = {}
    for one in tensors:
        if not one.requires_grad and has_storage(one):
            found.setdefault(one.shape, []).append(one)
    return found


def has_storage(tensor: torch.Tensor) -> bool:
    """False for subclasses, which wrap other tensors."""
    return type(tensor) in (torch.Tensor, nn.Parameter, nn.Buffer)
