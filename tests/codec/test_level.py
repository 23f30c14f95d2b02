"""The choice of the SIMD level: by the CPU, by CGX_CPU_LEVEL, by the setter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import _machinery
from tests.codec.conftest import EVERY_LEVEL, LEVELS
from torch_cgx import _C

# A fresh process that loads the same extension, whatever it is called, with a bad value in the
# environment.
SCRIPT = """
import importlib.util, os, sys
import torch
name, file = sys.argv[1:]
spec = importlib.util.spec_from_file_location(name, file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    module.Codec(bits=4).encode(torch.ones(100))
except ValueError as error:
    print(error)
os.environ["CGX_CPU_LEVEL"] = "scalar"
print(module.cpu_level())
"""


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """These tests choose it themselves."""
    yield
    _machinery.pin_cpu_level("")


def test_the_first_loop_reads_the_environment() -> None:
    command = [sys.executable, "-c", SCRIPT, _C.__name__.rpartition(".")[2], _C.__file__]
    environment = os.environ | {"CGX_CPU_LEVEL": "sse9"}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    error, level = result.stdout.splitlines()
    assert error == (
        f"CGX_CPU_LEVEL='sse9' is not allowed; cpu_level takes one of {','.join(LEVELS)}"
    )
    assert level == "scalar"


def test_levels_are_known() -> None:
    """A new one must be named in conftest.py, or no test would run on it."""
    assert set(LEVELS) <= set(EVERY_LEVEL)


def test_every_test_runs_on_every_level(request: pytest.FixtureRequest) -> None:
    """Of those that were collected: `level` is not taken away by a fixture of the same name."""
    mine = [item for item in request.session.items if item.path.parent == request.path.parent]
    exempt = {item.nodeid for item in mine if item.path == request.path}
    with_level: dict[str, set[str]] = {}
    for item in mine:
        assert isinstance(item, pytest.Function)
        if item.nodeid not in exempt:
            parameters = getattr(item, "callspec", None)
            name = f"{item.path.name}::{item.originalname}"
            with_level.setdefault(name, set()).add(parameters and parameters.params.get("level"))
    assert {name for name, found in with_level.items() if found != set(EVERY_LEVEL)} == set()


def test_default_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEVELS[0] == "scalar"
    for value, expected in [
        (None, LEVELS[-1]),
        ("", LEVELS[-1]),
        *zip(LEVELS, LEVELS, strict=True),
        (f" {LEVELS[-1].upper()} ", LEVELS[-1]),
    ]:
        if value is None:
            monkeypatch.delenv("CGX_CPU_LEVEL", raising=False)
        else:
            monkeypatch.setenv("CGX_CPU_LEVEL", value)
        _machinery.pin_cpu_level("")
        assert _C.cpu_level() == expected
    monkeypatch.setenv("CGX_CPU_LEVEL", "sse9")
    with pytest.raises(ValueError, match="CGX_CPU_LEVEL='sse9' is not allowed; .* one of scalar"):
        _machinery.pin_cpu_level("")
    monkeypatch.undo()


def test_setter() -> None:
    before = _C.cpu_level()
    with pytest.raises(ValueError, match="cpu level='neon9' is not allowed; .* one of scalar"):
        _machinery.pin_cpu_level("neon9")
    assert _C.cpu_level() == before
    for name in LEVELS:
        _machinery.pin_cpu_level(name)
        assert _C.cpu_level() == name
