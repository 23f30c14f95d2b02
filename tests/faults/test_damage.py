"""Messages that are shorter or other than they were sent."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests import _machinery
from tests.distributed import run_pooled


def test_crc32c():
    # RFC 3720, appendix B.4, and the check value of the polynomial.
    vectors = {
        b"123456789": 0xE3069283,
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
        b"": 0,
    }
    for data, expected in vectors.items():
        assert _machinery.crc32c(data) == expected == _machinery.crc32c(data, tables=True)
    random = np.random.default_rng(0)
    for length in [*range(70), 1000, 4095, 4096, 65537]:
        data = random.bytes(length)
        assert _machinery.crc32c(data) == _machinery.crc32c(data, tables=True)
        assert length == 0 or _machinery.crc32c(data) != zlib.crc32(data)  # another polynomial


def damaged(rank, world_size, fault, steps):
    _machinery.allow_faults()
    outcomes = []
    for step in range(steps):
        group = dist.new_group(list(range(world_size)))
        x = torch.arange(5000, dtype=torch.float32) * (rank + 1)
        exact = torch.arange(5000, dtype=torch.float32) * 3
        _machinery.order_fault(fault if rank == 0 else "none", step)
        try:
            torch_cgx.all_reduce(x, config={"bits": 8}, group=group)
            close = torch.allclose(x, exact, atol=60)
            outcomes.append("right" if close else "garbage")
        except torch_cgx.CgxError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
        _machinery.order_fault("none")
        dist.destroy_process_group(group)
    _machinery.allow_faults(False)
    return outcomes


def test_an_error_on_order_is_one_of_the_engines_own():
    # The communicator that throws is code of another extension module.
    mine, theirs = run_pooled(damaged, 2, "error", 3)
    assert all(text.startswith("CgxError") and "a fault was ordered" in text for text in mine), mine
    assert "garbage" not in theirs and "a fault was ordered" in "".join(theirs), theirs


@pytest.mark.parametrize("fault", ["truncate", "alter"])
@pytest.mark.parametrize("communicator", ["SHM", "GLOO"])
def test_damage_is_refused(communicator, fault):
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator, "CGX_CHECKSUM": "1"}
    results = run_pooled(damaged, 2, fault, 8, env=env)
    refused = [text for text in results[0] if text != "right"]
    assert refused, "the fault hit no message"
    for text in refused:
        assert text.startswith("MismatchError"), text
        assert "altered" in text or "truncated" in text, text
        assert "rank 1" in text
    # The other side gets an error too, or has what it needs already.
    assert not any(text == "garbage" for texts in results for text in texts)


def test_a_truncated_message_is_refused_without_checksums():
    results = run_pooled(damaged, 2, "truncate", 8)
    refused = [text for text in results[0] if text != "right"]
    assert refused and all("truncated or altered" in text for text in refused)


def checked(rank, world_size):
    results = []
    for n in [0, 1, 16, 17, 511, 512, 513, 100_000, 2_000_000]:
        x = torch.randn(n, generator=torch.Generator().manual_seed(n + rank))
        torch_cgx.all_reduce(x, config={"bits": 3, "bucket_size": 128})
        shard = torch.empty(n)
        whole = x.repeat(world_size)
        torch_cgx.reduce_scatter_single(shard, whole, config={"bits": 5})
        gathered = torch.empty(n * world_size)
        torch_cgx.all_gather_single(gathered, shard, config={"bits": 5})
        results.append((x, gathered))
    return results


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
@pytest.mark.parametrize("reduction", ["SRA", "RING", "ONESHOT"])
def test_checksums_change_no_result(hosts, reduction):
    common = {"CGX_CROSS_REDUCTION_TYPE": reduction}
    if hosts == "aaa":
        common["CGX_INNER_REDUCTION_TYPE"] = reduction
    env = [{**common, "CGX_HOST_ID": host, "CGX_CHECKSUM": "0"} for host in hosts]
    without = run_pooled(checked, 3, env=env)
    having = run_pooled(checked, 3, env=[{**e, "CGX_CHECKSUM": "1"} for e in env])
    for rank in range(3):
        for (a, b), (c, d) in zip(without[rank], having[rank], strict=True):
            # Rounds may be cut elsewhere, but only large tensors have several.
            assert torch.equal(a, c) and torch.equal(b, d)
