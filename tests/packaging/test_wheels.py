"""Wheels: what they are called and require, what pip makes of that, and, where CGX_TEST_WHEELS
names the folder of `make wheels`, a wheel in an environment without a compiler.

make wheels && CGX_TEST_WHEELS=dist .venv/bin/python -m pytest tests/packaging/test_wheels.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.distributed import ROOT
from tests.packaging.wheel_environment import Environment
from tools.wheels import __main__ as wheels
from tools.wheels import names, repair, tree
from torch_cgx import _build_info

TARGET = names.Target("python3.11", "cp311", "2.13.0")
PYPROJECT = (ROOT / "pyproject.toml").read_text()
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
MINOR = _build_info.minor(torch.__version__)


def test_names_and_requirements():
    assert TARGET.wheel("0.1.0") == (f"torch_cgx-0.1.0+torch2.13-cp311-cp311-{names.PLATFORM}.whl")
    assert names.requirement("2.13") == "torch>=2.13,<2.14"
    text, version = names.of_wheel(PYPROJECT, "2.13")
    changed = [line for line in text.splitlines() if line not in PYPROJECT.splitlines()]
    assert version == "0.1.0" and len(changed) == 2
    assert changed[0] == 'version = "0.1.0+torch2.13"'
    assert changed[1].startswith('dependencies = ["torch>=2.13,<2.14", "numpy"')
    with pytest.raises(SystemExit, match="pyproject.toml has the versions"):
        names.of_wheel(text, "2.13")  # no version that it knows


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0", "2.13", "2.13.0+cpu", "new", ""])
def test_a_bad_torch_is_named(version):
    with pytest.raises(
        SystemExit, match=rf"TORCHES has {re.escape(repr(version))}; allowed: .*2.11"
    ):
        names.targets([sys.executable], [version])


def test_a_bad_python_is_named(tmp_path):
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho cpython 3 9\n")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'not today' >&2\nexit 1\n")
    for file in (old, broken):
        file.chmod(0o755)
    for python, said in (
        (tmp_path / "none", "there is no such command"),
        (broken, "not today"),
        (old, "cpython 3.9; allowed: cpython from 3.10 on"),
    ):
        with pytest.raises(SystemExit) as caught:
            names.targets([str(python)], ["2.13.0"])
        assert f"PYTHONS has '{python}'" in str(caught.value) and said in str(caught.value)


def test_two_wheels_of_one_name_are_refused():
    with pytest.raises(SystemExit, match=f"two wheels for {TAG} and torch 2.13 are asked for"):
        names.targets([sys.executable], ["2.13.0", "2.13.1"])
    found = names.targets([sys.executable], ["2.13.0", "2.12.1"])
    assert [(one.tag, one.minor) for one in found] == [(TAG, "2.13"), (TAG, "2.12")]


def test_what_is_missing_is_an_error_that_names_the_way_without(monkeypatch):
    monkeypatch.setattr(wheels.build_kernels, "find_nvcc", lambda: None)
    with pytest.raises(SystemExit, match="no nvcc in CUDA_HOME or on the PATH.*KERNELS=0"):
        wheels.arguments(["--no-mpi"])
    with pytest.raises(SystemExit, match=r"needed: one of Open MPI and one of MPICH, or MPI= "):
        wheels.arguments(["--no-kernels", "--mpicc", "a/mpicc"])
    args = wheels.arguments(["--no-kernels", "--no-mpi"])
    assert args.torch == [
        re.findall(r"^torch==(.*)", (ROOT / "constraints.txt").read_text(), re.M)[0]
    ]


def test_a_tree_follows_its_source_and_keeps_times(tmp_path):
    source, target = tmp_path / "source", tmp_path / "tree"
    for name, text in {"csrc/a.cc": "a", "csrc/b.cc": "b", "gone.py": ""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    os.utime(source / "csrc/b.cc", (2, 2))
    tree.update(target, source)
    assert (target / "csrc/b.cc").stat().st_mtime == 2
    (target / "build").mkdir()
    (target / "build/a.o").touch()
    os.utime(target / "csrc/a.cc", (4e9, 4e9))
    (source / "csrc/b.cc").write_text("other")
    (source / "gone.py").unlink()
    tree.update(target, source)
    found = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
    assert found == {"csrc/a.cc", "csrc/b.cc", "build/a.o"}
    assert (target / "csrc/a.cc").stat().st_mtime == 4e9
    assert (target / "csrc/b.cc").read_text() == "other"
    assert (target / "csrc/b.cc").stat().st_mtime > 2
    # What was changed and is as before: an object of the change is older than this.
    os.utime(source / "csrc/a.cc", (5e9, 5e9))
    tree.update(target, source)
    assert (target / "csrc/a.cc").stat().st_mtime == 5e9


def test_a_tree_takes_newer_objects_and_their_commands(tmp_path):
    root, target = tmp_path / "root", tmp_path / "tree"
    line = "0\t1\t2\tbuild/temp-cpython/core/{}\t{}"
    for folder, files in {
        root: {"core/a.o": "new", "core/b.o": "old", "torch1/build.ninja": "", "lock": ""},
        target: {"core/a.o": "", "core/b.o": "own"},
    }.items():
        log = ["# ninja log v7", line.format("a.o", folder.name), line.format("b.o", folder.name)]
        for name, text in {**files, ".ninja_log": "\n".join([*log, ""])}.items():
            file = folder / "build/temp-cpython" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            os.utime(file, (10 * (folder == root),) * 2 if name.endswith("a.o") else (5, 5))
    for _ in range(2):
        tree.take_objects(target, root)
        made = target / "build/temp-cpython"
        assert (made / "core/a.o").read_text() == "new"
        assert (made / "core/a.o").stat().st_mtime == 10
        assert (made / "core/b.o").read_text() == "own"
        assert (made / ".ninja_log").read_text().splitlines() == [
            "# ninja log v7",
            line.format("a.o", "tree"),
            line.format("b.o", "tree"),
            line.format("a.o", "root"),
        ]
        assert not (made / "torch1").exists()


def write_wheel(folder: Path, name: str, version: str, needs: str = "", **files: str) -> Path:
    """A wheel of no content but `files`, of this Python."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {needs}"] if needs else []
    path = folder / f"{name}-{version}-{TAG}-{TAG}-{names.PLATFORM}.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{info}/METADATA", "\n".join([*lines, ""]))
        packed.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {TAG}-{TAG}-{names.PLATFORM}\n")
        for file, text in files.items():
            packed.writestr(file, text)
        packed.writestr(f"{info}/RECORD", "")
    return path


