"""torch_cgx.bounded on CUDA tensors, on the fake device. tests/gpu has the same on a GPU."""

from __future__ import annotations

import pytest

from tests.bounded import gpu_cases as cases
from tests.device import fake_cuda

pytestmark = fake_cuda.needed


def run(fn):
    fake_cuda.run(fn, 1, backend=None, timeout=300)


def _types(rank, world_size):
    cases.check_types()


def _shapes(rank, world_size):
    cases.check_shapes()


def _targets(rank, world_size):
    cases.check_targets()


def _errors(rank, world_size):
    cases.check_errors()


def _adversary(rank, world_size):
    cases.check_adversary(400)


@pytest.mark.parametrize("case", [_types, _shapes, _targets, _errors, _adversary])
def test_payloads_and_values_of_the_cpu(case):
    run(case)
