"""Whether all that happened in an episode has its cause, came in time, and left nothing out."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable

from tests.stress.board import Place
from tests.stress.program import CREATION_SECONDS, SHORT_SECONDS, Episode
from tests.stress.worker import Failure, Report

# Seconds between the death of a rank and the error on another one. Promised are 1 on one host,
# whatever carries the call, and 5 elsewhere, to ranks that get a processor; here more of them run
# than there are cores. Less than the timeout of the groups, which must not be what ends the wait.
SAME_HOST, ELSEWHERE = 2.0, 7.5
# Gloo tries five times to connect to a peer, and gives each time the whole timeout.
MESH_TRIES = 5
CLOSING = 10.0  # a rank that leaves waits so long for calls that nobody has waited for
LEAVING = 3.0  # a rank that cannot make a group waits so long for the others to get the reason
SLACK = 4.0  # seconds by which a busy machine may miss a deadline
SILENT = ("none", "pause", "storm")  # faults that nobody may notice
KILLS = ("kill", "kill_two", "kill_all", "creation")

Say = Callable[[str], None]


@dataclasses.dataclass
class Rank:
    """What is known of one rank at the end. report: None if the process has ended."""

    report: Report | None
    status: int | None
    place: Place
    ended: float | None = None  # time.monotonic() before which the process cannot have ended


@dataclasses.dataclass
class Verdict:
    violations: list[str] = dataclasses.field(default_factory=list)
    # what kind of notice -> seconds, worst of the episode
    notices: dict[str, float] = dataclasses.field(default_factory=dict)
    errors: dict[str, int] = dataclasses.field(default_factory=dict)


def judge(episode: Episode, ranks: list[Rank], times: dict[int, float]) -> Verdict:
    """times: when the fault was done to (or by) each rank, time.monotonic()."""
    verdict = Verdict()
    say = verdict.violations.append
    _judge_digests(episode, ranks, say)
    for number, rank in enumerate(ranks):
        died = rank.report is None
        if died:
            killed = number in times and episode.fault in KILLS
            if not killed or rank.status != signal.SIGKILL:
                cause = os.waitstatus_to_exitcode(rank.status) if rank.status is not None else "?"
                say(f"rank {number} ended with status {cause}, which nothing explains")
            continue
        assert rank.report is not None
        for text in rank.report.wrong:
            say(f"rank {number}: {text}")
        if rank.report.failure is not None:
            _judge_failure(episode, number, rank.report.failure, ranks, times, verdict)
        if rank.report.close_seconds > CLOSING + SLACK:
            say(f"rank {number} took {rank.report.close_seconds:.1f} s to destroy its groups")
        if rank.report.left["shared blocks"]:
            say(f"rank {number} still maps {rank.report.left['shared blocks']} shared blocks")
    _judge_absence(episode, ranks, say)
    for number, sent in times.items():
        ended = ranks[number].ended
        if episode.fault in KILLS and ended is not None:
            verdict.notices["end of a process that was killed"] = max(0.0, ended - sent)
    return verdict


def _judge_failure(
    episode: Episode,
    number: int,
    failure: Failure,
    ranks: list[Rank],
    times: dict[int, float],
    verdict: Verdict,
) -> None:
    say = verdict.violations.append
    where = f"rank {number}, step {failure.step} ({failure.phase})"
    message = f"{where}: {failure.kind}: {failure.text}"
    verdict.errors[failure.kind] = verdict.errors.get(failure.kind, 0) + 1
    if episode.fault in SILENT or not times:
        say(f"an error without a cause: {message}")
        return
    if failure.raised < min(times.values()):
        say(f"an error before the fault: {message}")
        return
    if failure.phase not in ("init", "group", "destroy") and failure.engine:
        if failure.kind not in ("TimeoutError", "PeerLostError", "AbortedError", "CgxError"):
            say(f"an unexpected kind of error: {message}")
        if not failure.text.strip():
            say(f"an error without text: {message}")
    if number in times and episode.fault != "abort":
        return  # it was stopped itself: its clock says nothing
    died = _death(episode, ranks, times)
    latency = max(0.0, failure.raised - max(failure.entered, died))
    what, limit = _limit(episode, failure, times)
    late = latency > limit
    if late and (
        _waited_for_others(number, failure, ranks, limit)
        or (", shm" not in what and _came_late(number, failure, ranks, died, limit))
    ):
        what, limit = "behind others", latency
    verdict.notices[what] = max(verdict.notices.get(what, 0.0), latency)
    if latency > limit:
        say(f"noticed ({what}) after {latency:.2f} s, allowed are {limit:.1f} s: {message}")


def _death(episode: Episode, ranks: list[Rank], times: dict[int, float]) -> float:
    """When the fault was there to be noticed: of a kill, once the kernel has ended the process,
    which closes its locks and connections: the signal waits for a processor, and so do 300 MB that
    are to be unmapped.
    """
    if episode.fault not in KILLS:
        return min(times.values())
    return min(max(sent, ranks[rank].ended or sent) for rank, sent in times.items())


def _limit(episode: Episode, failure: Failure, times: dict[int, float]) -> tuple[str, float]:
    if failure.phase in ("init", "group"):
        mesh = "connectFullMesh" in failure.text
        what = "creation, Gloo's mesh" if mesh else "creation"
        return what, CREATION_SECONDS * (MESH_TRIES if mesh else 1) + LEAVING + SLACK
    if episode.fault == "stall":
        return "stall", SHORT_SECONDS + SLACK
    members = episode.groups_at(failure.step)[failure.group]
    hosts = {episode.hosts[rank] for rank in members} if episode.hosts else {""}
    settings = dict(episode.settings)
    for step in episode.steps:
        if step.kind == "group" and step.group == failure.group:
            settings = dict(step.options)
    shared = settings["inner_communicator"] == "SHM" and len(hosts) == 1 and failure.engine
    communicator = "shm" if shared else "gloo" if len(hosts) == 1 or not failure.engine else "hosts"
    limit = SAME_HOST if len(hosts) == 1 else ELSEWHERE
    if not failure.engine:
        communicator = "inner gloo"
    if set(times) & set(members):
        return f"{episode.fault if episode.fault == 'abort' else 'death'}, {communicator}", limit
    return f"departure, {communicator}", limit


def _waited_for_others(number: int, failure: Failure, ranks: list[Rank], limit: float) -> bool:
    """Whether it noticed while another rank, which lived, was on its way out. It may have waited
    for that one, or for one that waited for it: while that was making a group with the dead one
    (until that timed out), or waited in destroy for calls on another group (CLOSING at most).
    """
    for other, rank in enumerate(ranks):
        if other == number or rank.report is None or rank.report.failure is None:
            continue
        cause = rank.report.failure
        since = cause.entered if cause.phase in ("init", "group") else cause.raised
        if since <= failure.raised <= rank.report.gone + limit:
            return True
    return False


def _came_late(number: int, failure: Failure, ranks: list[Rank], died: float, limit: float) -> bool:
    """Whether another rank, which lived, came to its failing call after the death. Over Gloo nobody
    has seen the end of a rank while all wait for live ones, which have not come
    (docs/reliability.md): the time counts from when the last of them came.
    """
    for other, rank in enumerate(ranks):
        if other == number or rank.report is None or rank.report.failure is None:
            continue
        came = rank.report.failure.entered
        if died < came and failure.raised <= came + limit:
            return True
    return False


def _judge_digests(episode: Episode, ranks: list[Rank], say: Say) -> None:
    seen: dict[tuple[int, int], dict[str, list[int]]] = {}
    for number, rank in enumerate(ranks):
        if rank.report is not None:
            for place, digest in rank.report.digests.items():
                seen.setdefault(place, {}).setdefault(digest, []).append(number)
    for (step, call), digests in seen.items():
        if len(digests) > 1:
            what = episode.steps[step].calls[call]
            say(f"step {step}, call {call}: ranks hold different bits: {digests} ({what})")


def _judge_absence(episode: Episode, ranks: list[Rank], say: Say) -> None:
    """Nobody may have completed a call with a rank that never started it."""
    for number, rank in enumerate(ranks):
        if rank.report is None:
            continue
        failure = rank.report.failure
        reached = len(episode.steps) if failure is None else failure.step
        for step in range(reached):
            mine = rank.report.completed.get(step, 0)
            groups = episode.groups_at(step)
            calls = [c for c in episode.steps[step].calls if number in groups[c.group]]
            if mine != len(calls):
                say(f"rank {number} completed {mine} of {len(calls)} calls of step {step}")
                break
            for call in calls:
                if not call.everybody_waits:
                    continue
                for other in groups[call.group]:
                    if ranks[other].place.started < step:
                        say(
                            f"rank {number} completed step {step} on group {call.group} without "
                            f"rank {other}, which got to step {ranks[other].place.started}"
                        )