LISTING = (
    *("_C.cpython-311-x86_64-linux-gnu.so", "_build_info.cpython-311.json", "_kernels.fatbin"),
    *("_mpi_openmpi.cpython-311.so", "_mpi_mpich.cpython-311.so", "_kernels.cu", "_C.pyi"),
)


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, ""),
        ({"torch_cgx/_kernels.fatbin": None}, r"no file torch_cgx/_kernels"),
        ({"torch_cgx/_mpi_mpich.cpython-311.so": None}, "no file torch_cgx/_mpi_mpich"),
        ({"tests/_machinery.so": ""}, "unexpected file .*tests"),
        ({"torch_cgx.libs/libmpi.so.40": ""}, "unexpected file .*libs"),
        ({"torch_cgx/_kernels.hsaco": ""}, "unexpected file .*hsaco"),
        ({"torch_cgx/_C.pyi": f"at {ROOT}/csrc"}, "names a folder of this machine"),
    ],
)
def test_what_a_wheel_lacks_or_should_not_have_is_found(tmp_path, change, said):
    files = {f"torch_cgx/{name}": "" for name in LISTING} | {"cgx_utils/py.typed": ""} | change
    files = {name: text for name, text in files.items() if text is not None}
    path = write_wheel(tmp_path, "torch_cgx", "0.1.0+torch2.13", "torch<2.14,>=2.13", **files)
    path = path.rename(tmp_path / TARGET.wheel("0.1.0"))
    found = repair.problems(path, TARGET, "0.1.0", mpi=True, kernels=True)
    assert (not found) if not said else re.search(said, "; ".join(found)), found


