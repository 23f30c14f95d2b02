"""Fixtures that several files of this room use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tools import fit_tables
from torch_cgx.activations import Table


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch and a fixed seed: every machine counts the same bytes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fitted() -> dict[tuple[str, int], Table]:
    """All shipped tables, fitted again."""
    return fit_tables.fitted()
