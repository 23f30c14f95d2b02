"""torch_cgx.emulate on CUDA tensors, on the fake device. tests/gpu has the same on a GPU."""

from __future__ import annotations

import pytest

from tests.device import fake_cuda
from tests.emulate import gpu_cases as cases

pytestmark = fake_cuda.needed


def _run(rank, world_size, name):
    getattr(cases, name)()


@pytest.mark.parametrize(
    "name", ("floats", "blocks", "integers", "measured", "products", "trainings")
)
def test_results_of_the_cpu(name):
    fake_cuda.run(_run, 1, name, backend=None, timeout=300)
