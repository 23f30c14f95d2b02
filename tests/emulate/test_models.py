"""Named formats against their models in NumPy."""

from __future__ import annotations

import pytest

from tests.emulate.models import MODELS, blocks, differ
from tests.emulate.oracles import FORMATS
from torch_cgx import emulate


@pytest.mark.parametrize("name", MODELS)
def test_no_value_differs(name):
    different, count = differ(name)
    assert different == 0 and count > 260_000


def test_every_preset_is_compared_with_something():
    of_blocks = [*blocks.MX, "nvfp4", "fp8_block128"]
    assert [*FORMATS, *of_blocks, *MODELS] == list(emulate.presets())
