"""Every test that asks for `level` runs on each SIMD level of this CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torch_cgx import _C

LEVELS = _C.cpu_levels().split(",")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    _C.set_cpu_level(request.param)
    assert _C.cpu_level() == request.param
    yield request.param
    _C.set_cpu_level("")
