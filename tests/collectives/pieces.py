"""What compressed moves of values have to give, from the codec's operators alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import codecs

SIZES = [*range(0, 40, 3), 63, 64, 65, 127, 128, 129, 255, 256, 257, 400, 4097]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODECS = (
    codecs.MaxMin(bits=4, bucket_size=64),
    codecs.MaxMin(bits=8, bucket_size=32, skip_incomplete_buckets=True),
    codecs.MaxMin(bits=1, bucket_size=16),
    codecs.Rotated(bits=2, block_size=256),
    codecs.Float(exponent=4, mantissa=3),
)


def values(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of a rank, the same in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def decoded(codec: codecs.Codec | None, piece: torch.Tensor) -> torch.Tensor:
    """The piece as a receiver gets it, by a payload of its own. The codec draws no random number,
    or only signs, which the payload holds.
    """
    if codec is None:
        return piece.clone()
    payload = codec.encode(piece)
    return codec.decode(payload, numel=piece.numel(), dtype=piece.dtype).view(piece.shape)


def rows_of(ranks: int, unequal: bool) -> list[list[int]]:
    """[r][p]: rows that rank r sends to rank p; unequal ones have zeros among them."""
    if not unequal:
        return [[2] * ranks for _ in range(ranks)]
    return [[(3 * r + 5 * p + r * p) % 4 for p in range(ranks)] for r in range(ranks)]


def exchanged(
    codec: codecs.Codec | None,
    inputs: Sequence[torch.Tensor],
    rows: list[list[int]],
    rank: int,
) -> torch.Tensor:
    """What an all-to-all gives a rank."""
    pieces = [one.split(sizes)[rank] for one, sizes in zip(inputs, rows, strict=True)]
    return torch.cat(
        [one.clone() if r == rank else decoded(codec, one) for r, one in enumerate(pieces)]
    )
