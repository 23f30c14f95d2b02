"""A payload that many tests take."""

from __future__ import annotations

import pytest
import torch

from torch_cgx import bounded


@pytest.fixture(scope="module")
def payload() -> torch.Tensor:
    """Three blocks, small: values, a constant block, and what is left."""
    x = torch.linspace(0, 1e-4, 140_000)  # no values that are there again
    x[:65536:900] += torch.arange(73.0)
    x[65536:131072] = 7.0
    x[131072 + 3 :: 700] = 0.25
    return bounded.compress(x.view(14, 100, 100), max_error=1e-3)
