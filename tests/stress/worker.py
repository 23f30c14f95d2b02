"""A rank: runs one episode after another as the driver orders, and reports on each."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import datetime
import faulthandler
import hashlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from tests.conformance import catalogue
from tests.stress import oracle
from tests.stress.board import Board
from tests.stress.checks import Group, Place, complaint
from tests.stress.held import Usual, resident
from tests.stress.program import (
    CREATION_SECONDS,
    SHORT_SECONDS,
    WORLD,
    Call,
    Episode,
    draw,
)
from torch_cgx import _C, _backend


@dataclasses.dataclass
class Job:
    """One episode for one rank. port: of the store; prefix: of its keys."""

    seed: int
    number: int
    rank: int
    port: int
    prefix: str
    sabotage: str = ""


@dataclasses.dataclass
class Failure:
    """An exception. `entered`, `raised`: time.monotonic() around the failing call."""

    step: int
    call: int
    phase: str
    group: int
    engine: bool
    kind: str
    text: str
    entered: float
    raised: float


@dataclasses.dataclass
class Report:
    rank: int
    failure: Failure | None = None
    completed: dict[int, int] = dataclasses.field(default_factory=dict)  # step -> calls
    digests: dict[tuple[int, int], str] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)
    collectives: int = 0
    compressed: int = 0
    simulated: int = 0
    bytes: int = 0
    groups: int = 0
    signals: int = 0
    close_seconds: float = 0.0
    gone: float = 0.0  # time.monotonic() when all its groups were destroyed
    left: dict[str, int] = dataclasses.field(default_factory=dict)
    usual: dict[str, int] = dataclasses.field(default_factory=dict)  # what may be left
    threads: list[str] = dataclasses.field(default_factory=list)
    rss_kb: int = 0


_sending = threading.Lock()


def send(channel: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    with _sending:
        channel.sendall(struct.pack("<I", len(data)) + data)


def _receive(channel: socket.socket) -> Any:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = channel.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    (length,) = struct.unpack("<I", exactly(4))
    return pickle.loads(exactly(length))


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the driver ends, however it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(channel: socket.socket, board: Board, slot: int) -> None:
    """The life of a process: until its channel is closed."""
    torch.set_num_threads(1)
    # Two seconds before the driver gives up, and at its request.
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    caught = [0]
    usual = Usual()

    def count(*_: Any) -> None:
        caught[0] += 1

    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGPROF):
        signal.signal(number, count)
    while True:
        try:
            job = _receive(channel)
        except EOFError:
            return
        before = caught[0]
        rank = _Rank(job, channel, board, slot)
        report = rank.run()
        report.signals = caught[0] - before
        del rank
        report.left, report.threads = usual.left()
        report.usual = usual.held or {}
        report.rss_kb = resident() // 1024
        send(channel, report)


class _Rank:
    """One rank in one episode."""

    def __init__(self, job: Job, channel: socket.socket, board: Board, slot: int):
        self.job = job
        self.channel = channel
        self.board = board
        self.slot = slot
        self.episode: Episode = draw(job.seed, job.number)
        self.report = Report(job.rank)
        self.checked = Place(job.rank, job.seed, self.episode.hosts)
        self.groups: dict[int, Group] = {}
        self.settings = dict(self.episode.settings)
        self.place = (-1, -1, "init", WORLD, False)
        self.entered = 0.0

    def run(self) -> Report:
        environment = dict(os.environ)
        try:
            os.environ.update(self._environment())
            try:
                self._live()
            except (torch_cgx.CgxError, dist.DistError, RuntimeError) as error:
                self._failed(error)
            except Exception:
                # Nothing that a fault explains.
                self.report.wrong.append(traceback.format_exc())
                self._failed(sys.exc_info()[1])
            self._close()
        except Exception:
            self.report.wrong.append("while closing: " + traceback.format_exc())
        finally:
            os.environ.clear()
            os.environ.update(environment)
        return self.report

    def _environment(self) -> dict[str, str]:
        found = {}
        if self.episode.hosts is not None:
            found["CGX_HOST_ID"] = self.episode.hosts[self.job.rank]
        if self.episode.by_environment:
            variables = {row["name"]: row["variable"] for row in _C.settings()}
            for name, value in self.settings.items():
                found[variables[name]] = str(int(value) if isinstance(value, bool) else value)
        return found

    def _at(
        self, step: int, phase: str, call: int = -1, group: int = -1, engine: bool = True
    ) -> None:
        started = self.board.read(self.slot).started
        if phase in ("init", "group", "start"):
            started = step
        self.board.write(self.slot, step, phase, call, started)
        self.place = (step, call, phase, group, engine)
        self.entered = time.monotonic()

    def _failed(self, error: BaseException | None) -> None:
        step, call, phase, group, engine = self.place
        kind = type(error).__name__
        self.report.failure = Failure(
            step, call, phase, group, engine, kind, str(error), self.entered, time.monotonic()
        )

    def _live(self) -> None:
        self._announce(-1)
        self._at(-1, "init", group=WORLD)
        client = dist.TCPStore("127.0.0.1", self.job.port, is_master=False)
        options = None
        if not self.episode.by_environment:
            options = torch_cgx.Options(**self.settings)
        dist.init_process_group(
            "cgx",
            store=dist.PrefixStore(self.job.prefix, client),
            rank=self.job.rank,
            world_size=self.episode.size,
            timeout=datetime.timedelta(seconds=CREATION_SECONDS),
            pg_options=options,
        )
        self._remember(WORLD, dist.group.WORLD, tuple(range(self.episode.size)))
        for number, step in enumerate(self.episode.steps):
            self._announce(number)
            if step.kind == "group":
                self._at(number, "group", group=step.group)
                self._make(step)
            elif step.kind == "destroy":
                if step.group in self.groups:
                    self._at(number, "destroy", group=step.group)
                    dist.destroy_process_group(self.groups.pop(step.group).handle)
            else:
                self._burst(number, step)
        self._at(len(self.episode.steps), "done")

    def _announce(self, step: int) -> None:
        """Reports that the place of the fault is reached; a rank makes some faults itself, here."""
        episode = self.episode
        if step != episode.at_step or episode.fault == "none":
            return
        if episode.fault == "stall" and step >= 0:
            for group in self.groups.values():
                limit = datetime.timedelta(seconds=SHORT_SECONDS)
                dist.distributed_c10d._set_pg_timeout(limit, group.handle)
        if episode.fault == "storm" and self.job.rank == 0:
            signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
        if episode.fault == "abort" and self.job.rank == episode.victims[0]:
            threading.Thread(target=self._abort_later).start()
        send(self.channel, ("at", step))

    def _abort_later(self) -> None:
        time.sleep(self.episode.delay)
        group = self.groups.get(WORLD)
        if group is None:
            return
        send(self.channel, ("aborting", time.monotonic()))
        _backend.backend_of(group.handle).abort()

    def _remember(self, number: int, handle: Any, members: tuple[int, ...]) -> None:
        settings = _backend.backend_of(handle).settings()
        labels = self.episode.hosts or ("one",) * self.episode.size
        way = oracle.way_of(settings, [labels[rank] for rank in members])
        self.groups[number] = Group(handle, members, settings, way)
        self.report.groups += 1

    def _make(self, step: Any) -> None:
        inside = self.job.rank in step.members
        if step.local and not inside:
            return
        handle = dist.new_group(
            list(step.members),
            timeout=datetime.timedelta(seconds=CREATION_SECONDS),
            pg_options=torch_cgx.Options(**dict(step.options)),
            use_local_synchronization=step.local,
        )
        if inside:
            self._remember(step.group, handle, step.members)
            if self.episode.fault == "stall":
                limit = datetime.timedelta(seconds=SHORT_SECONDS)
                dist.distributed_c10d._set_pg_timeout(limit, handle)

    def _burst(self, number: int, step: Any) -> None:
        started: dict[int, tuple[Call, Group, torch.Tensor, Any]] = {}
        for index, call in enumerate(step.calls):
            group = self.groups.get(call.group)
            if group is None:
                continue
            self._at(number, "start", index, call.group)
            started[index] = (call, group, *self._start(call, group))
        for index in step.order:
            if index not in started:
                continue
            call, group, result, work = started[index]
            # Exact shards go to the inner backend, too.
            shards = call.kind in ("reduce_scatter", "all_gather")
            engine = call.case is None and not (shards and dict(call.config or ())["bits"] > 8)
            self._at(number, "wait", index, call.group, engine)
            if work is not None:
                work.wait()
            self.report.completed[number] = self.report.completed.get(number, 0) + 1
            self._at(number, "check", index, call.group)
            self._check(number, index, call, group, result)

    def _start(self, call: Call, group: Group) -> tuple[Any, Any]:
        """The result (of exact calls what it must be, too), and the work."""
        size, seed = len(group.members), self.job.seed
        op = dist.ReduceOp.AVG if call.average else dist.ReduceOp.SUM
        handle = group.handle
        self.report.collectives += 1
        if call.case is not None:
            place = catalogue.Place(handle, group.members, group.members.index(self.job.rank))
            one = catalogue.start(call.case, place)
            self.report.bytes += call.numel * call.case.dtype.itemsize
            return one, one
        shards = call.kind == "reduce_scatter"
        mine = oracle.values(call, self.job.rank, call.numel * (size if shards else 1), seed)
        self.report.bytes += mine.numel() * mine.element_size()
        if call.kind == "all_reduce":
            return mine, dist.all_reduce(mine, op, handle, async_op=True)
        config = None if call.config is None else dict(call.config)
        if call.kind == "configured":
            return mine, torch_cgx.all_reduce(mine, op, handle, config=config, async_op=True)
        if call.kind == "layers":
            layers = [(n, None if c is None else dict(c)) for n, c in call.layers]
            return mine, torch_cgx.all_reduce(mine, op, handle, layers=layers, async_op=True)
        if call.kind == "reduce_scatter":
            out = torch.empty(call.numel, dtype=mine.dtype)
            return out, torch_cgx.reduce_scatter_single(out, mine, op, handle, True, config=config)
        assert call.kind == "all_gather"
        out = torch.empty(call.numel * size, dtype=mine.dtype)
        return out, torch_cgx.all_gather_single(out, mine, handle, True, config=config)

    def _check(self, step: int, index: int, call: Call, group: Group, result: Any) -> None:
        if call.case is not None:
            if text := result.complaint():
                self.report.wrong.append(f"step {step}, call {index}: {call.case}: {text}")
            return
        if self.job.sabotage == "exit" and self.job.rank == 0:
            os._exit(3)
        if self.job.sabotage == "bits" and self.job.rank == 0 and result.numel() > 20:
            result[result.numel() // 2] += 1
        if call.kind != "reduce_scatter":
            data = result.contiguous().view(torch.uint8).numpy()
            self.report.digests[step, index] = hashlib.blake2b(data, digest_size=12).hexdigest()
        found = complaint(call, group, self.checked, result)
        self.report.simulated = self.checked.simulated
        if found:
            self.report.wrong.append(f"step {step}, call {index}: {found}")

    def _close(self) -> None:
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, 0)
        if self.job.sabotage == "hang" and self.job.rank == 0:
            threading.Event().wait()
        step = self.place[0]
        self.board.write(self.slot, step, "close", -1, self.board.read(self.slot).started)
        if self.report.failure and self.episode.abrupt:
            for group in self.groups.values():
                _backend.backend_of(group.handle).abort()
        self.groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        # As in a process that starts anew: a failed making of the default group leaves its count.
        dist.distributed_c10d._world.group_count = 0
        with contextlib.suppress(AttributeError):
            sys.last_exc = None
        self.report.gone = time.monotonic()
        self.report.close_seconds = self.report.gone - start
