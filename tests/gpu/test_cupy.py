"""Other people's code as the reference: CuPy computes nearest codes by the formula of
docs/wire_format.md, and calls NCCL by itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.backend.test_all_reduce import data
from tests.codec import gpu_cases as cases
from tests.gpu import ranks
from torch_cgx.codecs import MaxMin


def payload(xp: Any, x: Any, bits: int, bucket_size: int) -> Any:
    """Of float32 values in whole buckets: (unit, min) of every bucket, then codes, lowest bit
    first. xp: numpy or cupy.
    """
    rows = x.reshape(-1, bucket_size)
    low, high = rows.min(axis=1), rows.max(axis=1)
    unit = (high - low) / xp.float32((1 << bits) - 1)
    codes = xp.rint((rows - low[:, None]) / unit[:, None]).astype(xp.uint8)
    each = (codes.reshape(-1, 1) >> xp.arange(bits, dtype=xp.uint8)) & 1
    meta = xp.ascontiguousarray(xp.stack([unit, low], axis=1).astype(xp.float32))
    packed = xp.packbits(each.astype(xp.uint8).reshape(-1), bitorder="little")
    return xp.concatenate([meta.view(xp.uint8).reshape(-1), packed])


def _codes(rank, world_size):
    try:
        import cupy as xp
    except ImportError as error:
        if not ranks.FAKE:
            return f"no CuPy: {error}"
        import numpy as xp
    for bits in cases.BITS:
        for bucket_size in (8, 64, 512, 1000, 2048, 8192):
            x = cases.values(bucket_size * 40)
            there = x.to("cuda")
            here = xp.from_dlpack(there) if xp.__name__ == "cupy" else x.numpy()
            wanted = payload(xp, here, bits, bucket_size)
            torch.accelerator.synchronize()
            sent = MaxMin(bits, bucket_size).encode(there).cpu()
            wanted = torch.from_numpy(wanted.get() if xp.__name__ == "cupy" else wanted)
            assert torch.equal(sent, wanted), (bits, bucket_size)
    return None


def test_nearest_codes_and_their_packing():
    why_not = ranks.run_alone(_codes)
    if why_not:
        pytest.skip(why_not)


def _nccl(rank, world_size, n):
    """Sums of CuPy's NCCL and of the backend's exact all-reduce."""
    try:
        import cupy
        from cupy.cuda import nccl

        nccl.get_version()
    except Exception as error:  # CuPy loads the library when it is first called
        return f"no NCCL in CuPy: {error!r}"
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        # A tuple of 128 signed bytes.
        store.set("cupy", bytes(b & 0xFF for b in nccl.get_unique_id()))
    unique = tuple(b - 256 if b > 127 else b for b in store.get("cupy"))
    communicator = nccl.NcclCommunicator(world_size, unique, rank)
    x = data(rank, n).to("cuda")
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    communicator.allReduce(
        x.data_ptr(), y.data_ptr(), n, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
    )
    stream.synchronize()
    dist.all_reduce(x)
    return bool(torch.equal(x, y))


@ranks.real
def test_exact_sums_of_nccl():
    # Of two values there is one correctly rounded sum.
    found = ranks.run(_nccl, 2, 65_537, env={"CGX_INNER_COMMUNICATOR_TYPE": "SHM"})
    if isinstance(found[0], str):
        pytest.skip(found[0])
    assert found == [True, True]
