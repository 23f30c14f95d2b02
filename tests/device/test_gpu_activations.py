"""torch_cgx.activations on CUDA tensors, on the fake device. tests/gpu has the same on a GPU."""

from __future__ import annotations

import pytest

from tests.activations import gpu_cases as cases
from tests.device import fake_cuda

pytestmark = fake_cuda.needed


def _run(rank, world_size, name):
    getattr(cases, name)()


@pytest.mark.parametrize("name", ("levels", "dropout", "functions", "saved"))
def test_results_of_the_cpu(name):
    fake_cuda.run(_run, 1, name, backend=None, timeout=300)
