"""torch_cgx.compat.cuda_float_compress on a GPU: the payloads, values and errors of the CPU."""

from __future__ import annotations

import pytest

from tests.bounded.compat import gpu_cases as cases
from tests.gpu import ranks


@pytest.mark.parametrize("case", cases.CASES)
def test_payloads_values_and_errors_of_the_cpu(case):
    ranks.run_alone(case, timeout=300)
