"""Endpoints of the MPI communicator that meet over a store of torch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tests import _machinery


def make_mpi_endpoint(api: Any, store: dist.Store, rank: int, size: int, **options: Any) -> Any:
    """`api`: what torch_cgx._mpi_loader.load() returns, or the address of a table. Keys are those
    that a process group uses.
    """

    def put(key: str, value: bytes) -> None:
        store.set(f"cgx/{key}", value)

    def get(key: str, timeout: float) -> bytes:
        try:
            store.wait([f"cgx/{key}"], timedelta(seconds=max(timeout, 0.001)))
        except dist.DistStoreError as error:
            raise TimeoutError(str(error)) from error
        return store.get(f"cgx/{key}")

    return _machinery.make_mpi_endpoint(api, put, get, rank, size, **options)
