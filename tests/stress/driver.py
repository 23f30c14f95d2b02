"""Runs episodes in several lanes at once, does the faults to them, and keeps the accounts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import signal
import time
from collections import Counter, deque
from typing import Any

from tests.stress import judge, oracle
from tests.stress.board import Board
from tests.stress.processes import Process, StoreServer
from tests.stress.program import SHORT_SECONDS, Episode, describe, draw
from tests.stress.worker import Job, Report

_EPISODE_SECONDS = 100.0  # nothing that a rank does may take longer
_EPISODES_PER_STORE = 40
_RANKS_PER_LANE = 16  # slots of the board: more than ranks, since processes are replaced
_SHOWN = 30  # violations of one episode
_REPORTED = 3  # steps of a rank's program that a report shows


@dataclasses.dataclass
class Totals:
    episodes: Counter[str] = dataclasses.field(default_factory=Counter)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    # of each kind of notice: seconds, and the episode
    worst: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    violations: list[str] = dataclasses.field(default_factory=list)
    rss_mb: float = 0.0
    # Of this program itself: by how many seconds a short sleep took longer, as it waited for a
    # processor or for a child; time.monotonic() when it had surely looked at all channels.
    lag: float = 0.0
    looked: float = 0.0

    def note(self, what: str, seconds: float, episode: Episode) -> None:
        self.worst[what] = max(self.worst.get(what, (0.0, -1)), (seconds, episode.number))


def shared_memory(pids: set[int]) -> list[str]:
    """Shared-memory blocks in /dev/shm that these processes made."""
    makers = {f"cgx-{pid}" for pid in pids}
    return [name for name in os.listdir("/dev/shm") if name.rpartition("-")[0] in makers]


class Lane:
    """One job after another: its processes are those that survived the one before, or new ones."""

    def __init__(self, number: int, seed: int, totals: Totals, sabotage: str, verbose: bool):
        self.number = number
        self.seed = seed
        self.totals = totals
        self.sabotage = sabotage
        self.verbose = verbose
        self.board = Board(_RANKS_PER_LANE)
        self.processes: list[Process] = []
        self.pids: set[int] = set()
        self.store: StoreServer | None = None
        self.episodes = 0

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.processes.clear()
        if self.store is not None:
            self.store.close()
            self.store = None

    def _prepare(self, episode: Episode) -> StoreServer:
        rng = random.Random(f"{self.seed}/{episode.number}/processes")
        if self.store is None or self.episodes % _EPISODES_PER_STORE == 0:
            if self.store is not None:
                self.store.close()
            self.store = StoreServer()
        keep = [] if episode.fresh else self.processes[: episode.size]
        for process in self.processes[len(keep) :]:
            process.kill()
        self.totals.counts["processes reused"] += len(keep)
        if not episode.keep_order:
            rng.shuffle(keep)
        free = [s for s in range(_RANKS_PER_LANE) if s not in {p.slot for p in keep}]
        while len(keep) < episode.size:
            process = Process(self.board, free.pop())
            self.totals.counts["processes"] += 1
            self.pids.add(process.pid)
            keep.append(process)
        self.processes = keep
        return self.store

    async def run(self, number: int) -> None:
        """One episode."""
        began = time.monotonic()
        episode = draw(self.seed, number)
        store = self._prepare(episode)
        for rank, process in enumerate(self.processes):
            process.send(Job(self.seed, number, rank, store.port, f"e{number}", self.sabotage))
        times: dict[int, float] = {}
        first = asyncio.Event()
        tasks = [
            asyncio.create_task(self._follow(process, rank, episode, first, times))
            for rank, process in enumerate(self.processes)
        ]
        fault = asyncio.create_task(self._fault(episode, first, times))
        _, late = await asyncio.wait(tasks, timeout=_EPISODE_SECONDS)
        fault.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await fault
        hung = [rank for rank, task in enumerate(tasks) if task in late]
        violations = [f"rank {r} hangs:\n{self.processes[r].stacks()}" for r in hung]
        for rank in hung:
            tasks[rank].cancel()
            self.processes[rank].kill()
        ranks = []
        for rank, task in enumerate(tasks):
            process = self.processes[rank]
            report = None if rank in hung else await task
            ranks.append(
                judge.Rank(report, process.status, self.board.read(process.slot), process.ended)
            )
        verdict = judge.judge(episode, ranks, times)
        violations += [v for v in verdict.violations if not (hung and "ended with status" in v)]
        violations += self._leaks(ranks)
        self._count(episode, ranks, times, verdict)
        if violations:
            self._complain(episode, ranks, times, violations)
        for rank, process in enumerate(self.processes):
            # The signal may have come after the rank's report: then its end is yet to come.
            killed = episode.fault in judge.KILLS and rank in times
            if killed or process.status is not None:
                process.kill()
        self.processes = [p for p in self.processes if p.status is None]
        self.episodes += 1
        if self.verbose:
            print(
                f"episode {number}: {episode.size} ranks, {episode.fault}, "
                f"{time.monotonic() - began:.2f} s, {verdict.notices}",
                flush=True,
            )
            for rank in ranks:
                if rank.report is not None and rank.report.failure is not None:
                    failure = rank.report.failure
                    text = failure.text.partition("\n")[0]
                    print(f"  {rank.report.rank}: {failure.kind}: {text}", flush=True)

    async def _follow(
        self, process: Process, rank: int, episode: Episode, first: asyncio.Event, times: Any
    ) -> Report | None:
        """Receives from one rank until its report or its end."""
        while True:
            try:
                message = await process.receive()
            except EOFError:
                process.ended = self.totals.looked
                return None
            if isinstance(message, Report):
                return message
            if message[0] == "aborting":
                times[rank] = message[1]
            elif not episode.victims or rank == episode.victims[0]:
                first.set()

    async def _fault(self, episode: Episode, first: asyncio.Event, times: dict[int, float]) -> None:
        await first.wait()
        if episode.fault in ("none", "abort"):
            return
        if episode.fault == "storm":
            await self._storm(episode)
            return
        await asyncio.sleep(episode.delay)
        if episode.fault in ("pause", "stall"):
            await self._stop(episode, times)
            return
        for rank in episode.victims:
            process = self.processes[rank]
            if process.status is None:
                times[rank] = time.monotonic()
                process.signal(signal.SIGKILL)
                self.totals.counts["kills"] += 1

    async def _stop(self, episode: Episode, times: dict[int, float]) -> None:
        rank = episode.victims[0]
        seconds = 0.2 + 5 * episode.delay
        if episode.fault == "stall":
            times[rank] = time.monotonic()
            seconds += SHORT_SECONDS + 2
        self.processes[rank].signal(signal.SIGSTOP)
        self.totals.counts["stops"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.processes[rank].signal(signal.SIGCONT)

    async def _storm(self, episode: Episode) -> None:
        while True:
            for process in self.processes:
                process.signal(signal.SIGUSR1)
                process.signal(signal.SIGCHLD)
            self.totals.counts["signals sent"] += 2 * len(self.processes)
            await asyncio.sleep(0.001)

    def _leaks(self, ranks: list[judge.Rank]) -> list[str]:
        found = []
        for number, rank in enumerate(ranks):
            report = rank.report
            if report is None:
                continue
            self.totals.rss_mb = max(self.totals.rss_mb, report.rss_kb / 1024)
            if any(report.left[key] > most for key, most in report.usual.items()):
                found.append(
                    f"rank {number} has {report.left}, after its first episode {report.usual}; "
                    f"threads: {report.threads}"
                )
        left = shared_memory(self.pids)
        if left:
            found.append(f"left in /dev/shm: {left}")
            for name in left:
                os.unlink(f"/dev/shm/{name}")
        return found

    def _count(
        self, episode: Episode, ranks: list[judge.Rank], times: Any, verdict: judge.Verdict
    ) -> None:
        totals = self.totals
        totals.episodes[episode.fault] += 1
        totals.errors.update(verdict.errors)
        for what, seconds in verdict.notices.items():
            totals.note(what, seconds, episode)
        if episode.fault not in judge.SILENT and not times:
            totals.counts["faults that came too late"] += 1
        for rank in ranks:
            if rank.report is None:
                continue
            totals.counts.update(
                collectives=sum(rank.report.completed.values()),
                compared=len(rank.report.digests),
                simulated=rank.report.simulated,
                bytes=rank.report.bytes,
                groups=rank.report.groups,
                errors=rank.report.failure is not None,
            )
            totals.counts["signals caught"] += rank.report.signals
            totals.note("destroy", rank.report.close_seconds, episode)

    def _complain(
        self, episode: Episode, ranks: list[judge.Rank], times: Any, violations: list[str]
    ) -> None:
        lines = [
            f"VIOLATION in episode {episode.number}; again with: "
            f"python -m tests.stress --seed {self.seed} --episode {episode.number}",
            f"  {episode.size} ranks, hosts {episode.hosts}, fault {episode.fault} of "
            f"{list(episode.victims)} at step {episode.at_step} (delay {episode.delay:.4f} s), "
            f"settings {dict(episode.settings)}, by environment: {episode.by_environment}, "
            f"abrupt: {episode.abrupt}, times {times}",
            *(f"  {text[:3000]}" for text in violations[:_SHOWN]),
        ]
        for number, rank in enumerate(ranks):
            place = rank.place
            lines.append(
                f"  rank {number}: {place.phase} of step {place.step}, call {place.call}, "
                f"since {place.since:.3f}; its last steps:"
            )
            if rank.ended is not None:
                lines.append(f"    ended at {rank.ended:.3f}")
            if rank.report is not None and rank.report.failure is not None:
                failure = rank.report.failure
                lines.append(
                    f"    failed in step {failure.step} ({failure.phase}), entered at "
                    f"{failure.entered:.3f}, raised at {failure.raised:.3f}: {failure.kind}: "
                    f"{failure.text[:300]}"
                )
            upto = max(0, place.step + 1)
            for index in range(max(0, upto - _REPORTED), min(upto, len(episode.steps))):
                lines.append(f"    {index}: {describe(episode.steps[index])[:1500]}")
            process = self.processes[number]
            if rank.report is None and not process.log.closed:
                lines.append(f"    output: {process.output()}")
        text = "\n".join(lines)
        print(text, flush=True)
        self.totals.violations.append(text)


@dataclasses.dataclass
class Plan:
    seed: int
    seconds: float
    lanes: int = 4
    episodes: tuple[int, ...] = ()  # only these
    sabotage: str = ""
    verbose: bool = False
    most: int = 1 << 60  # episodes


class Driver:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.totals = Totals()
        self.began = time.monotonic()
        self.pids: set[int] = set()
        self._next = iter(plan.episodes or range(min(plan.most, 1 << 60)))

    def run(self) -> Totals:
        oracle.prepare(self.plan.seed)
        asyncio.run(self._run())
        return self.totals

    async def _run(self) -> None:
        beside = [asyncio.create_task(self._talk()), asyncio.create_task(self._watch_lag())]
        try:
            await asyncio.gather(*(self._lane(number) for number in range(self.plan.lanes)))
        finally:
            for task in beside:
                task.cancel()

    async def _lane(self, number: int) -> None:
        lane = Lane(number, self.plan.seed, self.totals, self.plan.sabotage, self.plan.verbose)
        try:
            while time.monotonic() - self.began < self.plan.seconds:
                if len(self.totals.violations) > 20:
                    return
                # Numbers are handed out in turn; what an episode does depends on its number alone.
                episode = next(self._next, None)
                if episode is None:
                    return
                await lane.run(episode)
        finally:
            lane.close()
            self.pids |= lane.pids

    async def _watch_lag(self) -> None:
        turns = deque([0.0, 0.0, time.monotonic()], maxlen=3)
        while True:
            await asyncio.sleep(0.02)
            turns.append(time.monotonic())
            self.totals.lag = max(self.totals.lag, turns[2] - turns[1] - 0.02)
            # After this turn all channels were looked at: what is found closed now ended later.
            self.totals.looked = turns[0]

    async def _talk(self) -> None:
        while True:
            await asyncio.sleep(10)
            counts, worst = self.totals.counts, self.totals.worst
            deaths = {k: round(v, 2) for k, (v, _) in worst.items() if k.startswith("death")}
            print(
                f"{time.monotonic() - self.began:6.0f} s: {sum(self.totals.episodes.values())} "
                f"episodes, {counts['collectives']} collectives, {counts['bytes'] >> 20} MiB, "
                f"{counts['groups']} groups, {counts['kills']} kills, {counts['errors']} errors, "
                f"worst notice {deaths}, {len(self.totals.violations)} violations",
                flush=True,
            )
