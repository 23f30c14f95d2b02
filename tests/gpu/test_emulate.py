"""torch_cgx.emulate on a GPU: the results of the CPU."""

from __future__ import annotations

import pytest

from tests.emulate import gpu_cases as cases
from tests.gpu import ranks


def _run(rank, world_size, name):
    getattr(cases, name)()


@pytest.mark.parametrize(
    "name", ("floats", "blocks", "integers", "measured", "products", "trainings")
)
def test_results_of_the_cpu(name):
    ranks.run_alone(_run, name, timeout=300)
