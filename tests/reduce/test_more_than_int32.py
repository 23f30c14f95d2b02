"""Tensors of more than 2^31 values: offsets and counts beyond 32 bits, in plans, in the codec, in a
whole reduce-scatter. All ranks read one input that is nowhere but in a few pages.
"""

from __future__ import annotations

import mmap

import pytest
import torch

from tests import _machinery
from torch_cgx import _C, codecs

RANKS = 4
SHARD = 2**29 + 8  # values; in all, 2^31 + 32


def zeros(n: int) -> torch.Tensor:
    """fp16 zeros whose pages get memory with the first write; torch.zeros writes them all."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # pages of a shared mapping come when read
    return torch.frombuffer(mmap.mmap(-1, 2 * n, flags=private), dtype=torch.float16)


def test_plans_cover_every_value_once() -> None:
    spec = _C.Codec(bits=4, bucket_size=512)
    layers = [(2**32 + 12_345, spec), (2**31 + 7, None), (77, spec)]
    total = sum(n for n, _ in layers)
    for algorithm in ("oneshot", "sra", "ring"):
        for hosts in ("abc", "aabb"):
            told = {"hosts": list(hosts), "algorithm": algorithm, "segment_bytes": 64 << 20}
            pieces = sorted(
                (offset, count)
                for shards in _machinery.describe_plan(layers, 0, slot_bytes=64 << 20, **told)
                for chunks in shards
                for chunk in chunks
                for offset, count, *_ in chunk
                if count
            )
            at = 0
            for offset, count in pieces:
                assert offset == at
                at += count
            assert at == total


@pytest.mark.slow
def test_a_codec_finds_its_place_in_a_long_run() -> None:
    codec = codecs.MaxMin(bits=1, bucket_size=2**20)
    assert codec.encoded_bytes(2**33) == 2**33 // 8 + 2**13 * 8
    n = 2**31 + 64
    x = zeros(n)
    x[-1], x[2**31 + 5] = 3.0, 1.0
    payload = codec.encode(x)
    last = codec.encode(x[2**31 :], index=2**31)
    assert torch.equal(payload[-8:], last[-8:])
    assert payload[:8].count_nonzero() == 0


@pytest.mark.slow
def test_reduce_scatter() -> None:
    x = zeros(RANKS * SHARD)
    mine = slice((RANKS - 1) * SHARD, None)
    x[mine][-5:] = torch.arange(5.0).half()
    x[mine][:3] = 2.0
    # The shards of the others are nobody's concern: they may share memory.
    rest, last = torch.empty(SHARD, dtype=torch.float16), torch.full((SHARD,), 7.0).half()
    outputs = [rest] * (RANKS - 1) + [last]
    _machinery.simulate_shards(
        "reduce_scatter",
        [x.data_ptr()] * RANKS,
        [y.data_ptr() for y in outputs],
        1,
        SHARD,
        _C.Codec(bits=8, bucket_size=512),
        False,
        ranks=RANKS,
    )
    # Between the first bucket and the last one all values are zero, and stay so.
    assert last[512:-8].view(torch.int64).count_nonzero() == 0
    for part in (slice(512), slice(-8, None)):
        error = (last[part].float() - RANKS * x[mine][part].float()).abs().max()
        assert error <= RANKS * 4 / 255 / 2
