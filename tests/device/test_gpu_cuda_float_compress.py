"""torch_cgx.compat.cuda_float_compress on CUDA tensors, on the fake device. tests/gpu has the same
on a GPU.
"""

from __future__ import annotations

import pytest

from tests.bounded.compat import gpu_cases as cases
from tests.device import fake_cuda

pytestmark = fake_cuda.needed


def _sizes(rank, world_size):
    cases.check_sizes()


def _values(rank, world_size):
    cases.check_values()


def _layouts(rank, world_size):
    cases.check_layouts()


def _pieces(rank, world_size):
    cases.check_pieces()


def _errors(rank, world_size):
    cases.check_errors()


def _any_words(rank, world_size):
    cases.check_any_words()


def _flush_to_zero(rank, world_size):
    cases.check_flush_to_zero()


@pytest.mark.parametrize(
    "case", [_sizes, _values, _layouts, _pieces, _errors, _any_words, _flush_to_zero]
)
def test_payloads_values_and_errors_of_the_cpu(case):
    fake_cuda.run(case, 1, backend=None, timeout=300)
