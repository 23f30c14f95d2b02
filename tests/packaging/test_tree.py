"""The shape of the source tree: who may include torch, what the package ships, pins that fit each
other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.distributed import ROOT

TORCH_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](torch|ATen|c10)/', re.MULTILINE)


# Rooms of comm/ that carry messages over backends of torch.
TORCH_ROOMS = {"tensors", "backend", "bindings", "comm/gloo", "comm/nccl"}


def test_only_these_rooms_include_torch():
    files = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"}]
    assert len(files) > 20
    found = {p.relative_to(ROOT / "csrc") for p in files if TORCH_INCLUDE.search(p.read_text())}
    rooms = {p.parts[0] if p.parts[0] != "comm" else str(p.parent) for p in found}
    assert rooms == TORCH_ROOMS, sorted(map(str, found))


def test_layers_include_downwards_only():
    below = {
        "base": {"base"},
        "device": {"base", "device"},
        "codec": {"base", "codec", "device"},
        "comm": {"base", "comm", "device"},
        "reduce": {"base", "codec", "comm", "device", "reduce"},
        "tensors": {"base", "codec", "device", "tensors"},
        "backend": {"base", "codec", "comm", "device", "reduce", "tensors", "backend"},
    }
    wrong = []
    for room, allowed in below.items():
        for path in (ROOT / "csrc" / room).rglob("*"):
            if path.suffix not in {".h", ".cc", ".cu"}:
                continue
            for included in re.findall(r'^#include "([a-z_]+)/', path.read_text(), re.MULTILINE):
                if included in {*below, "bindings"} and included not in allowed:
                    wrong.append(f"{path.relative_to(ROOT)} -> {included}")
    assert not wrong


def test_torch_cgx_does_not_import_what_stands_above_it():
    """cgx_utils, the benchmarks and the tests use torch_cgx; its command line is part of it."""
    above, wrong, read = {"cgx_utils", "benchmarks", "examples", "tests"}, [], 0
    for path in sorted((ROOT / "torch_cgx").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            read += len(names)
            wrong += [f"{path}: {name}" for name in names if name.partition(".")[0] in above]
    assert read > 500
    assert not wrong


def _circle(includes):
    """A circle in a graph {module: modules}, or none."""
    done = set()

    def visit(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        found = (visit(other, [*path, module]) for other in sorted(includes.get(module, ())))
        circle = next(filter(None, found), None)
        done.add(module)
        return circle

    return next(filter(None, (visit(module, []) for module in sorted(includes))), None)


def test_circles_are_found():
    assert _circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_parts_of_the_backend_do_not_include_each_other():
    """A part is a header with its source file."""
    includes: dict[str, set[str]] = {}
    for path in (ROOT / "csrc" / "backend").rglob("*"):
        if path.suffix in {".h", ".cc"}:
            part = str(path.relative_to(ROOT / "csrc").with_suffix(""))
            found = re.findall(r'^#include "(backend/.+)\.h"', path.read_text(), re.MULTILINE)
            includes.setdefault(part, set()).update({*found} - {part})
    assert len(includes) > 20
    assert _circle(includes) is None
    # The group is made of parts that do not know it.
    group = {part for part, found in includes.items() if "backend/process_group_cgx" in found}
    assert group == {
        "backend/reductions",
        "backend/forward",
        "backend/encoded_moves",
        "backend/p2p/point_to_point",
    }


def test_test_machinery_is_not_in_the_shipped_module(monkeypatch):
    from tests import _machinery
    from torch_cgx import _C

    names = {name for name in dir(_machinery) if not name.startswith("__")}
    assert {"order_fault", "MockNetwork", "stress", "make_mpi_endpoint", "codec_encode"} <= names
    assert not names & set(dir(_C))
    shipped = _setup_namespace(monkeypatch)["sources"]()
    assert not [source for source in shipped if "tests" in Path(source).parts]


def test_test_machinery_raises_the_classes_of_the_shipped_module():
    import torch_cgx
    from tests import _machinery

    a, _ = _machinery.make_in_process_group(2, 100)
    with pytest.raises(torch_cgx.TimeoutError) as caught:
        a.receive(1, 0.01)
    assert type(caught.value) is torch_cgx.TimeoutError


def test_without_the_test_machinery_an_import_says_how_to_build_it():
    script = "import sys; sys.modules['tests._machinery'] = None; from tests import _machinery"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "`make build`, or CGX_TESTING=1" in done.stderr


@pytest.mark.parametrize("wanted, expected", [("", False), ("0", False), ("1", True)])
def test_the_test_machinery_is_built_on_request(monkeypatch, wanted, expected):
    monkeypatch.setenv("CGX_TESTING", wanted)
    assert _setup_namespace(monkeypatch)["testing"]() is expected


def test_another_value_of_cgx_testing_is_refused(monkeypatch):
    monkeypatch.setenv("CGX_TESTING", "yes")
    with pytest.raises(SystemExit, match="CGX_TESTING is 'yes', allowed: 0, 1"):
        _setup_namespace(monkeypatch)["testing"]()


def _setup_namespace(monkeypatch):
    import setuptools

    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    namespace = {"__file__": str(ROOT / "setup.py"), "__name__": "setup_under_test"}
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), namespace)
    return namespace


def test_sources_are_all_but_the_separate_modules(monkeypatch):
    found = _setup_namespace(monkeypatch)["sources"]()
    assert "csrc/bindings/module.cc" in found
    assert "csrc/comm/mpi/group.cc" in found
    assert not [p for p in found if {"module"} & set(Path(p).parts)]


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0", "1.13.1+cpu", "3.0.0"])
def test_a_torch_out_of_range_is_named(monkeypatch, version):
    check = _setup_namespace(monkeypatch)["check_torch"]
    with pytest.raises(SystemExit, match=rf"2\.11 to 2\.14.*{re.escape(version)}"):
        check(version)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.2+cu130", "2.13.0a0+git123"])
def test_a_torch_in_range_is_taken(monkeypatch, version):
    assert _setup_namespace(monkeypatch)["check_torch"](version) is None


def test_a_compiler_without_cxx20_is_named(monkeypatch, tmp_path):
    check = _setup_namespace(monkeypatch)["check_compiler"]
    old = tmp_path / "old-c++"
    old.write_text("#!/bin/sh\necho 'unrecognized option -std=c++20' >&2\nexit 1\n")
    old.chmod(0o755)
    with pytest.raises(SystemExit, match=r"C\+\+20(.|\n)*old-c\+\+(.|\n)*unrecognized"):
        check([str(old)])
    with pytest.raises(SystemExit, match="does not start"):
        check([str(tmp_path / "missing")])


def test_a_build_without_torch_says_what_to_do(tmp_path):
    blocker = tmp_path / "torch"
    blocker.mkdir()
    (blocker / "__init__.py").write_text("raise ImportError('no torch in this test')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "setup.py"), "build_ext", f"--build-lib={tmp_path}"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "no torch in this test" in done.stderr and "--no-build-isolation" in done.stderr
    # The interpreter has one, which the build does not see: as in an isolated build.
    assert "torch is installed in" in done.stderr and "isolated" in done.stderr


def test_a_build_where_torch_is_not_installed_says_so(monkeypatch, tmp_path):
    no_torch = _setup_namespace(monkeypatch)["no_torch"]
    text = no_torch("No module named 'torch'", str(tmp_path))
    assert "Install torch first" in text and "is installed" not in text
    (tmp_path / "torch").mkdir()
    text = no_torch("No module named 'torch'", str(tmp_path))
    assert f"torch is installed in {tmp_path}" in text and "Install torch" not in text


def test_everything_the_makefile_installs_is_pinned():
    lines = re.findall(r"^\w+_PACKAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = [name for line in lines for name in re.findall(r"-r (\S+)", line)]
    names = {name for line in lines for name in re.sub(r"-r \S+", "", line).split()}
    assert {"torch", "ninja", "pytest", "ruff"} <= names and files == ["docs/requirements.txt"]
    files.append("examples/recipes/requirements.txt")
    for path in files:
        for line in (ROOT / path).read_text().splitlines():
            assert re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line), f"{path}: {line}"
    constraints = (ROOT / "constraints.txt").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==", constraints, re.MULTILINE))
    loose = {name for name in names if not re.fullmatch(r"[\w.-]+==[\w.]+", name)}
    assert loose <= pinned, loose - pinned
    # The pins of the dev extra are the same.
    for name, version in re.findall(r'"(ruff|mypy|clang-format)==([\w.]+)"', _pyproject()):
        assert f"{name}=={version}" in constraints


def _pyproject():
    return (ROOT / "pyproject.toml").read_text()


def test_generated_files_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "tools/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_stub_of_the_extension_names_all_that_it_has():
    from torch_cgx import _C

    declared = set()
    for node in ast.parse((ROOT / "torch_cgx" / "_C.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            declared.add(ast.unparse(node.target))
    has = {name for name in dir(_C) if not name.startswith("_")}
    assert {name for name in declared if not name.startswith("_")} == has


def test_source_archive_is_complete(tmp_path):
    command = ["egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "torch_cgx-0.1.0.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile("torch_cgx-0.1.0/PKG-INFO")
        assert metadata is not None
        text = metadata.read().decode()
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in {".cc", ".h", ".cu"}:
            assert str(path.relative_to(ROOT)) in names
    for package in ("torch_cgx", "cgx_utils"):
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= names
    assert {
        "LICENSE",
        "pyproject.toml",
        "setup.py",
        "build_backend.py",
        "build_engine.py",
        "build_kernels.py",
        "build_mpi.py",
        "tests/core.mk",
        "torch_cgx/_C.pyi",
        "torch_cgx/activations/tables/tables.npz",
        "torch_cgx/launch/__init__.py",
    } <= names
    built = (".so", ".pyc", ".fatbin", ".hsaco", "_kernels.cu")
    assert not [name for name in names if name.endswith(built)]
    for line in (
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Requires-Dist: torch<2.15,>=2.11",
        "Requires-Dist: numpy",
        *(f"Provides-Extra: {extra}" for extra in ("mpi", "cuda12", "cuda13", "test", "dev")),
    ):
        assert line in text.splitlines(), line


def test_no_pin_keeps_a_cuda_build_of_torch_out():
    """`make demo` fails with a pin of what torch's CUDA builds need in another version: PyPI has
    those builds, which bring the libraries of CUDA as packages. nvdisasm is not among them.
    """
    pins = [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert "torch" in pins
    libraries = [pin for pin in pins if pin.startswith(("nvidia-", "cuda-toolkit"))]
    assert libraries == ["nvidia-cuda-nvdisasm"]
