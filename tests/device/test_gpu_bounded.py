"""torch_cgx.bounded on CUDA tensors, on the fake device. tests/gpu has the same on a GPU."""

from __future__ import annotations

import pytest

from tests.bounded import gpu_cases as cases
from tests.device import fake_cuda

pytestmark = fake_cuda.needed


@pytest.mark.parametrize("case", cases.CASES)
def test_payloads_and_values_of_the_cpu(case):
    fake_cuda.run(case, 1, backend=None, timeout=300)


def test_payloads_and_values_of_hard_tensors():
    fake_cuda.run(cases.check_adversary, 1, 400, backend=None, timeout=300)
