"""The dtypes that payloads hold, and their numbers in the format (csrc/codec/bounded/element.h)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torch_cgx._dtypes import FACTS
from torch_cgx._storage import check_storage

ELEMENTS: dict[torch.dtype, int] = {
    dtype: row["bounded"]
    for dtype, row in sorted(FACTS.items(), key=lambda fact: fact[1]["bounded"])
    if row["bounded"]
}
DTYPES = {number: dtype for dtype, number in ELEMENTS.items()}
# A complex number is stored as two numbers of this type, the real part first.
REAL_TYPES: dict[torch.dtype, torch.dtype] = {
    dtype: getattr(torch, row["real"]) for dtype, row in FACTS.items() if row["real"] != row["name"]
}
COMPLEX = {real: dtype for dtype, real in REAL_TYPES.items()}
# Types of one byte that have no number in the format: their bytes become a lossless payload of
# uint8.
BYTES: dict[str, torch.dtype] = {
    row["name"]: dtype for dtype, row in FACTS.items() if row["floating"] and row["bytes"] == 1
}
EIGHTHS = frozenset(BYTES.values())
MOST_DIMS = 64  # csrc/codec/bounded/container.h


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_memory(tensor: torch.Tensor, what: str) -> None:
    """ValueError: the tensor has no strided memory of plain numbers that can be read and written.
    TypeError: not a tensor. what: goes into the text, such as "cannot be out". Tensors on the
    device meta are accepted.
    """
    kind = type(tensor).__name__
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a {kind} {what}, allowed: a torch.Tensor")
    if tensor.is_quantized:
        raise ValueError(
            f"a quantized tensor ({name(tensor.dtype)}) {what}: take its int_repr(), or "
            "dequantize()"
        )
    if tensor.is_nested:
        raise ValueError(f"a nested tensor {what}: take the tensors of its unbind()")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"a {layout} tensor {what}: take its indices and values, or its to_dense()"
        )
    if isinstance(tensor, FakeTensor):
        raise ValueError(f"a FakeTensor {what}, as it has no values")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ValueError(
            f"a {kind} {what}, as it is made of other tensors: take these (of a DTensor to_local() "
            "or full_tensor())"
        )
    check_storage(tensor, what)
    if not (tensor.is_meta or _has_memory(tensor)):
        raise ValueError(
            f"a tensor without memory (of torch.vmap, torch.func or a trace) {what}: call this "
            "outside of these transforms"
        )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def check(tensor: torch.Tensor, also: Iterable[str] = ()) -> None:
    """TypeError, ValueError: a payload cannot hold the tensor. also: names of dtypes that the
    caller accepts as well, for the text of the error.
    """
    check_memory(tensor, "has no payload")
    if tensor.is_meta:
        raise ValueError("a tensor on the device meta has no values to compress")
    if tensor.dtype not in ELEMENTS and tensor.dtype not in REAL_TYPES:
        allowed = ", ".join((*(name(dtype) for dtype in (*ELEMENTS, *REAL_TYPES)), *also))
        way_out = (
            "; compress its bytes, tensor.view(torch.uint8)" if tensor.dtype in EIGHTHS else ""
        )
        raise ValueError(f"dtype is {name(tensor.dtype)}, allowed: {allowed}{way_out}")
    if tensor.dim() > MOST_DIMS:
        raise ValueError(f"the tensor has {tensor.dim()} dimensions, allowed: 0 to {MOST_DIMS}")


def reals_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor, contiguous and aligned: complex numbers as pairs of real ones. On the
    tensor's device if that is a GPU, else on the CPU.
    """
    plain = tensor.detach()
    check_memory(plain, "has no payload")  # detach() may have made a FakeTensor
    if not plain.is_cuda:
        plain = plain.cpu()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype in REAL_TYPES:
        plain = torch.view_as_real(plain)
    plain = plain.contiguous()
    if plain.dtype == torch.bool:
        # A view of other bytes may hold true values other than 1.
        plain = plain.view(torch.uint8) != 0
    if plain.data_ptr() % plain.element_size() != 0:
        plain = plain.clone()
    return plain
