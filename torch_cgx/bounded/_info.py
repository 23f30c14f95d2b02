"""bounded.info."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded._bound import NAMES, POINTWISE
from torch_cgx.bounded._payload import Payload, PayloadError, open_payload


@dataclasses.dataclass(frozen=True, slots=True)
class BlockInfo:
    """A block of up to 65536 values, or of all of a tensor.

    map: how values become integers, the words: "grid" (equal steps), "log grid" (steps that grow
    with the values), "lattice" (groups of float16 or bfloat16 values), "order" (lossless),
    "palette" (few values) and "multiples" (of a unit, both lossless), "constant" or "raw"; "field":
    values are predicted in rows and planes; "mostly": one value and a few others; "bytes": the
    entropy coder codes the values' bytes; "frame": the same of all values of the tensor, or of
    their words; "unknown" if the block was altered. predictor: "none", "mean", "previous", "line"
    or "curve"; None if the map has none, or the block was altered.
    low_bits: bits of each word that are not in its symbol. low_bits_coded: whether the entropy
    coder codes them; otherwise they are stored as they are. packed: whether four symbols share a
    byte. windowed: whether symbols are coded by the size of those before them. outliers: words that
    fit no symbol. specials: values that are stored unchanged. checksum_ok: False if the block was
    altered; values and bytes are right even then.
    """

    values: int
    bytes: int
    map: str
    predictor: str | None
    low_bits: int
    low_bits_coded: bool
    packed: bool
    windowed: bool
    outliers: int
    specials: int
    checksum_ok: bool


@dataclasses.dataclass(frozen=True)
class Info:
    """A description of a payload.

    bound: "lossless", "max_error", "relative" or "pointwise". asked: the number given to
    `compress`. max_error: the bound that holds for |x - y|; None for pointwise. ratio: bytes of the
    tensor divided by bytes of the payload. checksum_ok: whether the checksums of all blocks are
    right (a wrong checksum of the header is an error).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: str
    asked: float
    max_error: float | None
    bytes: int
    ratio: float
    blocks: tuple[BlockInfo, ...]

    @property
    def checksum_ok(self) -> bool:
        return all(block.checksum_ok for block in self.blocks)

    @property
    def predictors(self) -> dict[str, int]:
        """Number of blocks by predictor."""
        found: dict[str, int] = {}
        for block in self.blocks:
            key = block.predictor or block.map
            found[key] = found.get(key, 0) + 1
        return found


@safe_after_fork
def info(payload: torch.Tensor | bytes | bytearray | memoryview) -> Info:
    """Describes a payload. The blocks are checked, but not decoded.

    PayloadError (a ValueError): the payload's header does not follow the format, or the payload was
    cut.
    """
    opened = open_payload(payload)
    maps = opened.maps()
    decoder = _C.BoundedDecoder(maps)
    # A block of zeros takes 4 bytes of the payload, so a short payload may have very many: equal
    # blocks share one BlockInfo.
    known: dict[Any, BlockInfo] = {}
    blocks: tuple[BlockInfo, ...]
    if opened.whole is not None:
        try:
            opened.whole.content_bytes(maps, opened.reals)
        except ValueError as error:
            raise PayloadError(str(error)) from None
        length = len(opened.block(0))
        blocks = (
            BlockInfo(opened.reals, length, "frame", None, 0, False, False, False, 0, 0, True),
        )
    else:
        blocks = tuple(_block(decoder, opened, k, known) for k in range(len(opened.places)))
    size = len(opened.data)
    whole = math.prod(opened.shape) * opened.dtype.itemsize
    bound = opened.bound
    return Info(
        shape=opened.shape,
        dtype=opened.dtype,
        bound=NAMES[bound.kind],
        asked=bound.asked,
        max_error=None if bound.kind == POINTWISE else bound.value,
        bytes=size,
        ratio=whole / size,
        blocks=blocks,
    )


def _block(decoder: Any, opened: Payload, number: int, known: dict[Any, BlockInfo]) -> BlockInfo:
    length = len(opened.block(number))
    values = opened.values_of(number)
    if length == 0 and values in known:
        return known[values]
    data = opened.block(number)
    try:
        block = decoder.open(data, values)
    except ValueError:
        found = BlockInfo(values, length, "unknown", None, 0, False, False, False, 0, 0, False)
    else:
        found = BlockInfo(
            values=values,
            bytes=length,
            map=block.map,
            predictor=block.predictor,
            low_bits=block.low_bits,
            low_bits_coded=block.low_bits_coded,
            packed=block.packed,
            windowed=block.windowed,
            outliers=block.outliers,
            specials=block.specials,
            checksum_ok=True,
        )
    found = known.setdefault(found, found)
    if length == 0:
        known[values] = found
    return found
