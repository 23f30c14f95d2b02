"""Whole jobs under the mpirun of Open MPI and of MPICH, without torchrun.

They need an mpirun with mpi4py: see `mpi_installation` of tests/hosts/marks.py.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import mpi_installation, needs_hosts
from tests.ports import free_port
from torch_cgx import launch
from torch_cgx.testbed.bed import hosts

KINDS = ["openmpi", "mpich"]


def _prefix(kind):
    prefix = mpi_installation(kind)
    # An environment may take packages from another one.
    look = (
        "from importlib.util import find_spec; "
        "print([name for name in ('mpi4py', 'torch') if not find_spec(name)])"
    )
    found = subprocess.run(
        [prefix / "bin" / "python", "-c", look], capture_output=True, text=True, timeout=60
    )
    if found.stdout.strip() != "[]":
        pytest.skip(f"{prefix} lacks {found.stdout.strip() or found.stderr}")
    return prefix


def _environment(**changes):
    strange = ("OMPI_", "PMI", "MPI_", "SLURM", "MASTER_", "LOCAL_", "GLOO_SOCKET")
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in launch.NEEDED and not name.startswith(strange)
    }
    return env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **changes}


def mpirun(kind, ranks, *command, python=None, started=False, prelude="", timeout=90, **changes):
    """`started`: a Python that imports torch itself, for what happens there; else a warm start."""
    prefix = _prefix(kind)
    line = [str(prefix / "bin" / "mpirun"), "-np", str(ranks)]
    if kind == "openmpi":
        line[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    program = str((python or prefix) / "bin" / "python")
    line += [program] if started else warm.python(program, prelude)
    line += map(str, command)
    env = _environment(**changes)
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=timeout)


# No `import torch_cgx`: the entry point has to do it.
_TWO_GROUPS = """
import os, sys
import torch, torch.distributed as dist
results = []
for backend in sys.argv[1:]:
    dist.init_process_group(backend)
    x = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    results.append(x[-1].item())
    dist.destroy_process_group()
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
said = [os.environ[name] for name in names]
sys.stdout.write(f"rank {os.environ['RANK']}: {results} {said} {'mpi4py' in sys.modules}\\n")
"""


@pytest.fixture
def installed(tmp_path):
    """A folder whose entry points are those of the installed package, and a script in it."""
    info = tmp_path / "torch_cgx-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_cgx\nVersion: 0\n")
    points = "[torch.backends]\ntorch_cgx = torch_cgx._autoload:register\n"
    (info / "entry_points.txt").write_text(points)
    script = tmp_path / "train.py"
    script.write_text(_TWO_GROUPS)
    return script, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_runs_unchanged(kind, installed):
    script, env = installed
    done = mpirun(kind, 2, script, "cgx", "gloo", "cgx", started=True, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [
        f"rank {rank}: [3.0, 3.0, 3.0] ['{rank}', '2', '2', '127.0.0.1'] True" for rank in range(2)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_meeting_point_that_is_set_needs_no_mpi(kind, installed):
    script, env = installed
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    done = mpirun(kind, 2, script, "gloo", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert lines == [f"rank {r}: [3.0] ['{r}', '2', '2', 'localhost'] False" for r in range(2)]


_FAIL = """
import os, sys, torch, torch_cgx, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("the reason")
    sys.exit(3)
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()  # nothing but an abort ends this
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("exit", 3)])
def test_a_failing_rank_ends_the_job(kind, how, status, tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(_FAIL)
    done = mpirun(kind, 2, script, how, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    assert how == "exit" or "ValueError: the reason" in done.stderr


def test_ranks_with_the_same_number_are_told():
    done = mpirun("mpich", 2, "-m", "torch_cgx.launch", RANK="0")
    assert done.returncode != 0
    assert "MPI ranks [0, 1] all have RANK 0" in done.stderr


def test_mpi4py_of_another_mpi_is_told():
    done = mpirun("mpich", 2, "-m", "torch_cgx.launch", python=_prefix("openmpi"))
    assert done.returncode != 0
    assert "started 2 ranks, but mpi4py sees a world of 1" in done.stderr
    assert "another MPI (Open MPI v" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_examples_run_under_mpirun(kind):
    script = ROOT / "examples" / "train_gpt.py"
    done = mpirun(kind, 2, script, "--backend", "cgx", "--steps", 2, "--data-mb", 0.2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend cgx, 4 bits, 2 ranks, 2 steps" in done.stdout


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_hosts(kind, installed):
    script, env = installed
    prefix = _prefix(kind)
    python, mpirun = warm.python(prefix / "bin" / "python"), prefix / "bin" / "mpirun"
    # Hosts whose own name nobody knows, and no interface named: what torch alone cannot do.
    unnamed = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'
    command = ["sh", "-c", unnamed, "sh", "nowhere", *python, str(script), "gloo", "cgx"]
    env |= {"GLOO_SOCKET_IFNAME": ""}
    with hosts(2) as bed:
        output = bed.mpirun(command, [2, 1], mpirun, env=env)
        address = bed.addresses[0]
    lines = sorted(line for line in output.splitlines() if line.startswith("rank "))
    assert lines == [
        f"rank {rank}: [6.0, 6.0] ['{rank}', '3', '{2 if rank < 2 else 1}', '{address}'] True"
        for rank in range(3)
    ], output
