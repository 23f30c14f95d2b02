"""What the tests of launching share."""

from __future__ import annotations

import os

import pytest

from torch_cgx import launch
from torch_cgx.launch import _state


@pytest.fixture
def clean(monkeypatch):
    """No launcher in the environment, and no memory of former calls; all of it undone after."""
    prefixes = ("OMPI_", "PMI", "MPI_", "MV2_", "SLURM", "TORCHELASTIC", "GLOO_SOCKET", "MASTER_")
    for name in [*os.environ]:
        if name.startswith(prefixes):
            monkeypatch.delenv(name)
    for name in (*launch.NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(_state, "_state", _state.State())
    return monkeypatch
