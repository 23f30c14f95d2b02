"""The MPI communicator over real libraries: ranks are processes started by mpirun, of Open MPI and
of MPICH.

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
from tests import warm
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
        jobs: str,
        folder: Path,
        size: int,
        seconds: float = 60,
        launch: bool = True,
        **env: str,
    ) -> Job:
        """Runs jobs of mpi_jobs.py, one after the other in the same processes; `launch` False:
        without mpirun.
        """
        names = jobs.split()
        python = [*warm.python(self.python), "-m", "tests.comm.mpi_jobs", str(folder), *names]
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
            pytest.fail(f"{jobs} over {self.kind} hangs; its output:\n{log[-5000:]}")
        values: dict[str, list[Any]] = {}
        for name in names:
            files = [folder / f"{name}-{rank}.json" for rank in range(size)]
            values[name] = [json.loads(f.read_text()) if f.exists() else None for f in files]
        return Job(process.returncode, values, log, time.monotonic() - started)


@dataclasses.dataclass
class Job:
    status: int
    values: dict[str, list[Any]]  # of each job, by rank; None for a rank that did not end it
    log: str
    seconds: float

    def good(self, name: str) -> list[Any]:
        assert self.status == 0, self.log[-5000:]
        return self.values[name]


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


@pytest.fixture(scope="module")
def together(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Jobs that leave everything in order, on four ranks that are started once."""
    jobs = "stress overlapping_groups groups_made_by_threads many_groups idle forked late"
    folder = tmp_path_factory.mktemp(library.kind)
    return library.run(jobs, folder, 4, seconds=120, CGX_TEST_GROUPS="60")


def test_random_exchanges(together: Job) -> None:
    for value in together.good("stress"):
        assert len(numbers(value)) == 3


@pytest.mark.parametrize("job", ["overlapping_groups", "groups_made_by_threads"])
def test_overlapping_groups_in_threads(together: Job, job: str) -> None:
    assert [len(numbers(value)) for value in together.good(job)] == [4, 5, 5, 4]


def test_many_groups(together: Job) -> None:
    assert together.good("many_groups") == [60] * 4


def test_waiting_costs_little(together: Job) -> None:
    for pending, idle in together.good("idle"):
        assert pending < 0.6 and idle < 0.3  # of 2 s


def test_a_forked_child_is_refused(together: Job) -> None:
    for said, checked in together.good("forked"):
        assert said.startswith("CgxError") and "parent of this process" in said
        assert checked > 0


def test_ranks_that_end_early_wait_for_the_others(together: Job) -> None:
    assert together.good("late") == [0, 1, 2, 3]


@pytest.mark.slow
def test_more_groups_than_communicators(library: Library, tmp_path: Path) -> None:
    groups = 2100 if library.kind == "mpich" else 500  # MPICH has 2048 communicators at most
    job = library.run("many_groups", tmp_path, 2, seconds=200, CGX_TEST_GROUPS=str(groups))
    assert job.good("many_groups") == [groups] * 2


@pytest.mark.usefixtures("mpi4py")
@pytest.mark.parametrize("first", ["mpi4py_before", "mpi4py_after"])
def test_mpi_is_shared_with_mpi4py(library: Library, tmp_path: Path, first: str) -> None:
    job = library.run(f"{first} mpi4py_at_the_same_time", tmp_path, 3)
    assert job.good(first) == [[6, True, 6]] * 3
    assert job.good("mpi4py_at_the_same_time") == [[True, True]] * 3


@pytest.mark.usefixtures("mpi4py")
def test_mpi4py_finalizes_first(library: Library, tmp_path: Path) -> None:
    job = library.run("mpi4py_finalizes", tmp_path, 2)
    for waited, sent, made in job.good("mpi4py_finalizes"):
        assert waited.startswith("AbortedError") and "finalised" in waited
        assert sent.startswith("AbortedError") and "finalised" in sent
        assert made.startswith("ValueError: MPI has been finalised")


@pytest.mark.usefixtures("mpi4py")
def test_mpi4py_finalizes_amid_calls(library: Library, tmp_path: Path) -> None:
    # MPICH aborts in MPI_Finalize if any thread is inside MPI when it begins.
    name = "mpi4py_finalizes_amid_calls"
    for said in library.run(name, tmp_path, 2).good(name):
        assert len(said) == 2
        assert all(one.startswith("AbortedError") and "finalised" in one for one in said)


@pytest.mark.usefixtures("mpi4py")
def test_a_low_thread_level_is_an_error(library: Library, tmp_path: Path) -> None:
    for said in library.run("low_thread_level", tmp_path, 2).good("low_thread_level"):
        assert said.startswith(
            "ValueError: MPI was initialised with thread level MPI_THREAD_SERIAL"
        )
        assert "mpi4py.rc.thread_level" in said


def test_the_error_without_mpirun_says_how_to_start(library: Library, tmp_path: Path) -> None:
    script = (
        "import sys, torch.distributed as dist\n"
        "from tests.comm.mpi_endpoint import make_mpi_endpoint\n"
        "from torch_cgx import _mpi_loader\n"
        "store = dist.FileStore(sys.argv[1], 2)\n"
        "make_mpi_endpoint(_mpi_loader.load(), store, int(sys.argv[2]), 2)\n"
    )
    ranks = [
        subprocess.Popen(
            [*warm.python(library.python), "-c", script, str(tmp_path / "store"), str(rank)],
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
    first, *others = library.run("deadline", tmp_path, 3).good("deadline")
    assert first[0].startswith("TimeoutError: MPI, rank 0") and first[1] < 5
    for said, seconds in others:
        assert said.startswith("AbortedError") and "aborted by rank 0: TimeoutError" in said
        assert seconds < 5


@pytest.mark.usefixtures("mpi4py")
def test_a_member_that_does_not_come(library: Library, tmp_path: Path) -> None:
    job = library.run("nobody_comes", tmp_path, 2)  # ends, in whatever way its launcher sees it
    said, seconds = job.values["nobody_comes"][0]
    assert said.startswith("TimeoutError: MPI_Comm_create_group over the ranks 0, 1")
    assert seconds < 10


def test_ranks_that_do_not_initialise(library: Library, tmp_path: Path) -> None:
    said, _ = library.run("init_of_some", tmp_path, 2).values["init_of_some"]
    assert said.startswith("TimeoutError: MPI_Init_thread") and "every rank of the MPI" in said


def test_transfers_under_way_at_the_end(library: Library, tmp_path: Path) -> None:
    job = library.run("left_pending", tmp_path, 2)
    assert job.good("left_pending") == ["at the end"] * 2


@pytest.mark.usefixtures("mpi4py")
@pytest.mark.parametrize("name", ["exception", "exception_under_mpi4py", "killed"])
def test_the_end_of_a_rank_ends_the_job(library: Library, tmp_path: Path, name: str) -> None:
    job = library.run(name, tmp_path, 3, seconds=30)
    assert job.status != 0
    assert name == "killed" or "rank one is unwell" in job.log
    assert job.values[name][1] is None
    assert job.seconds < 30 + START_SECONDS / 2  # the others' receives have 100 s
