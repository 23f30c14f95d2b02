"""Every test of the codecs runs on each SIMD level; one that this CPU lacks is skipped, and named.

A module that is about the choice of the level has a fixture `level` of its own.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from tests import _machinery
from torch_cgx import _C

LEVELS = _C.cpu_levels().split(",")
# All that this build could have.
MACHINES = {"x86_64": ["avx2", "avx512"], "AMD64": ["avx2", "avx512"], "aarch64": ["neon"]}
EVERY_LEVEL = ["scalar", *MACHINES.get(platform.machine(), [])]


@pytest.fixture(params=EVERY_LEVEL, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in LEVELS:
        pytest.skip(f"this CPU has no {request.param}, only {', '.join(LEVELS)}")
    _machinery.pin_cpu_level(request.param)
    assert _C.cpu_level() == request.param
    yield request.param
    _machinery.pin_cpu_level("")
