"""Dropout that keeps its key or one bit a value, where torch keeps a mask (of float32 on a CPU)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_cgx.activations import _operators
from torch_cgx.activations.few_bit.function import in_memory_order, inverse

Keep = Literal["replay", "bits"]
_ops = torch.ops.torch_cgx


class _Replay(torch.autograd.Function):
    """Linear in x, and every call with the same key zeroes the same values. So its backward pass is
    the same function of the gradient, and may be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, key: int, inplace: bool) -> Tensor:
        ctx.p, ctx.key = p, key
        return _result(ctx, x, _ops.dropout(x, p, key), inplace)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Replay.apply(gradients[0], ctx.p, ctx.key, False), None, None, None


class _Bits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, codes: Tensor, inplace: bool) -> Tensor:
        ctx.save_for_backward(codes)
        ctx.p = p
        return _result(ctx, x, _ops.level_multiply(x, codes, [0.0, _scale(p)]), inplace)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (codes,) = ctx.saved_tensors
        return _Bits.apply(gradients[0], ctx.p, codes, False), None, None, None


def _result(ctx: Any, x: Tensor, y: Tensor, inplace: bool) -> Tensor:
    if not inplace:
        return y
    ctx.mark_dirty(x)
    return x.copy_(y)


def _scale(p: float) -> float:
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def _new_key() -> int:
    """63 bits from torch's generator of the CPU, on every device: torch.manual_seed and the
    preserve_rng_state of checkpoints replay them."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def _check_keep(keep: Any) -> None:
    if keep not in ("replay", "bits"):
        raise ValueError(f'keep={keep!r}; allowed: "replay", "bits"')


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    keep: Keep = "replay",
) -> Tensor:
    """Zeros with probability p, other values times 1 / (1 - p), as torch.nn.functional.dropout.

    input: floating point. keep: "replay" keeps a key of 63 bits for the whole tensor, drawn from
    torch's generator of the CPU, and backward draws the same mask again; "bits" keeps
    ceil(n / 8) bytes of a mask drawn by torch, on a CPU the same as of torch's own dropout.
    torch.compile always takes "bits". Second derivatives work. ValueError: p outside 0 to 1,
    another keep.
    """
    _check_keep(keep)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p={p!r}; allowed: 0 to 1")
    if not training or p == 0.0 or input.numel() == 0:
        return input
    order = in_memory_order(input)
    if order is not None:  # keeps the layout, as channels_last
        y = dropout(input.permute(order), p, True, inplace, keep=keep)
        return y.permute(inverse(order))
    if keep == "replay" and not torch.compiler.is_compiling():
        return _Replay.apply(input, p, _new_key(), inplace)
    with torch.no_grad():
        mask = torch.empty_like(input, requires_grad=False).bernoulli_(1.0 - p)
        codes = _ops.level_encode(mask, [0.5], 2)
    if torch.compiler.is_compiling() and inplace:
        # torch.compile refuses this mark_dirty.
        return input.copy_(_Bits.apply(input, p, codes, False))
    return _Bits.apply(input, p, codes, inplace)


class Dropout(nn.Dropout):
    """torch.nn.Dropout that keeps no mask of its input's size. keep: as in `dropout`."""

    def __init__(self, p: float = 0.5, inplace: bool = False, *, keep: Keep = "replay") -> None:
        _check_keep(keep)
        super().__init__(p, inplace)
        self.keep: Keep = keep

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.inplace, keep=self.keep)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, keep={self.keep!r}"


__all__ = ["Dropout", "Keep", "_operators", "dropout"]
