"""torch_cgx.bounded on a GPU: the payloads and values of the CPU."""

from __future__ import annotations

import pytest

from tests.bounded import gpu_cases as cases
from tests.gpu import ranks


@pytest.mark.parametrize("case", cases.CASES)
def test_payloads_and_values_of_the_cpu(case):
    ranks.run_alone(case, timeout=300)


def test_payloads_and_values_of_hard_tensors():
    ranks.run_alone(cases.check_adversary, 100 if ranks.FAKE else 5000, timeout=300)