@pytest.mark.parametrize("needs", ["", "torch>=2.11,<2.15", "torch"])
def test_a_wheel_that_requires_another_torch_is_found(tmp_path, needs):
    path = write_wheel(tmp_path, "torch_cgx", "0.1.0+torch2.13", needs)
    found = repair.problems(path, TARGET, "0.1.0", mpi=False, kernels=False)
    assert "not torch>=2.13,<2.14" in found[-1]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An environment with torch 2.12, and a folder of wheels: three of torch, two of torch_cgx."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("2.12.1", "2.13.0", "2.14.1"):
        write_wheel(folder, "torch", version)
    for minor in ("2.12", "2.13"):
        version = names.local("0.1.0", minor)
        write_wheel(folder, "torch_cgx", version, names.requirement(minor))
    environment = Environment(folder / "env", [])
    done = environment.pip("install", f"--find-links={folder}", "torch==2.12.1")
    assert done.returncode == 0, done.stderr
    return environment, folder


def plan(store, *words: str) -> str:
    environment, folder = store
    done = environment.pip("install", "--dry-run", *words)
    said = (
        done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stdout + done.stderr
    )
    return said.replace("torch_cgx", "torch-cgx")  # versions of pip differ


def test_pip_replaces_a_torch_that_a_wheel_does_not_fit(store):
    """It does not refuse, where it finds one that fits."""
    wheel = str(next(store[1].glob("torch_cgx-*torch2.13*.whl")))
    assert plan(store, wheel, f"--find-links={store[1]}") == (
        "Would install torch-2.13.0 torch-cgx-0.1.0+torch2.13"
    )
    assert plan(store, "torch_cgx", f"--find-links={store[1]}") == (
        "Would install torch-2.13.0 torch-cgx-0.1.0+torch2.13"
    )


def test_pip_refuses_it_or_takes_the_other_wheel_where_the_torch_is_named(store):
    wheel = str(next(store[1].glob("torch_cgx-*torch2.13*.whl")))
    said = plan(store, wheel, "torch==2.12.*", f"--find-links={store[1]}")
    assert "ResolutionImpossible" in said
    assert re.search(r"torch-cgx 0\.1\.0\+torch2\.13 depends on torch.*>=2\.13", said), said
    assert "No matching distribution found for torch" in plan(store, wheel)  # no index
    assert plan(store, "torch_cgx", "torch==2.12.*", f"--find-links={store[1]}") == (
        "Would install torch-cgx-0.1.0+torch2.12"
    )


def test_the_import_of_a_wheel_names_the_wheel_to_take():
    built = {"torch": "2.13.0+cpu", "version": "0.1.0", "wheel": "torch2.13"}
    assert _build_info.misfit(built, "2.13.1") == ""
    text = _build_info.misfit(built, "2.12.1+cu128")
    assert "this wheel of torch_cgx is for torch 2.13, and torch 2.12.1+cu128 is installed" in text
    assert "torch_cgx-0.1.0+torch2.12-" in text and 'pip install "torch==2.13.*"' in text


# From here on: the real wheel.

