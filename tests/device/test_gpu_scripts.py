"""What runs the tests on a GPU (tests/gpu: machine.py, sanitizer.py, run_all.sh), with tools that
only pretend, and on the fake device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import fake_cuda
from tests.distributed import ROOT
from tests.gpu import machine, sanitizer


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_versions_of_what_is_there(monkeypatch, tmp_path):
    program(tmp_path, "nvidia-smi", "echo '580.1, A GPU'; echo '580.1, Another'")
    program(tmp_path, "nvcc", "printf 'nvcc: NVIDIA\\nCuda compilation tools, release 13.0, V1\\n'")
    program(tmp_path, "g++", "echo 'g++ 14.2'; echo more")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    found = machine.versions()
    assert found["driver"] == "580.1, A GPU" and found["nvcc"] == "release 13.0, V1"
    assert found["compiler"] == "g++ 14.2" and found["torch"][0].isdigit()


def test_versions_of_what_is_missing_or_fails(monkeypatch, tmp_path):
    program(tmp_path, "nvidia-smi", "echo 'no driver'; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler --flag")
    found = machine.versions()
    assert (found["driver"], found["nvcc"], found["compiler"]) == ("none", "none", "none")
    assert machine._package("no-such-package") == "none"


def ask(what: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = fake_cuda.environment(CGX_TEST_GPU="fake", PYTHONPATH=str(ROOT))
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.machine", what],
        env={**os.environ, **settings, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@fake_cuda.needed
def test_a_prebuilt_extension_is_tried():
    found = ask("prebuilt")
    assert found.returncode == 0, found
    found = ask("prebuilt", STUB_DRIVER_FAIL="cuModuleLoadData")
    assert (
        found.returncode == 1 and "does not run on a fake CUDA device: cuModuleLoad" in found.stderr
    )
    assert "without --no-build" in found.stderr


def test_a_prebuilt_extension_that_does_not_import_is_named(tmp_path):
    (tmp_path / "torch_cgx.py").write_text("raise ImportError('built for another torch')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tests.gpu import machine; "
    found = subprocess.run(
        [sys.executable, "-c", code + "machine.prebuilt()"],
        env={**os.environ, "CGX_TEST_GPU": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1 and "import: built for another torch" in found.stderr


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("--kernel-regex arg  kernels", ["--kernel-regex", "kns=cgx_"]),
        ("--kernel-name=arg\\n--kernel-name-exclude", ["--kernel-name", "kns=cgx_"]),
        ("--kernel-regex-exclude arg", []),
    ],
)
def test_races_are_looked_for_in_the_projects_kernels(tmp_path, says, expected):
    tool = str(program(tmp_path, "compute-sanitizer", f"printf -- '{says}\\n'"))
    for name in ("racecheck", "synccheck"):
        words = sanitizer.command(tool, name)
        assert words[:3] == [tool, "--tool", name] and words[7:] == expected
    assert "--report-api-errors" in sanitizer.command(tool, "memcheck")
    assert not set(expected) & set(sanitizer.command(tool, "memcheck"))


def test_a_program_that_is_too_slow_is_ended_with_what_it_said(monkeypatch):
    monkeypatch.setenv("CGX_SANITIZER_SECONDS", "1")
    with pytest.raises(AssertionError, match="has not ended in 1 s\nbegun"):
        sanitizer.run(["sh", "-c", "echo begun; sleep 60"])
    assert sanitizer.run(["sh", "-c", "echo done; exit 3"]) == (3, "done\n")


@fake_cuda.needed
def test_run_all_gives_every_tool_a_run_of_its_own(tmp_path):
    calls = tmp_path / "calls"
    python = program(
        tmp_path,
        "python",
        f"""echo "$@" >> {calls}
case "$*" in
  *tests.gpu.machine*) exec {sys.executable} "$@" ;;
  *'[memcheck]'*) exit 3 ;;
esac""",
    )
    env = fake_cuda.environment(CGX_TEST_GPU="fake", OUT=str(tmp_path / "out"), PYTHON=str(python))
    done = subprocess.run(
        [ROOT / "tests" / "gpu" / "run_all.sh", "--no-build"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    status = json.loads((tmp_path / "out" / "summary.json").read_text())["status"]
    names = ["prebuilt", "tests", "program", "memcheck", "racecheck", "synccheck"]
    assert list(status) == names and done.returncode == 1, done
    assert [name for name in names if status[name] != 0] == ["memcheck"]
    runs = [line for line in calls.read_text().splitlines() if "test_sanitizer.py::" in line]
    assert len(runs) == 4
    said = (tmp_path / "out" / "versions.txt").read_text()
    assert [line.split(":")[0] for line in said.splitlines()] == [
        *("driver", "torch", "nvcc", "setuptools", "compiler")
    ]
    assert done.stdout.startswith(said)


@fake_cuda.needed
def test_run_all_ends_where_nothing_was_built(tmp_path):
    env = fake_cuda.environment(
        CGX_TEST_GPU="fake",
        OUT=str(tmp_path),
        PYTHON=sys.executable,
        STUB_DRIVER_FAIL="cuModuleLoadData",
    )
    done = subprocess.run(
        [ROOT / "tests" / "gpu" / "run_all.sh", "--no-build"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "--no-build: torch_cgx does not run" in done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == {"prebuilt": 1}
