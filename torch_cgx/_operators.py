"""The operators ``torch.ops.torch_cgx`` on tensors without values: shapes, dtypes and checks, for
torch.compile, torch.export, FakeTensorMode and meta tensors. The engine (csrc/tensors) has their
schemas and kernels; importing this module loads it.

Sizes of payloads are symbolic functions of the number of values. What a kernel refuses is refused
here with the same text, as far as it does not depend on values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._dtypes import COMPUTED, FACTS

_ALLOWED = ", ".join(str(dtype).removeprefix("torch.") for dtype in COMPUTED)

Int = int | torch.SymInt
_size_of = functools.lru_cache(1024)(_C.payload_size)


def payload_bytes(codec: str, numel: Int, dtype: torch.dtype) -> Int:
    """PayloadSize::of in csrc/codec/codec.h, for numbers and for symbols."""
    bits, bucket, bucket_bytes, rest_bytes, start = _size_of(codec, dtype)
    whole = numel // bucket
    coded = whole * bucket if rest_bytes else numel
    buckets = whole if rest_bytes else (numel + bucket - 1) // bucket
    size = buckets * bucket_bytes + (coded * bits + 7) // 8 + (numel - coded) * rest_bytes
    if start:
        size = size + start * torch.sym_min(numel, 1)
    return size


def _fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return torch.library.register_fake(f"torch_cgx::{name}")


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        raise TypeError(f"{what} is nested, allowed: a tensor with one shape")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} has the layout {tensor.layout}, allowed: torch.strided")


def _check_payload(what: str, payload: torch.Tensor) -> None:
    _check_tensor(what, payload)
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise TypeError(
            f"{what} is {payload.dtype} with {payload.dim()} dimensions, allowed: uint8 with 1 "
            "dimension"
        )


def _check_dtype(what: str, dtype: torch.dtype) -> None:
    if dtype not in COMPUTED:
        raise TypeError(f"{what} is {dtype}, allowed: {_ALLOWED}")


def _check_device(what: str, tensor: torch.Tensor, other_what: str, other: torch.Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(
            f"{what} is on device {tensor.device}, allowed: {other.device}, where {other_what} is"
        )


def _check_bytes(what: str, payload: torch.Tensor, codec: str, numel: Int, of: torch.dtype) -> None:
    size = payload_bytes(codec, numel, of)
    torch._check_value(
        payload.numel() == size,
        lambda: f"{what} has {payload.numel()} bytes, allowed for {numel} values of {of}: {size}",
    )


def _check_values(tensor: torch.Tensor) -> None:
    _check_tensor("tensor", tensor)
    _check_dtype("tensor.dtype", tensor.dtype)


@_fake("encode")
def _encode(
    tensor: torch.Tensor, codec: str, step: Int = 0, number: Int = 0, rank: Int = 0, index: Int = 0
) -> torch.Tensor:
    _check_values(tensor)
    return tensor.new_empty(
        (payload_bytes(codec, tensor.numel(), tensor.dtype),), dtype=torch.uint8
    )


@_fake("encode.out")
def _encode_out(
    tensor: torch.Tensor,
    codec: str,
    step: Int = 0,
    number: Int = 0,
    rank: Int = 0,
    index: Int = 0,
    *,
    out: torch.Tensor,
) -> None:
    _check_values(tensor)
    _check_payload("out", out)
    _check_device("out", out, "tensor", tensor)
    _check_bytes("out", out, codec, tensor.numel(), tensor.dtype)


@_fake("decode")
def _decode(payload: torch.Tensor, codec: str, numel: Int, *, dtype: torch.dtype) -> torch.Tensor:
    _check_payload("payload", payload)
    torch._check_value(numel >= 0, lambda: f"numel is {numel}, allowed: 0 or more")
    _check_dtype("dtype", dtype)
    _check_bytes("payload", payload, codec, numel, dtype)
    return payload.new_empty((numel,), dtype=dtype)


def _check_decoded(
    payload: torch.Tensor, codec: str, dtype: torch.dtype | None, out: torch.Tensor
) -> None:
    _check_payload("payload", payload)
    _check_tensor("out", out)
    _check_device("out", out, "payload", payload)
    _check_dtype("out.dtype", out.dtype)
    _check_dtype("dtype", dtype or out.dtype)
    _check_bytes("payload", payload, codec, out.numel(), dtype or out.dtype)


@_fake("decode.out")
def _decode_out(
    payload: torch.Tensor, codec: str, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> None:
    _check_decoded(payload, codec, dtype, out)


@_fake("decode_add")
def _decode_add(
    payload: torch.Tensor, codec: str, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> None:
    _check_decoded(payload, codec, dtype, out)


def _check_out(tensor: torch.Tensor, out: torch.Tensor) -> None:
    _check_tensor("out", out)
    _check_device("out", out, "tensor", tensor)
    if out.dtype != tensor.dtype:
        raise TypeError(f"out is {out.dtype}, allowed: {tensor.dtype}, as tensor")
    torch._check_value(
        out.shape == tensor.shape,
        lambda: f"out has the shape {list(out.shape)}, allowed: {list(tensor.shape)}, as tensor",
    )


@_fake("roundtrip")
def _roundtrip(
    tensor: torch.Tensor, codec: str, step: Int = 0, number: Int = 0, rank: Int = 0, index: Int = 0
) -> torch.Tensor:
    _check_values(tensor)
    _size_of(codec, tensor.dtype)  # ValueError: no codec has this text
    return tensor.new_empty(tensor.shape)


@_fake("roundtrip.out")
def _roundtrip_out(
    tensor: torch.Tensor,
    codec: str,
    step: Int = 0,
    number: Int = 0,
    rank: Int = 0,
    index: Int = 0,
    *,
    out: torch.Tensor,
) -> None:
    _check_values(tensor)
    _check_out(tensor, out)
    _size_of(codec, tensor.dtype)


def _check_forms(forms: torch.Tensor, values: torch.Tensor) -> None:
    _check_payload("forms", forms)
    if forms.device.type != ("meta" if values.is_meta else "cpu"):
        raise ValueError(f"forms are on device {forms.device}, allowed: a contiguous tensor on cpu")


@_fake("bounded_look")
def _bounded_look(tensor: torch.Tensor, *, kind: int, bound: float, version: int) -> torch.Tensor:
    _check_tensor("tensor", tensor)
    maps = _C.BoundedMaps(FACTS[tensor.dtype]["bounded"], kind, bound, version)
    blocks = (tensor.numel() + _C.BOUNDED_BLOCK_VALUES - 1) // _C.BOUNDED_BLOCK_VALUES
    look_bytes = _C.BoundedSlab(maps, 0).look_bytes
    return tensor.new_empty((blocks * look_bytes,), dtype=torch.uint8)


@_fake("bounded_encode")
def _bounded_encode(
    tensor: torch.Tensor,
    forms: torch.Tensor,
    bytes: Int,
    *,
    kind: int,
    bound: float,
    version: int,
) -> torch.Tensor:
    _check_tensor("tensor", tensor)
    _check_forms(forms, tensor)
    return tensor.new_empty((bytes,), dtype=torch.uint8)


@_fake("bounded_decode")
def _bounded_decode(
    parts: torch.Tensor,
    forms: torch.Tensor,
    values: Int,
    *,
    kind: int,
    bound: float,
    version: int,
    out: torch.Tensor,
) -> torch.Tensor:
    _check_payload("parts", parts)
    _check_forms(forms, out)
    _check_tensor("out", out)
    _check_device("parts", parts, "out", out)
    blocks = (values + _C.BOUNDED_BLOCK_VALUES - 1) // _C.BOUNDED_BLOCK_VALUES
    return out.new_empty((blocks,), dtype=torch.int32)


@_fake("cuda_float_compress_encode")
def _cuda_float_compress_encode(
    tensor: torch.Tensor,
    step: float,
    max_error: float,
    keep_going: bool,
    *,
    words: torch.Tensor,
    misfits: torch.Tensor,
) -> None:
    _check_tensor("tensor", tensor)
    _check_device("words", words, "tensor", tensor)
    _check_device("misfits", misfits, "tensor", tensor)


@_fake("cuda_float_compress_decode")
def _cuda_float_compress_decode(words: torch.Tensor, step: float, *, out: torch.Tensor) -> None:
    _check_tensor("out", out)
    _check_device("words", words, "out", out)
