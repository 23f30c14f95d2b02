"""Gated linear units that keep their two inputs: act(gate) * up, fused with the next linear layer.

For act(gate) * up torch keeps gate, act(gate) and up (relu: act(gate) and up), and for the next
linear layer the product: 4 n values. The functions here compute act(gate) and the product again in
backward. They keep

    gate  if gate, up or the weight requires a gradient
    up    if gate or the weight requires a gradient

which is 2 n values at most. With h = act(gate) and dp the gradient of the product, backward needs
dgate = dp up act'(gate), dup = dp h and dweight = dy^T (h up). Codes of act'(gate) take the place
of gate only where h is not needed: where neither up nor the weight requires a gradient (frozen
weights). There `bits=` keeps up and ceil(bits n / 8) bytes instead of 2 n values, and reglu, whose
derivative is 0 or 1, keeps 1 bit without being asked. Elsewhere the codes would come on top of h
and up, which are 2 n values already, so `bits` changes nothing.

Forward is torch's own, bit for bit: F.silu(gate) * up, F.gelu(gate) * up, F.relu(gate) * up,
F.linear. The units are from Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_cgx.activations._once import once
from torch_cgx.activations.few_bit.function import check_input

if TYPE_CHECKING:
    from torch_cgx.activations.tables.table import Table

_aten = torch.ops.aten

# Each activation, and its gradient for a given gradient and input.
_KINDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": (F.silu, lambda g, x: _aten.silu_backward(g, x)),
    "gelu": (F.gelu, lambda g, x: _aten.gelu_backward(g, x, approximate="none")),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda g, x: _aten.gelu_backward(g, x, approximate="tanh"),
    ),
    "relu": (F.relu, lambda g, x: _aten.threshold_backward(g, x, 0)),
}
_UNITS = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu", "relu": "reglu"}


class _Gated(torch.autograd.Function):
    """up None: gate holds both halves along its last dimension. weight: of the linear layer, or
    None. dtype: of the linear layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        gate: Tensor,
        up: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype | None,
    ) -> Tensor:
        _, needs_gate, needs_up, needs_weight, _, _ = ctx.needs_input_grad
        keep_up = needs_gate or needs_weight
        ctx.save_for_backward(
            gate if keep_up or needs_up else None, up if keep_up else None, weight
        )
        ctx.kind, ctx.dtype, ctx.joined = kind, dtype, up is None
        ctx.up_dtype = gate.dtype if up is None else up.dtype
        product = _product(kind, gate, up)
        if weight is None:
            return product
        with torch.autocast(gate.device.type, enabled=False):
            return F.linear(product.to(dtype), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gate, up, weight = kept = ctx.saved_tensors
        dy = gradients[0]
        _, needs_gate, needs_up, needs_weight, needs_bias, _ = ctx.needs_input_grad
        dgate = dup = dweight = dbias = None
        with torch.no_grad():
            dproduct = dy
            if _shares_steps(ctx, dy, gate, up, weight):
                dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if needs_bias else None
                found = (*_with_linear(ctx.kind, dy, gate, up, weight), dbias)
                return None, *once(_UNITS[ctx.kind], (dy, *kept), found), None
            if weight is not None:
                rows = dy.reshape(-1, dy.shape[-1])
                if needs_weight:
                    product = _product(ctx.kind, gate, up).to(ctx.dtype)
                    dweight = rows.t() @ product.reshape(-1, product.shape[-1])
                    del product
                if needs_bias:
                    dbias = rows.sum(0)
                dproduct = dy @ weight if needs_gate or needs_up else dy
            if ctx.joined and needs_gate:
                dgate = torch.cat(_halves(ctx.kind, dproduct, *gate.chunk(2, -1)), -1)
            elif needs_gate:
                dgate = _of_gate(ctx.kind, dproduct, gate, up)
            if needs_up:
                dup = _of_up(ctx.kind, dproduct, gate, ctx.up_dtype)
        depends_on = (dy, *kept)
        return None, *once(_UNITS[ctx.kind], depends_on, (dgate, dup, dweight, dbias)), None


def _shares_steps(
    ctx: Any, dy: Tensor, gate: Tensor | None, up: Tensor | None, weight: Tensor | None
) -> bool:
    """The usual case: all of one type, and all gradients wanted."""
    if gate is None or up is None or weight is None or not all(ctx.needs_input_grad[1:4]):
        return False
    return len({dy.dtype, gate.dtype, up.dtype, weight.dtype, ctx.dtype}) == 1


def _with_linear(
    kind: str, dy: Tensor, gate: Tensor, up: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dgate, dup and dweight, with the activation computed once and memory used again."""
    rows = dy.reshape(-1, dy.shape[-1])
    dproduct = dy @ weight
    h = _KINDS[kind][0](gate)
    dup = dproduct * h
    product = h.mul_(up)
    dweight = rows.t() @ product.reshape(-1, product.shape[-1])
    del h, product
    dgate = _KINDS[kind][1](dproduct.mul_(up), gate)
    return dgate, dup, dweight


def _product(kind: str, gate: Tensor, up: Tensor | None) -> Tensor:
    if up is None:
        gate, up = gate.chunk(2, -1)
    return _KINDS[kind][0](gate) * up


def _of_gate(kind: str, dproduct: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    dh = dproduct.to(torch.promote_types(gate.dtype, up.dtype)) * up
    return _KINDS[kind][1](dh.to(gate.dtype), gate)


def _of_up(kind: str, dproduct: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
    h = _KINDS[kind][0](gate)
    return (dproduct.to(torch.promote_types(gate.dtype, dtype)) * h).to(dtype)


def _halves(kind: str, dproduct: Tensor, gate: Tensor, up: Tensor) -> list[Tensor]:
    return [_of_gate(kind, dproduct, gate, up), _of_up(kind, dproduct, gate, up.dtype)]


def _requires(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _linear_dtype(product: torch.dtype, weight: Tensor) -> torch.dtype:
    """What autocast makes of the inputs of the linear layer."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and torch.float64 not in (product, weight.dtype):
        return torch.get_autocast_dtype(device)
    return product


def gated(
    kind: str,
    gate: Tensor,
    up: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    bits: int | None = None,
    table: Table | None = None,
) -> Tensor:
    """The unit of an activation "silu", "gelu", "gelu_tanh" or "relu", as swiglu describes it.
    up None: gate holds both halves along its last dimension."""
    if isinstance(bits, bool) or bits not in (None, 1, 2, 3, 4):
        raise ValueError(f"bits={bits!r}; allowed: None, integers from 1 to 4")
    if kind == "relu" and (bits not in (None, 1) or table is not None):
        raise ValueError(f"bits={bits!r}, table={table!r}; reglu allows: bits=1, without a table")
    for one in (gate,) if up is None else (gate, up):
        check_input(_UNITS[kind], one)
    if up is not None and gate.shape != up.shape:
        raise ValueError(
            f"up has the shape {tuple(up.shape)}; allowed: {tuple(gate.shape)}, as gate"
        )
    if up is None and gate.shape[-1] % 2:
        raise ValueError(f"the last dimension has {gate.shape[-1]} values; allowed: an even number")
    if bias is not None and weight is None:
        raise ValueError("bias without weight; allowed: the weight and bias of one linear layer")
    # torch.func's transforms are served by torch's own functions.
    plain = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    if plain or not torch.is_grad_enabled() or not _requires(gate, up, weight, bias):
        product = _product(kind, gate, up)
        return product if weight is None else F.linear(product, weight, bias)
    wants_codes = bits is not None or table is not None or kind == "relu"
    if wants_codes and up is not None and not _requires(up, weight):
        return _with_codes(kind, gate, up, weight, bias, bits, table)
    dtype = None
    if weight is not None:
        wide = gate.dtype if up is None else torch.promote_types(gate.dtype, up.dtype)
        dtype = _linear_dtype(wide, weight)
        if torch.is_autocast_enabled(weight.device.type):
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    return _Gated.apply(kind, gate, up, weight, bias, dtype)


def _with_codes(
    kind: str,
    gate: Tensor,
    up: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    bits: int | None,
    table: Table | None,
) -> Tensor:
    """Keeps up and the codes: the multiplication and the linear layer are torch's own."""
    from torch_cgx.activations import functional

    few: dict[str, Any] = {"table": table} if table is not None else {"bits": bits}
    if kind == "relu":
        h = functional.relu(gate)
    elif kind == "silu":
        h = functional.silu(gate, **few)
    else:
        h = functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none", **few)
    product = h * up
    return product if weight is None else F.linear(product, weight, bias)


def gelu_kind(approximate: str) -> str:
    """The kind of geglu. ValueError: no such approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate={approximate!r}; allowed: "none", "tanh"')
    return "gelu" if approximate == "none" else "gelu_tanh"


def swiglu(
    gate: Tensor,
    up: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    bits: int | None = None,
    table: Table | None = None,
) -> Tensor:
    """F.silu(gate) * up, or F.linear(F.silu(gate) * up, weight, bias); keeps gate and up only.

    gate, up: of equal shapes, floating point. weight (out, n), bias (out): of the linear layer that
    follows; with them the product is not kept either. bits (1 to 4), table: of the derivative, used
    where they keep less (see the text of this module). Second derivatives are a RuntimeError.
    """
    return gated("silu", gate, up, weight, bias, bits, table)


def geglu(
    gate: Tensor,
    up: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    bits: int | None = None,
    table: Table | None = None,
) -> Tensor:
    """swiglu with F.gelu(gate, approximate=approximate)."""
    return gated(gelu_kind(approximate), gate, up, weight, bias, bits, table)


def reglu(
    gate: Tensor,
    up: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    bits: int | None = None,
    table: Table | None = None,
) -> Tensor:
    """swiglu with F.relu(gate). bits: 1, which is exact."""
    return gated("relu", gate, up, weight, bias, bits, table)
