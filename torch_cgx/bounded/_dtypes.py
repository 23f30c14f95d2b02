"""The dtypes that payloads hold, and their numbers in the format (csrc/codec/bounded/element.h)."""

from __future__ import annotations

import torch

ELEMENTS: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.uint8: 5,
    torch.int8: 6,
    torch.int16: 7,
    torch.uint16: 8,
    torch.int32: 9,
    torch.uint32: 10,
    torch.int64: 11,
    torch.uint64: 12,
    torch.bool: 13,
}
DTYPES = {number: dtype for dtype, number in ELEMENTS.items()}
# Complex numbers are pairs of these.
PARTS: dict[torch.dtype, torch.dtype] = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
COMPLEX = {part: dtype for dtype, part in PARTS.items()}
MOST_DIMS = 64  # csrc/codec/bounded/container.h


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check(tensor: torch.Tensor) -> None:
    """ValueError: the tensor is of a kind that payloads do not hold."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_quantized:
        raise ValueError(
            f"a quantized tensor ({name(tensor.dtype)}) has no payload: compress "
            "tensor.int_repr(), or tensor.dequantize()"
        )
    if tensor.is_nested:
        raise ValueError("a nested tensor has no payload: compress tensor.unbind()'s tensors")
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"a {kind} tensor has no payload: compress its indices and values, or tensor.to_dense()"
        )
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ValueError(
            f"a {type(tensor).__name__} has no payload, as it is made of other tensors: compress "
            "those (of a DTensor to_local() or full_tensor())"
        )
    if tensor.is_meta:
        raise ValueError("a tensor on the device meta has no values to compress")
    if tensor.dtype not in ELEMENTS and tensor.dtype not in PARTS:
        allowed = ", ".join(name(dtype) for dtype in (*ELEMENTS, *PARTS))
        raise ValueError(f"dtype is {name(tensor.dtype)}, allowed: {allowed}")
    if tensor.dim() > MOST_DIMS:
        raise ValueError(f"the tensor has {tensor.dim()} dimensions, allowed: 0 to {MOST_DIMS}")


def parts_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in one piece, aligned; complex numbers as pairs. On the CPU, unless they are on a
    GPU.
    """
    plain = tensor.detach()
    if not plain.is_cuda:
        plain = plain.cpu()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype in PARTS:
        plain = torch.view_as_real(plain)
    plain = plain.contiguous()
    if plain.dtype == torch.bool:
        # Views of other bytes may hold what counts as true and is not 1.
        plain = plain.view(torch.uint8) != 0
    if plain.data_ptr() % plain.element_size() != 0:
        plain = plain.clone()
    return plain
