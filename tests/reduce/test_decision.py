"""Which of the autotuner's candidates wins, with made-up times."""

from __future__ import annotations

import pytest

from tests import _machinery


@pytest.mark.parametrize(
    "seconds, wanted",
    [
        ({"exact": 1.0, "half": 1.0, "asked": 1.0}, "exact"),
        ({"exact": 1.0, "half": 0.99, "asked": 0.985}, "exact"),
        ({"exact": 1.0, "half": 0.99, "asked": 0.97}, "asked"),
        ({"exact": 1.0, "half": 0.94, "asked": 0.93}, "half"),
        ({"exact": 1.0, "half": 0.94, "asked": 0.91}, "asked"),
        ({"exact": 1.0, "asked": 0.94}, "asked"),
        ({"exact": 1.0, "half": 0.5}, "half"),
        ({"asked": 3.0}, "asked"),
        ({"exact": 9e-6, "half": 5e-6, "asked": 4.95e-6}, "half"),
        ({}, "asked"),
    ],
)
def test_ties_go_to_more_bits(seconds, wanted):
    assert _machinery.tuning_fastest(seconds) == wanted
