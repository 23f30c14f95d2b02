"""The recipe for torchrun on two hosts: a rank or a host fails once, and the training goes on from
its checkpoint to the weights that it would have had.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import pytest
import torch

from tests.hosts.marks import needs_hosts
from tests.recipes.on_hosts import Job, check_ranks, commands
from tests.recipes.running import RECIPES, needs_recipes, write_commands
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.watchdog import pids_inside

pytestmark = [needs_recipes, needs_hosts, pytest.mark.slow]

STEPS = 1000  # takes some seconds, so that a rank can be killed amid them


def _start(job: Job, host: int) -> None:
    meeting = f"{job.bed.names[0]}:29400"
    script = [str(RECIPES / "train.py"), "--steps", str(STEPS), "--checkpoint", "last.pt"]
    tools = job.folder / "bin"
    variables = write_commands(tools, sys.executable)
    path = f"{tools}:{job.env['PATH']}"
    command = [str(RECIPES / "torchrun.sh"), meeting, *script]
    job.start(host, command, RESTARTS="1", PATH=path, **variables)


def _wait_for_checkpoint(job: Job) -> int:
    """The step of a checkpoint that is there."""
    file = job.folder / "last.pt"
    job.wait_until(file.exists)
    return int(torch.load(file, weights_only=True)["step"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights after all steps without a failure."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with hosts(2) as bed, commands(bed, folder, []) as job:
        for host in range(2):
            _start(job, host)
        assert job.finish(180) == [0, 0], job.output()
        first, weights = check_ranks(job.output(), 2, STEPS - 1)
        assert first == 0 and job.left() == []
    return weights


@pytest.mark.parametrize("victim", [0, 1])
def test_after_a_rank_is_killed_all_go_on_from_the_checkpoint(tmp_path, undisturbed, victim):
    with hosts(2) as bed, commands(bed, tmp_path, []) as job:
        for host in range(2):
            _start(job, host)
        seen = _wait_for_checkpoint(job)
        before = job.ranks()
        assert sorted(before) == [0, 1]
        os.kill(before[victim], signal.SIGKILL)
        job.wait_until(lambda: len(set(job.ranks().values()) - set(before.values())) == 2)
        assert job.finish(180) == [0, 0], job.output()
        first, weights = check_ranks(job.output(), 2, STEPS - 1)
        assert seen < first < STEPS and first % 10 == 0
        assert weights == undisturbed
        assert job.left() == []


def test_a_host_that_fails_comes_back_with_the_same_line(tmp_path, undisturbed):
    with hosts(2) as bed, commands(bed, tmp_path, []) as job:
        for host in range(2):
            _start(job, host)
        seen = _wait_for_checkpoint(job)
        for pid in pids_inside([bed.names[1]]):
            with contextlib.suppress(ProcessLookupError):  # it has ended with one before it
                os.kill(pid, signal.SIGKILL)
        job.started[1][0].wait()
        _start(job, 1)
        assert job.finish(180) == [0, -signal.SIGKILL, 0], job.output()
        first, weights = check_ranks(job.output(), 2, STEPS - 1)
        assert seen < first < STEPS and first % 10 == 0
        assert weights == undisturbed
        assert job.left() == []


def test_a_rank_that_always_fails_ends_the_job(tmp_path):
    with hosts(2) as bed, commands(bed, tmp_path, []) as job:
        (tmp_path / "last.pt").write_bytes(b"no checkpoint")
        for host in range(2):
            _start(job, host)
        statuses = job.finish(180)
        assert 0 not in statuses, job.output()
        assert job.left() == []
