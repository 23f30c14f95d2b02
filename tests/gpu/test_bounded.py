"""torch_cgx.bounded on a GPU: the payloads and values of the CPU."""

from __future__ import annotations

import pytest

from tests.bounded import gpu_cases as cases
from tests.gpu import ranks


def _types(rank, world_size):
    cases.check_types()


def _shapes(rank, world_size):
    cases.check_shapes()


def _targets(rank, world_size):
    cases.check_targets()


def _errors(rank, world_size):
    cases.check_errors()


def _adversary(rank, world_size):
    cases.check_adversary(100 if ranks.FAKE else 5000)


@pytest.mark.parametrize("case", [_types, _shapes, _targets, _errors, _adversary])
def test_payloads_and_values_of_the_cpu(case):
    ranks.run_alone(case, timeout=300)
