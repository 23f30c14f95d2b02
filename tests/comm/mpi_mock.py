"""The mock MPI (tests/comm/mock_mpi.cc): up to four ranks as threads of this process."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.calls import on_threads
from tests.comm.mpi_endpoint import make_mpi_endpoint
from tests.distributed import ROOT

TRUNCATED, PEER_LOST, OTHER = 15, 75, 3  # its codes of errors


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = os.environ.get("CXX", "c++").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"the mock MPI needs a C++ compiler, and {compiler[0]!r} is not there")
    folder = Path(tempfile.mkdtemp(prefix="cgx-mock-mpi-"))
    target = folder / "mock.so"
    source = ROOT / "tests/comm/mock_mpi.cc"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"]
    try:
        done = subprocess.run(
            [*compiler, *flags, str(source), "-o", str(target)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(target))
    finally:
        shutil.rmtree(folder)
    library.mock_table.restype = ctypes.c_void_p
    library.mock_get.restype = ctypes.c_long
    library.mock_set.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
    return library


class MockMpi:
    """A world of four ranks; every instance replaces the one before."""

    def __init__(self) -> None:
        self.library = _library()
        self.library.mock_reset()
        self.tables = [self.library.mock_table(rank) for rank in range(4)]

    def restart(self, rank: int) -> None:
        """`rank` becomes a process that has done nothing with this MPI yet."""
        self.tables[rank] = self.library.mock_table(rank)

    def set(self, name: str, value: int, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        for rank in ranks:
            self.library.mock_set(name.encode(), rank, value)

    def get(self, name: str, rank: int) -> int:
        return int(self.library.mock_get(name.encode(), rank))

    def live(self, rank: int) -> int:
        return int(self.library.mock_live(rank))

    def finalize(self, rank: int) -> None:
        self.library.mock_finalize(rank)

    def group(
        self,
        size: int,
        store: dist.Store | None = None,
        members: list[int] | None = None,
        **kw: Any,
    ) -> list[Any]:
        """One endpoint per rank; `members`: their ranks in the world. Raises the error of the
        lowest rank that has one.
        """
        outcomes = self.outcomes(size, store, members, **kw)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def outcomes(
        self,
        size: int,
        store: dist.Store | None = None,
        members: list[int] | None = None,
        **kw: Any,
    ) -> list[Any]:
        """The same, with the errors in place of the endpoints of the ranks that have one."""
        store = dist.HashStore() if store is None else store
        world = list(range(size)) if members is None else members

        def make(rank: int) -> Any:
            return make_mpi_endpoint(self.tables[world[rank]], store, rank, size, **kw)

        return on_threads(size, make)


NOTE = 512  # bytes of the message of an abort, which every rank has a receive for
LONG = 50_000  # bytes; the mock holds messages of more than 4096 until their receive is there


def text(length: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(length))


def settle(mock: MockMpi, ranks: range, live: int) -> None:
    """Waits until MPI has no more than `live` requests of each rank."""
    end = time.monotonic() + 5
    while any(mock.live(rank) > live for rank in ranks):
        assert time.monotonic() < end, [mock.live(rank) for rank in ranks]
        time.sleep(0.002)