DIST = Path(os.environ.get("CGX_TEST_WHEELS", "")).resolve()
real = pytest.mark.skipif(
    not os.environ.get("CGX_TEST_WHEELS"), reason="CGX_TEST_WHEELS does not name wheels"
)
PACKAGES = ["torch", "numpy", "tqdm", "setuptools", "scikit-learn", "matplotlib"]
TORCHRUN = ["python", "-m", "torch.distributed.run"]  # packages are linked without commands
TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from cgx_utils import CGXState, cgx_hook
dist.init_process_group("cgx")
model = DistributedDataParallel(torch.nn.Linear(512, 512))
model.register_comm_hook(CGXState(config={"bits": 4, "bucket_size": 512}), cgx_hook)
model(torch.randn(32, 512)).square().mean().backward()
assert model.module.weight.grad.abs().sum() > 0
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel for this Python and torch, which pip has found by itself."""
    assert DIST.is_dir(), f"CGX_TEST_WHEELS is {DIST}, which is no folder"
    environment = Environment(tmp_path_factory.mktemp("real") / "env", PACKAGES)
    done = environment.pip("install", "torch_cgx", f"torch=={MINOR}.*", f"--find-links={DIST}")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.replace("torch_cgx", "torch-cgx")
    assert f"Successfully installed torch-cgx-0.1.0+torch{MINOR}\n" in said
    return environment


def ok(done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@real
def test_the_wheel_trains_on_two_ranks(installed):
    script = installed.folder / "train.py"
    script.write_text(TRAIN)
    said = ok(installed.run([*TORCHRUN, "--nproc-per-node", "2", str(script)]))
    assert "cgx: compressing 1 of 2 parameters" in said


@real
def test_doctor_finds_all_of_the_wheel(installed):
    done = installed.run(["cgx", "doctor", "--json"])
    said = ok(done)
    text = json.dumps(json.loads(done.stdout))
    assert f"a wheel, torch{MINOR}; built for torch {MINOR}" in text
    assert "built for Open MPI and MPICH" in text
    assert str(installed.site) in text and str(ROOT) + "/torch_cgx" not in said
    done = installed.run(
        [
            "python",
            "-c",
            "from torch_cgx.cli.doctor.software import *;"
            "print(check_kernels(PACKAGE, False).found)",
        ]
    )
    assert "built with the package (_kernels.fatbin)" in ok(done)
    done = installed.run([*TORCHRUN, "--nproc-per-node", "2", "--no-python", "cgx", "doctor"])
    assert "PROBLEM" not in ok(done)


@real
@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(installed):
    examples = installed.folder / "examples"
    shutil.copytree(ROOT / "examples", examples)
    command = ["python", str(examples / "demo.py"), "--no-hosts", "--bits", "4"]
    said = ok(installed.run(command, timeout=300))
    assert "4 bits: " in said and "times fewer bytes on the wire" in said
    assert (installed.folder / "demo.png").stat().st_size > 10_000


@real
@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_the_mpi_module_loads_with_pips_library(installed, kind):
    prefix = os.environ.get(f"CGX_TEST_{kind.upper()}")
    if not prefix:
        pytest.skip(f"CGX_TEST_{kind.upper()} does not name an environment with that MPI")
    environment = Environment(installed.folder.parent / kind, PACKAGES[:4])
    (wheel,) = DIST.glob(f"torch_cgx-*torch{MINOR}-{TAG}-*.whl")
    ok(environment.pip("install", str(wheel)))
    for package in (kind, "mpi4py"):
        environment.copy_from(Path(prefix), package)
    compiler = environment.folder / "bin/mpicc"
    compiler.unlink()  # it came with the library
    script = environment.folder / "mpi.py"
    script.write_text(
        "import torch, torch.distributed as dist, torch_cgx\n"
        "dist.init_process_group('cgx', init_method='env://')\n"
        "x = torch.ones(1000) * (dist.get_rank() + 1); dist.all_reduce(x)\n"
        "assert x.eq(3).all(); print('sum', dist.get_world_size(), torch_cgx.__file__)\n"
        "dist.destroy_process_group()\n"
    )
    options = ["--allow-run-as-root", "--oversubscribe"] if kind == "openmpi" else []
    done = environment.run(
        ["mpirun", *options, "-np", "2", str(environment.python), str(script)],
        CGX_INNER_COMMUNICATOR_TYPE="MPI",
        CGX_LOG="info",
    )
    said = ok(done)
    assert said.count("sum 2") == 2 and str(environment.site) in said


@real
def test_with_another_torch_the_import_says_which_wheel_to_take(installed):
    """As after --no-deps: the torch of the test says that it is another one."""
    script = "import torch; torch.__version__ = '2.12.1'\nimport torch_cgx\ntorch_cgx.Options\n"
    done = installed.run(["python", "-c", script], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 1
    assert (
        f"ImportError: this wheel of torch_cgx is for torch {MINOR}, and torch 2.12.1"
        in done.stderr
    )
