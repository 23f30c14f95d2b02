"""Tests of torch_cgx; the tree mirrors the source tree."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """For `from tests import _machinery`: the extension module of tests/machinery. ImportError that
    says how to build it.
    """
    if name != "_machinery":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("tests._machinery")
    except ModuleNotFoundError as error:
        if error.name != "tests._machinery":
            raise
        raise ImportError(
            "tests._machinery, the extension module of tests/machinery, is not built: type "
            "`make build`, or CGX_TESTING=1 pip install --no-build-isolation -e ."
        ) from error
