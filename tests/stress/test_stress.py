"""The stress program itself: a run passes, a seed replays, and what is wrong is seen."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

import tests.stress.board
from tests import warm
from tests.conformance.catalogue import CATALOGUE
from tests.distributed import ROOT, run_pooled
from tests.stress import judge, program
from tests.stress.board import Board
from tests.stress.driver import Lane, Totals
from tests.stress.held import Usual
from tests.stress.worker import Failure, Report


def stress(*arguments: str) -> tuple[int, str]:
    command = [*warm.python(), "-m", "tests.stress", "--no-leaks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_short_run_passes_and_counts():
    status, output = stress("--seed", "11", "--episodes", "8", "--minutes", "2")
    assert status == 0, output
    summary, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])
    assert summary["seed"] == 11 and summary["violations"] == 0
    assert sum(summary["episodes"].values()) == 8
    assert summary["collectives"] > 100 and summary["compared"] > 50 and summary["kills"] > 0


def quiet_episode(seed: int) -> int:
    """One without a fault, in which several ranks compare something."""
    for number in range(1000):
        episode = program.draw(seed, number)
        calls = [c for s in episode.steps for c in s.calls if c.group == 0 and c.numel > 100]
        if episode.fault == "none" and episode.size == 2 and len(calls) > 3:
            return number
    raise AssertionError("no such episode")


def test_a_wrong_value_is_found_and_reported():
    number = str(quiet_episode(1))
    status, output = stress("--seed", "1", "--episode", number, "--sabotage", "bits")
    assert status == 1
    assert "ranks hold different bits" in output
    assert "times what is allowed" in output or "not equal to the exact result" in output
    assert f"--seed 1 --episode {number}" in output and "its last steps" in output


def test_a_rank_that_ends_by_itself_is_found():
    number = str(quiet_episode(1))
    status, output = stress("--seed", "1", "--episode", number, "--sabotage", "exit")
    assert status == 1
    assert "rank 0 ended with status 3, which nothing explains" in output
    assert "an error without a cause: rank 1" in output


def test_a_seed_is_a_program():
    assert program.draw(3, 14) == program.draw(3, 14)
    assert program.draw(3, 14) != program.draw(3, 15) != program.draw(4, 15)
    episodes = [program.draw(0, number) for number in range(400)]
    assert {episode.fault for episode in episodes} == set(program.FAULTS)
    calls = [call for e in episodes for step in e.steps for call in step.calls]
    assert {call.kind for call in calls} == {*program.ENGINE, program.EXACT}
    drawn = {call.case.op for call in calls if call.case}
    assert drawn == set(CATALOGUE)
    assert all(2 <= episode.size <= 6 for episode in episodes)
    assert max(c.numel for e in episodes for s in e.steps for c in s.calls) > program.LARGEST // 2


def test_the_place_of_a_rank_is_whole_whenever_it_is_read():
    """A rank that was killed while it wrote its place once seemed to have never come to step 1."""
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        step = 0
        while True:
            step += 1
            board.write(1, step, "start", step, step)
    try:
        for _ in range(100_000):
            place = board.read(1)
            assert place.step == place.call == place.started, place
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert place.step > 1000


@pytest.mark.parametrize("rows", [1, 2, 255, 256, 257, 512, 65536])
def test_a_place_is_read_again_when_rows_were_written_meanwhile(rows, monkeypatch):
    """A count of one byte came round after 256 rows, and half a row passed for a whole one."""
    board = Board(2)
    board.write(1, 0, "start", 0, 0)
    row = tests.stress.board._ROW

    class Interrupted:
        """Reads the first half of a row; the writer goes on before the second half."""

        pack_into, size = row.pack_into, row.size
        left = rows

        def unpack_from(self, memory, at):
            first = row.unpack_from(memory, at)[:2]
            for step in range(1, self.left + 1):
                board.write(1, step, "wait", step, step)
            self.left = 0
            return first + row.unpack_from(memory, at)[2:]

    monkeypatch.setattr(tests.stress.board, "_ROW", Interrupted())
    place = board.read(1)
    assert (place.step, place.phase, place.call, place.started) == (rows, "wait", rows, rows)


def torch_refuses(rank: int, world_size: int, backend: str) -> str:
    """Two groups of rank 0 alone, made by it alone, with a destroyed one in between."""
    other = dist.new_group([0], backend=backend)
    dist.new_group([0], backend=backend, use_local_synchronization=True)
    dist.destroy_process_group(other)
    with pytest.raises(ValueError) as refused:
        dist.new_group([0], backend=backend, use_local_synchronization=True)
    return str(refused.value)


def test_no_local_group_is_drawn_whose_name_torch_has_given_to_another_one():
    """A rule of torch's, which is the same for its own backends: two groups of one life must not
    have the same ranks, made while their ranks were in equally many groups.
    """
    for backend in ("gloo", "cgx"):
        assert "already been created" in run_pooled(torch_refuses, 1, backend)[0], backend
    refused = 0
    for number in range(400):
        episode = program.draw(20261122, number)
        live = {program.WORLD: (tuple(range(episode.size)), 0, False)}
        for step in episode.steps:
            if step.kind == "destroy":
                live.pop(step.group)
            if step.kind != "group":
                continue
            counts = [sum(r in m for m, _, _ in live.values()) for r in step.members]
            mine = (step.members, counts[0], True)
            taken = mine in live.values()
            if step.local:
                assert len(set(counts)) == 1 and not taken, (number, step)
            refused += taken
            live[step.group] = (*mine[:2], step.local)
    assert refused > 0  # the rule was needed


@pytest.mark.parametrize("gone_after", [0.0, 0.3, 4.0, 60.0])
def test_what_goes_away_in_time_is_not_left_over(gone_after):
    # A thread that was joined is among the tasks of its process until the kernel has ended it.
    now, alone = [0.0], {"fds": 5, "threads": 1}
    ends = [0.0]

    def look():
        return {"fds": 5, "threads": 2} if now[0] < ends[0] else alone

    def names():
        return ["python"] * look()["threads"]

    def sleep(seconds):
        now[0] += seconds

    usual = Usual(look, names, lambda: now[0], sleep)
    assert usual.left() == (alone, ["python"]) and usual.held == alone
    assert now[0] < 0.1
    now[0], ends[0] = 0.0, gone_after
    left, threads = usual.left()
    assert usual.held == alone
    assert (left == alone) == (gone_after < Usual.PATIENCE) and len(threads) == left["threads"]


def test_the_loop_of_gloo_may_come_later_than_the_first_episode_and_once():
    held = [{"fds": 5, "threads": 1}, {"fds": 8, "threads": 2}, {"fds": 11, "threads": 3}]
    turn, now = [0], [0.0]
    usual = Usual(
        lambda: held[turn[0]],
        lambda: ["gloo_tcp_loop"] * turn[0] + ["python"],
        lambda: now[0],
        lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    for turn[0], allowed in ((0, 0), (1, 1), (2, 1), (0, 1)):
        assert usual.left()[0] == held[turn[0]] and usual.held == held[allowed]


@pytest.mark.parametrize("communicator", ["GLOO", "SHM"])
@pytest.mark.parametrize("came", [9.9, 10.2, 14.0])
def test_over_gloo_a_death_is_noticed_when_a_rank_that_lives_has_come(communicator, came):
    """Rank 0 dies at 10; rank 2 waits for rank 1, which comes at `came`, and raises at 14.1."""
    episode = SimpleNamespace(
        fault="kill",
        hosts=None,
        settings={"inner_communicator": communicator},
        steps=(),
        groups_at=lambda step: {0: (0, 1, 2)},
    )

    def rank(number, entered, raised):
        failure = Failure(0, 0, "wait", 0, True, "PeerLostError", "gone", entered, raised)
        report = Report(number, failure=failure, left={"shared blocks": 0}, gone=raised)
        return judge.Rank(report, None, None)

    waits = rank(2, 9.5, 14.1)
    ranks = [judge.Rank(None, signal.SIGKILL, None), rank(1, came, 14.2), waits]
    verdict = judge.Verdict()
    judge._judge_failure(episode, 2, waits.report.failure, ranks, {0: 10.0}, verdict)
    assert bool(verdict.violations) == (communicator == "SHM" or came < 14)


class KilledLate(Lane):
    """Whose victim gets its signal after its report."""

    async def _fault(self, episode, first, times):
        pass

    async def _follow(self, process, rank, episode, first, times):
        report = await super()._follow(process, rank, episode, first, times)
        if rank in episode.victims:
            os.kill(process.pid, signal.SIGKILL)
            times[rank] = time.monotonic()
        return report


def test_who_is_killed_after_its_report_takes_no_part_in_the_next_episode():
    numbers = range(200)
    kill = next(n for n in numbers if program.draw(5, n).fault == "kill")
    plain = next(n for n in numbers if (e := program.draw(5, n)).fault == "none" and not e.fresh)
    totals = Totals()
    lane = KilledLate(0, 5, totals, "", False)
    try:
        for number in (kill, plain):
            asyncio.run(lane.run(number))
            alive = [process.pid for process in lane.processes]
            assert len(alive) == program.draw(5, number).size - (number == kill)
    finally:
        lane.close()
    assert not totals.violations, totals.violations


def test_the_time_to_notice_counts_from_the_end_of_the_process():
    """The signal is sent at 10; what the kernel takes to end the process is not the engine's."""
    episode = SimpleNamespace(
        fault="kill",
        hosts=None,
        settings={"inner_communicator": "SHM"},
        steps=(),
        groups_at=lambda step: {0: (0, 1)},
    )
    failure = Failure(0, 0, "wait", 0, True, "PeerLostError", "gone", 9.0, 13.0)
    waits = judge.Rank(Report(1, failure=failure, left={"shared blocks": 0}, gone=13.0), None, None)
    for ended, seconds in ((None, 3.0), (10.5, 2.5), (11.5, 1.5), (13.1, 0.0)):
        ranks = [judge.Rank(None, signal.SIGKILL, None, ended), waits]
        verdict = judge.judge(episode, ranks, {0: 10.0})
        assert verdict.notices["death, shm"] == seconds
        assert bool(verdict.violations) == (seconds > judge.SAME_HOST)
