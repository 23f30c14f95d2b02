"""Error feedback of a sender: what an encoding leaves out is kept for the next one.

The rule of docs/numerics.md for values that a rank encodes once: it sends v = x + r in place of x,
receivers decode v^, and r becomes v - v^ where that is finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _C
from torch_cgx._dtypes import COMPUTED
from torch_cgx._storage import check_storage


def check(
    what: str, residual: torch.Tensor, input: torch.Tensor, codec: _C.Codec | None, *others: object
) -> None:
    """TypeError, ValueError unless `residual` can be that of `input`. others: tensors that it must
    not share memory with.
    """
    if codec is not None:
        _C.check_feedback(codec)
    if input.dtype not in COMPUTED:
        raise ValueError(
            f"cgx: a residual was given to {what} of a {input.dtype} tensor; allowed: float32, "
            "float16, bfloat16"
        )
    if residual.is_nested or residual.layout != torch.strided:
        raise TypeError(f"cgx: {what}: the residual is not strided; allowed: torch.strided")
    if residual.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(
            f"cgx: {what}: the residual is {residual.dtype}; allowed: float32, bfloat16"
        )
    if residual.shape != input.shape:
        raise ValueError(
            f"cgx: {what}: the residual has the shape {list(residual.shape)}; allowed: the "
            f"input's, {list(input.shape)}"
        )
    if residual.device != input.device:
        raise ValueError(
            f"cgx: {what}: the residual is on {residual.device}; allowed: the input's device, "
            f"{input.device}"
        )
    if not residual.is_contiguous() or residual.is_neg():
        raise ValueError(
            f"cgx: {what}: the residual is not contiguous (strides {list(residual.stride())}); "
            "allowed: a contiguous tensor"
        )
    if residual.requires_grad:
        raise ValueError(
            f"cgx: {what}: the residual requires a gradient; allowed: one that does not"
        )
    check_storage(residual, f"cannot be the residual of {what}")
    for other in (input, *others):
        if isinstance(other, torch.Tensor) and _share_memory(residual, other):
            raise ValueError(
                f"cgx: {what}: the residual shares memory with the input or the output; allowed: "
                "memory of its own"
            )


class Sent:
    """The values that a rank sends in place of its input, in the input's dtype, and what is owed
    once they are known as receivers decode them.
    """

    def __init__(self, input: torch.Tensor, residual: torch.Tensor):
        self._residual = residual.view(-1)
        self._wanted = input.detach().reshape(-1).float() + self._residual
        self.values = self._wanted.to(input.dtype)

    def keep(self, decoded: Sequence[torch.Tensor]) -> None:
        """decoded: parts that hold, one after the other, all values as receivers have them."""
        done = 0
        for part in decoded:
            here = slice(done, done + part.numel())
            error = self._wanted[here] - part.view(-1)
            owed = self._residual[here]
            owed.copy_(torch.where(error.isfinite(), error, owed))
            done = here.stop


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of contiguous tensors."""
    begins = one.data_ptr(), other.data_ptr()
    if one.numel() == 0 or other.numel() == 0 or one.device != other.device:
        return False
    return begins[0] < begins[1] + other.nbytes and begins[1] < begins[0] + one.nbytes
