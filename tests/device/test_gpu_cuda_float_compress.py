"""torch_cgx.compat.cuda_float_compress on CUDA tensors, on the fake device. tests/gpu has the same
on a GPU.
"""

from __future__ import annotations

import pytest

from tests.bounded.compat import gpu_cases as cases
from tests.device import fake_cuda

pytestmark = fake_cuda.needed


@pytest.mark.parametrize("case", cases.CASES)
def test_payloads_values_and_errors_of_the_cpu(case):
    fake_cuda.run(case, 1, backend=None, timeout=300)
