"""torch_cgx.activations on a GPU: the results of the CPU."""

from __future__ import annotations

import pytest

from tests.activations import gpu_cases as cases
from tests.gpu import ranks


def _run(rank, world_size, name):
    getattr(cases, name)()


@pytest.mark.parametrize("name", ("levels", "dropout", "functions", "saved"))
def test_results_of_the_cpu(name):
    ranks.run_alone(_run, name, timeout=300)
