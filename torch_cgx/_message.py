"""Encoded values as one message of bytes, which says what it holds.

    header    192 bytes, little-endian: magic "cgxm", version (u8), dtype's number (u8), flags (u8;
              1: a CRC-32 follows), 0 (u8), number of values (u64), CRC-32 of the payload (u32), the
              codec's text (zeros fill the rest)
    payload   what the codec makes of the values

Both sides know the codec and the number of values, so they know the message's length before it
comes. The receiver compares the header with what it expects: a difference is a MismatchError.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import TypeAlias

import torch
import torch.distributed as dist

from torch_cgx import _C
from torch_cgx._dtypes import COMPUTED

HEADER = 192  # a multiple of what kernels want payloads aligned to
_FORMAT = struct.Struct("<4s4BQI")
_MAGIC, _VERSION, _CHECKED = b"cgxm", 1, 1

Key: TypeAlias = tuple[int, int, int]
"""Of random numbers: sequence number or step, tensor number, rank."""


@dataclasses.dataclass(frozen=True)
class Message:
    """What both sides know of a message. checked: the sender adds a checksum."""

    codec: _C.Codec
    numel: int
    dtype: torch.dtype
    checked: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return HEADER + self.codec.encoded_bytes(self.numel, self.dtype)

    def __str__(self) -> str:
        """As in "100 float32 values by maxmin bits=4 bucket_size=512 rounding=nearest"."""
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.numel} {name} values by {self.codec.describe()}"

    def pack(self, values: torch.Tensor, key: Key, out: torch.Tensor | None = None) -> torch.Tensor:
        """Encodes `numel` contiguous values of the dtype into `out`, or a new tensor, uint8 [size],
        on the same device.
        """
        if out is None:
            out = torch.empty(self.size, dtype=torch.uint8, device=values.device)
        sequence, number, rank = key
        payload = out[HEADER:]
        self.codec.encode(values.view(-1), sequence, rank, 0, payload, number)
        crc = _crc_of(payload) if self.checked else 0
        header = bytearray(HEADER)
        flags = _CHECKED if self.checked else 0
        number_of_type = COMPUTED[self.dtype]
        _FORMAT.pack_into(header, 0, _MAGIC, _VERSION, number_of_type, flags, 0, self.numel, crc)
        text = self.codec.describe().encode()[: HEADER - _FORMAT.size]
        header[_FORMAT.size : _FORMAT.size + len(text)] = text
        out[:HEADER].copy_(torch.frombuffer(header, dtype=torch.uint8))
        return out

    def unpack(self, message: torch.Tensor, values: torch.Tensor, sides: tuple[int, int]) -> None:
        """Decodes a message of `size` bytes into `numel` values of the dtype. On a GPU the caller
        waits for the header. sides: ranks of sender and receiver, for errors. MismatchError if the
        message holds something else, or is damaged; then nothing is written.
        """
        header = message[:HEADER].cpu().numpy().tobytes()
        magic, version, dtype, flags, _, numel, crc = _FORMAT.unpack_from(header)
        sender, receiver = sides
        if (magic, version) != (_MAGIC, _VERSION):
            raise _C.MismatchError(
                f"cgx: rank {sender} sent {len(message)} bytes without a header of torch_cgx; "
                f"rank {receiver} receives {self}: send with the same config"
            )
        text = header[_FORMAT.size :].rstrip(b"\0")
        mine = self.codec.describe().encode()[: HEADER - _FORMAT.size]
        if (dtype, numel, text) != (COMPUTED[self.dtype], self.numel, mine):
            names = {number: str(of).removeprefix("torch.") for of, number in COMPUTED.items()}
            raise _C.MismatchError(
                "cgx: ranks disagree on a message\n"
                f"  rank {sender} sent {numel} {names.get(dtype, f'dtype {dtype}')} values by "
                f"{text.decode(errors='replace')}\n  rank {receiver} receives {self}"
            )
        payload = message[HEADER:]
        if flags & _CHECKED and crc != _crc_of(payload):
            raise _C.MismatchError(
                f"cgx: a message from rank {sender} to rank {receiver} was altered on its way: its "
                "CRC-32 differs"
            )
        self.codec.decode(payload, values.view(-1), None, self.dtype)


def message_of(codec: _C.Codec, tensor: torch.Tensor, backend: _C.ProcessGroupCGX) -> Message:
    """A message of a tensor's values over a group, whose option `checksum` counts."""
    return Message(codec, tensor.numel(), tensor.dtype, bool(backend.settings()["checksum"]))


def device_of_bytes(tensor: torch.Tensor, backend: _C.ProcessGroupCGX) -> torch.device:
    """Where the bytes of a message between two ranks are: Gloo sends none of a GPU."""
    gloo = backend.settings()["cuda_backend"] == "GLOO" or not dist.is_nccl_available()
    return torch.device("cpu") if gloo and tensor.device.type == "cuda" else tensor.device


def _crc_of(payload: torch.Tensor) -> int:
    return zlib.crc32(payload.cpu().numpy().data)  # type: ignore[arg-type]
