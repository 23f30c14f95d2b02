"""The example that trains in a format of a few bits."""

from __future__ import annotations

import compare_formats as example
import pytest


@pytest.mark.parametrize("recipe", ["fp32", "mxfp4"])
def test_it_learns(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.train(recipe, steps=60) > 0.7
    assert ("forward.input" in capsys.readouterr().out) == (recipe == "mxfp4")
