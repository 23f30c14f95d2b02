"""The operator of products in formats: on tensors without values, and by operations of torch, which
GPUs take. The engine (csrc/codec/gemm) has its numerics, and its kernel for the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._operators import _check_device, _check_tensor, _fake

HOPPER = "hopper14"
_STEP, _RUN = 32, 128  # terms of Hopper's steps, and of the runs whose sums go to float32
_EXPONENT = 0x7F800000
_LEAST = 14 << 23  # 2^-113, as bits

_ops = torch.ops.torch_cgx


def check_operand(what: str, tensor: torch.Tensor) -> None:
    _check_tensor(what, tensor)
    if tensor.dtype != torch.float32:
        raise TypeError(f"{what} is {tensor.dtype}, allowed: torch.float32")
    if tensor.dim() < 2:
        word = "dimension" if tensor.dim() == 1 else "dimensions"
        raise ValueError(f"{what} has {tensor.dim()} {word}, allowed: 2 or more")


def _batch(a: torch.Tensor, b: torch.Tensor) -> torch.Size:
    try:
        return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"a has the batch dimensions {list(a.shape[:-2])} and b {list(b.shape[:-2])}, allowed: "
            "those that broadcast"
        ) from None


def _check_sums(accumulate: str, kahan: bool, block: int) -> None:
    """As the kernel."""
    if block < 0:
        raise ValueError(f"block is {block}, allowed: 0 or more")
    if accumulate == HOPPER:
        if kahan or block:
            raise ValueError(f"accumulate is {HOPPER}, allowed with it: kahan=False, block=0")
        return
    facts = _C.cast_facts(accumulate)  # ValueError: no cast has this text
    variant = facts["parameters"].get("variant")
    if not facts["elementwise"] or facts["stochastic"] or variant == "scale":
        raise ValueError(
            f"accumulate is {accumulate}, allowed: a format that has a zero, shares no scales and "
            f"draws no random numbers, or {HOPPER}"
        )


@_fake("emulate_product")
def _product(
    a: torch.Tensor, b: torch.Tensor, accumulate: str, kahan: bool = False, block: int = 0
) -> torch.Tensor:
    check_operand("a", a)
    check_operand("b", b)
    _check_device("b", b, "a", a)
    torch._check_value(
        a.shape[-1] == b.shape[-2],
        lambda: f"a has {a.shape[-1]} columns and b {b.shape[-2]} rows, allowed: as many",
    )
    batch = _batch(a, b)
    _check_sums(accumulate, kahan, block)
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


class _Sum:
    """A sum of numbers of the format, by Kahan's rule or not."""

    def __init__(self, zeros: torch.Tensor, accumulate: str, kahan: bool):
        self.value = zeros
        self.lost = zeros if kahan else None
        self.accumulate = accumulate

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _ops.cast(x, self.accumulate)
        return y

    def add(self, number: torch.Tensor) -> None:
        if self.lost is None:
            self.value = self.cast(self.value + number)
            return
        y = self.cast(number - self.lost)
        t = self.cast(self.value + y)
        self.lost = self.cast(self.cast(t - self.value) - y)
        self.value = t


def by_operations(
    a: torch.Tensor, b: torch.Tensor, accumulate: str, kahan: bool = False, block: int = 0
) -> torch.Tensor:
    """The kernel's result, bit for bit, by operations of torch on whole matrices: some for each
    term. Arguments as the operator's; on any device.
    """
    zeros = torch.zeros_like(_product(a, b, accumulate, kahan, block))
    if accumulate == HOPPER:
        return _hopper(a, b, zeros)
    whole = terms = _Sum(zeros, accumulate, kahan)
    if block:
        terms = _Sum(zeros, accumulate, kahan)
    depth = a.shape[-1]
    for k in range(depth):
        terms.add(terms.cast(_term(a, b, k)))
        if block and ((k + 1) % block == 0 or k + 1 == depth):
            whole.add(terms.value)
            terms = _Sum(zeros, accumulate, kahan)
    return whole.value


def _term(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    return a[..., :, k, None] * b[..., k, None, :]


def _hopper(a: torch.Tensor, b: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    total = zeros
    for first in range(0, a.shape[-1], _RUN):
        last = min(first + _RUN, a.shape[-1])
        partial = zeros
        for k in range(first, last, _STEP):
            partial = _hopper_step(a, b, range(k, min(k + _STEP, last)), partial)
        total = total + partial
    return torch.where(total.isnan(), torch.nan, total)


def _hopper_step(
    a: torch.Tensor, b: torch.Tensor, terms: range, accumulator: torch.Tensor
) -> torch.Tensor:
    """csrc/codec/gemm/hopper.h"""
    most = accumulator.abs()
    infinite = torch.where(accumulator.isfinite(), 0, accumulator)
    for k in terms:
        product = _term(a, b, k)
        most = torch.maximum(most, product.abs())  # NaN if there is one
        infinite = infinite + torch.where(product.isfinite(), 0, product)
    power = (most.view(torch.int32) & _EXPONENT).clamp(_LEAST, 254 << 23)
    scale = ((267 << 23) - power.to(torch.int64)).to(torch.int32).view(torch.float32)
    step = (power - (13 << 23)).view(torch.float32)
    total = (accumulator * scale).trunc()
    for k in terms:
        total = total + (_term(a, b, k) * scale).trunc()
    kept = (total.view(torch.int32) & ~0x3FF).view(torch.float32) * step
    return torch.where(most.isfinite(), kept, infinite)


def _batched(
    info: Any, in_dims: tuple[Any, ...], a: torch.Tensor, b: torch.Tensor, *rest: Any
) -> Any:
    """For torch.vmap, whose dimension becomes the first one of the batch."""
    given = list(zip((a, b), in_dims[:2], strict=True))
    most = max(x.dim() - (dim is not None) for x, dim in given)
    moved = []
    for x, dim in given:
        if dim is not None:
            x = x.movedim(dim, 0)
            x = x.reshape(x.shape[0], *[1] * (most - x.dim() + 1), *x.shape[1:])
        moved.append(x)
    return _ops.emulate_product(*moved, *rest), 0


torch.library.impl("torch_cgx::emulate_product", "cuda")(by_operations)
torch.library.register_vmap("torch_cgx::emulate_product", _batched)
