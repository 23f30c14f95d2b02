"""The methods of codecs as torch.compile traces them: calls of ``torch.ops.torch_cgx``. Outside of
torch.compile the engine calls the same operators, faster than Python can.
"""

from __future__ import annotations

import torch

from torch_cgx import _operators

_ops = torch.ops.torch_cgx
_Key = tuple[int, int, int, int]


def _key(key: _Key) -> dict[str, int]:
    step, number, rank, index = key
    # Operators take signed integers of 64 bits; the kernels take the bits.
    step = step - 2**64 if step >= 2**63 else step
    return {"step": step, "number": number, "rank": rank, "index": index}


def encode(tensor: torch.Tensor, codec: str, key: _Key, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return _ops.encode(tensor, codec, **_key(key))
    _ops.encode.out(tensor, codec, **_key(key), out=out)
    return out


def decode(
    payload: torch.Tensor,
    codec: str,
    out: torch.Tensor | None,
    numel: int | None,
    dtype: torch.dtype | None,
    add: bool,
) -> torch.Tensor:
    if out is not None:
        if numel is not None and numel != out.numel():
            raise ValueError(f"numel is {numel}, allowed with this out: {out.numel()}")
        (_ops.decode_add if add else _ops.decode.out)(payload, codec, dtype=dtype, out=out)
        return out
    if add:
        raise ValueError("add=True needs out, to which the values are added")
    if numel is None:
        raise ValueError("numel is None, allowed under torch.compile: the number of values, or out")
    return _ops.decode(payload, codec, numel, dtype=dtype or torch.float32)


def roundtrip(
    tensor: torch.Tensor, codec: str, key: _Key, out: torch.Tensor | None
) -> torch.Tensor:
    if out is None:
        return _ops.roundtrip(tensor, codec, **_key(key))
    _ops.roundtrip.out(tensor, codec, **_key(key), out=out)
    return out


__all__ = ["_operators", "decode", "encode", "roundtrip"]
