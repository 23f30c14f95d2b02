"""The batch script of SLURM, with an srun of our own: two ranks train, and a job that SLURM queues
again goes on from its checkpoint.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.recipes import fake_slurm
from tests.recipes.running import RECIPES, Finished, needs_recipes, python, run, write_commands

pytestmark = [needs_recipes, pytest.mark.slow]

SCRIPT = RECIPES / "slurm.sh"
LINE = (
    r"rank (\d) of 2: steps (\d+) to (\d+), loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)


@pytest.fixture
def folder(tmp_path):
    """A shared folder with the recipe, and a PATH with srun and the recipes' python."""
    for name in ("train.py", "toy.py", "slurm.sh"):
        (tmp_path / name).write_bytes((RECIPES / name).read_bytes())
    srun = tmp_path / "bin" / "srun"
    write_commands(srun.parent, python())
    srun.write_text(f'#!/bin/sh\nexec {python()} -P {fake_slurm.__file__} "$@"\n')
    srun.chmod(0o755)
    return tmp_path


def _submit(folder: Path, *arguments: str, status: int | None = 0) -> Finished:
    """sbatch slurm.sh ARGUMENTS: the script is copied elsewhere, and starts on the first node."""
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    copy = spool / "slurm_script"
    copy.write_bytes((folder / "slurm.sh").read_bytes())
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = {**fake_slurm.job(copy.read_text(), str(folder)), "PATH": path}
    env["OMP_WAIT_POLICY"] = (
        "PASSIVE"  # the script asks for 4 threads a rank: perhaps too many here
    )
    return run(["bash", str(copy), *arguments], env=env, status=status, seconds=300)


def _check(finished: Finished, first: int, last: int) -> str:
    found = sorted(re.findall(LINE, finished.output))
    assert [one[:3] for one in found] == [
        (str(rank), str(first), str(last)) for rank in range(2)
    ], finished.output
    assert found[0][5] == found[1][5], "weights differ between ranks"
    for *_, sent, raw in found:
        assert 0 < int(sent) < int(raw) / 5
    return found[0][5]


def test_two_ranks_train(folder):
    finished = _submit(folder)
    _check(finished, 0, 39)
    assert (folder / "last.pt").exists()


def test_a_job_that_is_queued_again_goes_on(folder):
    whole = _check(_submit(folder), 0, 39)
    (folder / "last.pt").unlink()
    _check(_submit(folder, "--steps", "20"), 0, 19)
    assert _check(_submit(folder), 20, 39) == whole


def test_a_rank_that_fails_ends_the_job(folder):
    script = folder / "train.py"
    failing = 'if rank == 1 and step == 5:\n            raise SystemExit("rank 1 fails")'
    text = script.read_text().replace(
        "        x, labels = batch(rank, step)",
        f"        {failing}\n        x, labels = batch(rank, step)",
    )
    assert failing in text
    script.write_text(text)
    finished = _submit(folder, status=None)
    assert "rank 1 fails" in finished.output
    assert finished.matches(r"srun: error: (a task ended)")
    assert not re.search(LINE, finished.output)


def test_the_lines_of_sbatch_ask_for_what_is_started():
    job = fake_slurm.job(SCRIPT.read_text(), "/shared")
    assert (job["SLURM_JOB_NUM_NODES"], job["SLURM_NTASKS"]) == ("2", "2")
    assert job["SLURM_CPUS_PER_TASK"] == "4"
    tasks = fake_slurm.tasks(job)
    assert [task["SLURM_PROCID"] for task in tasks] == ["0", "1"]
    assert len({task["SLURMD_NODENAME"] for task in tasks}) == 2


@pytest.mark.parametrize(
    "old, new, error",
    [
        ("--nodes=2", "--node=2", "unrecognized arguments: --node=2"),
        ("--nodes=2", "--nodes=two", "--nodes: invalid int value: 'two'"),
        ("--open-mode=append", "--open-mode=keep", "invalid choice: 'keep'"),
    ],
)
def test_a_wrong_line_of_sbatch_is_found(old, new, error):
    worse = SCRIPT.read_text().replace(f"#SBATCH {old}", f"#SBATCH {new}")
    with pytest.raises(ValueError, match=re.escape(error)):
        fake_slurm.job(worse, "/shared")


def test_without_sbatch_the_script_says_what_to_do():
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(["bash", SCRIPT], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert "submit this script: sbatch slurm.sh" in done.stderr
