"""Plans: every value travels once, borders fall on bucket borders, messages fit, sizes follow the
formula.
"""

from __future__ import annotations

import itertools

import pytest

from tests import _machinery
from torch_cgx import _C

CAPACITY = 1 << 20


def payload_bytes(n: int, bits: int, bucket: int) -> int:
    return -(-n // bucket) * 8 + -(-n * bits // 8)


def check(layers, size, algorithm, capacity=CAPACITY, dtype=0):
    starts = list(itertools.accumulate([numel for numel, _ in layers], initial=0))
    rounds = [
        shards[0]
        for shards in _machinery.describe_plan(
            layers, dtype, ranks=size, algorithm=algorithm, slot_bytes=capacity
        )
    ]
    position = 0
    for chunks in rounds:
        assert len(chunks) == (1 if algorithm == "oneshot" else size)
        used = 0
        for pieces in chunks:
            end = 0
            for offset, count, payload, nbytes, exact in pieces:
                assert offset == position and count > 0
                layer = max(
                    i for i, start in enumerate(starts[:-1]) if start <= offset and layers[i][0] > 0
                )
                numel, spec = layers[layer]
                assert offset + count <= starts[layer] + numel
                granule = 16 if spec is None else spec.bucket_size
                assert (offset - starts[layer]) % granule == 0
                assert exact == (spec is None)
                expected = (
                    count * (4 if dtype == 0 else 2)
                    if spec is None
                    else payload_bytes(count, spec.bits, spec.bucket_size)
                )
                assert nbytes == expected
                assert payload % 16 == 0 and payload >= end and payload - end < 16
                end = payload + nbytes
                position += count
            used += 56 + end if pieces else 0
        assert used <= capacity
    assert position == starts[-1]
    return rounds


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
def test_every_size_is_covered_once(size, algorithm):
    for n in [*range(0, 401, 7), 511, 512, 513, 1024, 4095, 65537]:
        for bits, bucket in [(4, 512), (1, 1), (3, 33), (8, 100), (5, 7)]:
            check([(n, _C.Codec(bits=bits, bucket_size=bucket))], size, algorithm)
        check([(n, None)], size, algorithm)


@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
def test_layers_keep_their_own_buckets(algorithm):
    spec = _C.Codec(bits=4, bucket_size=64)
    layers = [
        (1000, spec),
        (10, None),
        (0, None),
        (7, spec),
        (50_000, _C.Codec(bits=2, bucket_size=512)),
        (33, None),
    ]
    for size in (2, 3, 8):
        check(layers, size, algorithm)
        check(layers, size, algorithm, capacity=16384, dtype=1)


@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
def test_small_messages_make_many_rounds(algorithm):
    rounds = check(
        [(300_000, _C.Codec(bits=4, bucket_size=64)), (10_000, None)], 3, algorithm, capacity=8192
    )
    assert len(rounds) > 20


def test_chunks_are_balanced():
    n = 1 << 20
    for size in (2, 3, 7, 8):
        (chunks,) = check([(n, _C.Codec(bits=4, bucket_size=512))], size, "sra", capacity=4 << 20)
        counts = [sum(piece[1] for piece in pieces) for pieces in chunks]
        assert max(counts) - min(counts) <= 2 * 512


def test_a_bucket_that_does_not_fit_is_alone_or_refused_by_name():
    layers = [(1000, None), (2_000_000, _C.Codec(bits=8, bucket_size=1_000_000)), (1000, None)]
    rounds = _machinery.describe_plan(layers, 0, ranks=2, slot_bytes=65536)
    assert [[piece[1] for piece in chunks[0]] for (chunks,) in rounds] == [
        [1000], [1_000_000], [1_000_000], [1000],
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"one bucket of 1000000 values.*CGX_SHM_SEGMENT_KB"):
        _machinery.describe_plan(layers, 0, ranks=2, slot_bytes=65536, inner_limit=65536)


def test_one_shot_is_chosen_for_two_ranks_and_for_small_messages():
    spec = _C.Codec(bits=4, bucket_size=512)

    def algorithm(n, size):
        (chunks,) = _machinery.describe_plan([(n, spec)], 0, ranks=size, slot_bytes=CAPACITY)[0]
        return "oneshot" if len(chunks) == 1 else "sra"

    assert algorithm(10_000_000, 2) == "oneshot"
    assert algorithm(1000, 8) == "oneshot"
    assert algorithm(10_000_000, 3) == "sra"
