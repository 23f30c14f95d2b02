"""The MPI carrier over real libraries: ranks are processes started by mpirun, of Open MPI and of
MPICH.

CGX_TEST_OPENMPI and CGX_TEST_MPICH name the environments (prefixes of a venv with torch, numpy,
mpi4py and that library's mpirun) to use; without them it is that of this process, if it has the
library.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import torch_cgx
from tests.distributed import ROOT
from torch_cgx import _mpi_loader

START_SECONDS = 60.0  # for torch on a busy machine


@dataclasses.dataclass
class Library:
    """An MPI library to test with."""

    kind: str
    mpirun: str
    python: str

    def environment(self) -> dict[str, str]:
        package = str(Path(torch_cgx.__file__).resolve().parent.parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(self.mpirun).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([package, str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            # Open MPI: more ranks than cores, and containers where everybody is root.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }

    def run(
        self,
        job: str,
        folder: Path,
        size: int,
        seconds: float = 60,
        launch: bool = True,
        **env: str,
    ) -> Job:
        """Runs a job of mpi_jobs.py; `launch` False: as processes of their own."""
        folder = folder / job
        folder.mkdir()
        python = [self.python, "-m", "tests.comm.mpi_jobs", job, str(folder)]
        started = time.monotonic()
        process = subprocess.Popen(
            [self.mpirun, "-np", str(size), *python] if launch else python,
            cwd=ROOT,
            env={**self.environment(), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            log, _ = process.communicate(timeout=seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # so that mpirun ends its ranks
            try:
                log, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                log, _ = process.communicate()
            pytest.fail(f"{job} over {self.kind} hangs; its output:\n{log[-5000:]}")
        results = [folder / f"result-{rank}" for rank in range(size)]
        values = [json.loads(path.read_text()) if path.exists() else None for path in results]
        return Job(process.returncode, values, log, time.monotonic() - started)


@dataclasses.dataclass
class Job:
    status: int
    values: list[Any]  # by rank; None where it did not get to its end
    log: str
    seconds: float

    def good(self) -> list[Any]:
        assert self.status == 0, self.log[-5000:]
        return self.values


@functools.cache
def find(kind: str) -> Library | str:
    """The library, or why it is not there."""
    title = _mpi_loader.TITLES[kind]
    variable = f"CGX_TEST_{kind.upper()}"
    prefix = os.environ.get(variable)
    python = str(Path(prefix) / "bin/python") if prefix else sys.executable
    beside = [Path(python).parent / "mpirun"]
    if not prefix and (found := shutil.which("mpirun")):
        beside.append(Path(found))
    for mpirun in beside:
        if not mpirun.exists():
            continue
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
        if kind == ("openmpi" if "Open MPI" in said or "open-mpi" in said else "mpich"):
            break
    else:
        return (
            f"{title} is not here: `pip install {kind} mpi4py`, or set {variable} to the prefix of "
            "an environment that has it"
        )
    if kind not in _mpi_loader.built():
        return f"torch_cgx was built without {title}: build it with CGX_MPICC={mpirun.parent}/mpicc"
    return Library(kind, str(mpirun), python)


@pytest.fixture(params=list(_mpi_loader.TITLES), scope="module")
def library(request: pytest.FixtureRequest) -> Library:
    found = find(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def mpi4py(library: Library) -> None:
    test = [library.python, "-c", "import mpi4py"]
    if subprocess.run(test, capture_output=True).returncode != 0:
        pytest.skip(f"mpi4py is not installed for {library.python}: `pip install mpi4py`")


def numbers(values: Any) -> list[int]:
    """All of them; anything else among them is an error of the job."""
    found = values.values() if isinstance(values, dict) else values
    assert all(isinstance(value, int) and value > 0 for value in found), values
    return list(found)


@pytest.mark.parametrize("size", [2, 4])
def test_random_exchanges(library: Library, tmp_path: Path, size: int) -> None:
    for value in library.run("stress", tmp_path, size).good():
        assert len(numbers(value)) == 3


@pytest.mark.parametrize("job", ["overlapping_groups", "groups_made_by_threads"])
def test_overlapping_groups_in_threads(library: Library, tmp_path: Path, job: str) -> None:
    values = library.run(job, tmp_path, 4).good()
    assert [len(numbers(value)) for value in values] == [4, 5, 5, 4]


@pytest.mark.parametrize("count", [60, pytest.param(2500, marks=pytest.mark.slow)])
def test_many_groups(library: Library, tmp_path: Path, count: int) -> None:
    job = library.run("many_groups", tmp_path, 2, seconds=200, CGX_TEST_GROUPS=str(count))
    assert job.good() == [count, count]


@pytest.mark.usefixtures("mpi4py")
@pytest.mark.parametrize("job", ["mpi4py_before", "mpi4py_after"])
def test_mpi_is_shared_with_mpi4py(library: Library, tmp_path: Path, job: str) -> None:
    assert library.run(job, tmp_path, 3).good() == [[6, True, 6]] * 3


@pytest.mark.usefixtures("mpi4py")
def test_mpi4py_at_the_same_time(library: Library, tmp_path: Path) -> None:
    assert library.run("mpi4py_at_the_same_time", tmp_path, 3).good() == [[True, True]] * 3


@pytest.mark.usefixtures("mpi4py")
def test_mpi4py_finalizes_first(library: Library, tmp_path: Path) -> None:
    for waited, sent, made in library.run("mpi4py_finalizes", tmp_path, 2).good():
        assert waited.startswith("AbortedError") and "finalised" in waited
        assert sent.startswith("AbortedError") and "finalised" in sent
        assert made.startswith("ValueError: MPI has been finalised")


@pytest.mark.usefixtures("mpi4py")
def test_a_low_thread_level_is_an_error(library: Library, tmp_path: Path) -> None:
    for said in library.run("low_thread_level", tmp_path, 2).good():
        assert said.startswith(
            "ValueError: MPI was initialised with thread level MPI_THREAD_SERIAL"
        )
        assert "mpi4py.rc.thread_level" in said


def test_a_process_without_mpirun_is_a_world_of_one(library: Library, tmp_path: Path) -> None:
    job = library.run("stress", tmp_path, 1, launch=False)
    assert job.good() == [[0, 0, 0]]


def test_processes_without_mpirun_are_told_how_to_start(library: Library, tmp_path: Path) -> None:
    script = (
        "import sys, torch.distributed as dist\n"
        "from torch_cgx import _C, _mpi_loader\n"
        "store = dist.FileStore(sys.argv[1], 2)\n"
        "_C._make_mpi_endpoint(_mpi_loader.load(), store, int(sys.argv[2]), 2)\n"
    )
    ranks = [
        subprocess.Popen(
            [library.python, "-c", script, str(tmp_path / "store"), str(rank)],
            env=library.environment(),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, log = rank.communicate(timeout=START_SECONDS)
        assert rank.returncode == 1
        assert "ValueError: MPI, rank" in log and "mpirun -np N python" in log
        assert "Sizes of their MPI_COMM_WORLD: ranks 0, 1: 1" in log


def test_deadline_and_abort(library: Library, tmp_path: Path) -> None:
    first, *others = library.run("deadline", tmp_path, 3).good()
    assert first[0].startswith("TimeoutError: MPI, rank 0") and first[1] < 5
    for said, seconds in others:
        assert said.startswith("AbortedError") and "aborted by rank 0: TimeoutError" in said
        assert seconds < 5


@pytest.mark.usefixtures("mpi4py")
def test_a_member_that_does_not_come(library: Library, tmp_path: Path) -> None:
    job = library.run("nobody_comes", tmp_path, 2)
    said, seconds = job.values[0]
    assert said.startswith("TimeoutError: MPI_Comm_create_group over the ranks 0, 1")
    assert seconds < 10 and job.seconds < START_SECONDS


def test_ranks_that_do_not_initialise(library: Library, tmp_path: Path) -> None:
    job = library.run("init_of_some", tmp_path, 3)
    for said in job.values[:2]:
        assert said.startswith("TimeoutError: MPI_Init_thread") or said == "returned <_Mpi", said
    assert job.seconds < START_SECONDS


def test_transfers_under_way_at_the_end(library: Library, tmp_path: Path) -> None:
    job = library.run("left_pending", tmp_path, 2, seconds=30)
    assert job.good() == ["at the end"] * 2
    assert job.seconds < START_SECONDS


@pytest.mark.parametrize("job", ["exception", "exception_under_mpi4py", "killed"])
def test_the_end_of_a_rank_ends_the_job(library: Library, tmp_path: Path, job: str) -> None:
    if "mpi4py" in job and not hasattr(library, "x"):
        pytest.importorskip
    done = library.run(job, tmp_path, 3, seconds=30)
    assert done.status != 0
    assert job == "killed" or "rank one is unwell" in done.log
    assert done.values[1] is None
    assert done.seconds < 40  # not the 100 s of the others' receives


def test_waiting_costs_little(library: Library, tmp_path: Path) -> None:
    for pending, idle in library.run("idle", tmp_path, 2).good():
        assert pending < 0.6 and idle < 0.2  # of 2 s


def test_a_forked_child_is_refused(library: Library, tmp_path: Path) -> None:
    for said, checked in library.run("forked", tmp_path, 2).good():
        assert said.startswith("CgxError") and "parent of this process" in said
        assert checked > 0
