"""Buckets of any size: whatever the group's messages are, every plan can be made and every result
is what the model says, to the bit; only a bucket that is alone makes an exchange longer than asked.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from tests import _machinery
from tests.reduce import model
from tests.reduce.simulation import check, gaussian, run, run_shards
from torch_cgx import _C

LAYOUTS = ["aa", "aaaa", "abc", "aab", "abab", "aaabbc", "abbb"]
HEADER = 56  # bytes before a payload
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def around(bucket: int) -> st.SearchStrategy[int]:
    """Sizes below a bucket, about one or several, and small ones."""
    near = st.tuples(st.integers(0, 3), st.integers(-2, 2))
    return st.one_of(
        st.integers(0, 40),
        st.integers(0, bucket),
        near.map(lambda pair: max(0, pair[0] * bucket + pair[1])),
    ).map(lambda n: min(n, 40_000))


@st.composite
def groups(draw: st.DrawFn) -> dict[str, object]:
    """Messages from far below a bucket to far above, as a group may have them."""
    slot = draw(st.sampled_from([64, 1000, 16 << 10, 17 << 10, 1 << 20]))
    return {
        "hosts": list(draw(st.sampled_from(LAYOUTS))),
        "slot_bytes": slot,
        "inner_bytes": draw(st.sampled_from([slot, max(slot, 1 << 20)])),
        "segment_bytes": draw(st.sampled_from([64, 1024, 512 << 10])),
        "cross_bytes": draw(st.sampled_from([64, 1 << 16, 64 << 20])),
        "leader_only": draw(st.booleans()),
        "inner_exact": draw(st.booleans()),
    }


@st.composite
def layers(draw: st.DrawFn) -> list[tuple[int, _C.Codec | None]]:
    found: list[tuple[int, _C.Codec | None]] = []
    for _ in range(draw(st.integers(1, 4))):
        bucket = draw(st.sampled_from([1, 7, 64, 512, 4000, 30_000, (1 << 31) - 1]))
        spec = _C.Codec(
            bits=draw(st.integers(1, 8)),
            bucket_size=bucket,
            skip_incomplete_buckets=draw(st.booleans()),
        )
        found.append((draw(around(min(bucket, 30_000))), draw(st.sampled_from([spec, spec, None]))))
    return found


def check_lengths(given_layers, algorithm: str, dtype: int, group) -> None:
    """An exchange among the ranks of a team has its size, unless it holds a single bucket, or less
    than its headers do.
    """
    hosts = group["hosts"]
    one_host, each = len(set(hosts)) == 1, len(set(hosts)) == len(hosts)
    allowed = group["slot_bytes"] if one_host else group["cross_bytes"]
    starts = [sum(n for n, _ in given_layers[:i]) for i in range(len(given_layers) + 1)]
    for shards in _machinery.describe_plan(
        given_layers, dtype, ranks=len(hosts), algorithm=algorithm, **group
    ):
        for chunks in shards if one_host or each else []:
            used = sum(HEADER + p[-1][2] + p[-1][3] for p in chunks if p)
            if used <= allowed:
                continue
            pieces = [piece for chunk in chunks for piece in chunk]
            buckets = 0
            for offset, count, *_ in pieces:
                layer = max(i for i, s in enumerate(starts[:-1]) if s <= offset)
                spec = given_layers[layer][1]
                granule = 16 if spec is None else spec.bucket_size
                buckets += -(-count // granule)
            payload = sum(piece[3] for piece in pieces)
            assert buckets == 1 or payload <= len(chunks) * (HEADER + 32), (used, allowed, pieces)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    groups(),
    layers(),
    st.sampled_from(["oneshot", "sra", "ring"]),
    st.sampled_from(DTYPES),
    st.booleans(),
)
def test_all_reduce(group, given_layers, algorithm, dtype, average):
    n = sum(numel for numel, _ in given_layers)
    inputs = gaussian(len(group["hosts"]), n, dtype)
    check(inputs, given_layers, algorithm, average, **group)
    check_lengths(given_layers, algorithm, model.DTYPES[dtype], group)
    run(inputs, given_layers, "auto", **group)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(groups(), st.data(), st.sampled_from(DTYPES))
def test_shards(group, data, dtype):
    bucket = data.draw(st.sampled_from([1, 7, 512, 4000, 30_000]))
    shard = data.draw(around(bucket)) // 3
    spec = _C.Codec(bits=data.draw(st.integers(1, 8)), bucket_size=bucket)
    size = len(group["hosts"])
    inputs = gaussian(size, shard * size, dtype)
    outputs, _ = run_shards("reduce_scatter", inputs, spec, **group)
    expected = model.reduce_scatter(inputs, spec, **group)
    for output, wanted in zip(outputs, expected, strict=True):
        assert model.same_bits(output, wanted)
    inputs = [x[:shard] for x in inputs]
    gathered, _ = run_shards("all_gather", inputs, spec, **group)
    flat = [model.to_float32(x) for x in inputs]
    coded = [model.through_codec(x, spec, dtype, source=x) for x in flat]
    wanted = torch.cat([torch.from_numpy(x).to(dtype) for x in coded])
    assert all(model.same_bits(x, wanted) for x in gathered)


def test_many_ranks_with_little_memory_make_no_rounds_of_a_few_values():
    """Headers to 200 ranks fill 16 KiB."""
    n = 100_000
    for hosts in (["a"] * 200, ["a"] * 100 + ["b"] * 100):
        group = {"hosts": hosts, "slot_bytes": 16 << 10, "segment_bytes": 1024}
        for layer in ((n, None), (n, _C.Codec(bits=4, bucket_size=64))):
            rounds = _machinery.describe_plan([layer], 0, ranks=200, algorithm="sra", **group)
            assert len(rounds) < 100


@pytest.mark.parametrize(
    "hosts, n, needed",
    [
        ("aaa", 100_000, "100008 bytes encoded"),
        ("aaa", 70_000, "70008 bytes encoded"),
        ("aab", 50_000, "200000 bytes exact"),
    ],
)
def test_a_communicator_that_cannot_make_room_refuses_a_bucket_by_name(hosts, n, needed):
    group = {"hosts": list(hosts), "slot_bytes": 1 << 16, "inner_limit": 1 << 16}
    spec = _C.Codec(bits=8, bucket_size=100_000)
    refused = (
        rf"one bucket of 100000 values .* {needed}, does not fit into a message of 65\d\d\d bytes"
    )
    with pytest.raises(ValueError, match=refused + ".*CGX_SHM_SEGMENT_KB"):
        run(gaussian(3, n), [(n, spec)], "sra", **group)
    small = 1000  # no bucket of that size is there
    check(gaussian(3, small), [(small, spec)], "sra", **group)
