"""Runs a function on n ranks, each a real process, and collects what every rank returned or raised.

    from tests.distributed import run_pooled

    def job(rank, world_size, scale):              # a module-level function
        x = torch.full((8,), scale * rank)
        dist.all_reduce(x)                         # the process group is already made
        return x.tolist()

    def test_sum():
        assert run_pooled(job, 3, 2.0) == [[6.0] * 8] * 3

`run_pooled` keeps its worker processes alive between calls, each call with a fresh process group.
`run_ranks` has processes of its own: for tests that change the process for good. Processes are
forked from one that has imported torch (tests/warm), except by `run_ranks(..., started=True)`: for
tests of the start itself. Both raise `RanksFailed`, with every rank's traceback and the tail of its
output; with `check=False` they return one `Outcome` per rank instead, for tests of failures.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import faulthandler
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from tests import warm

ROOT = Path(__file__).resolve().parent.parent
Env = dict[str, str] | Sequence[dict[str, str]] | None

_START_SECONDS = 120.0  # for a worker to import torch on a busy machine
_LINGER_SECONDS = 3.0  # between a worker's own deadline and the kill by its parent
_LOG_TAIL = 4000  # characters of a rank's output shown in an error


@dataclasses.dataclass
class Outcome:
    """What became of one rank: `value` if it returned, else `error` (text) and what is known of
    it.
    """

    rank: int
    value: Any = None
    error: str | None = None
    exception: BaseException | None = None  # where it could be pickled
    exit_code: int | None = None  # of a process that ended; negative: the signal
    seconds: float = 0.0  # from the start of the call to this rank's answer
    log: str = ""

    def report(self) -> str:
        if self.error is None:
            return f"rank {self.rank}: returned after {self.seconds:.1f} s"
        text = f"rank {self.rank}: {self.error.rstrip()}"
        return text + (
            f"\n--- output of rank {self.rank}:\n{self.log.rstrip()}" if self.log else ""
        )


class RanksFailed(AssertionError):
    """At least one rank raised, died or ran past the time limit; `outcomes` holds all of them."""

    def __init__(self, name: str, outcomes: list[Outcome]):
        self.outcomes = outcomes
        failed = sum(o.error is not None for o in outcomes)
        body = "\n".join(o.report() for o in outcomes)
        super().__init__(f"{name}: {failed} of {len(outcomes)} ranks failed\n{body}")


@dataclasses.dataclass
class _Job:
    call: bytes  # pickled (function, args)
    path: list[str]  # sys.path of the caller, so that its test modules are importable
    rank: int
    world_size: int
    port: int
    number: int  # of the call: calls share the server, each has its own keys
    backend: str | None
    timeout: float
    group_timeout: float
    env: dict[str, str]


def run_pooled(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """Calls `fn(rank, world_size, *args)` on ranks of the session's pool; returns the values in
    rank order.

    Options: `backend` ("cgx"; None: no process group is made, the store is at
    MASTER_ADDR/MASTER_PORT and in `store()`), `timeout` (60 s for the whole call), `group_timeout`
    (of the process group; default: `timeout`), `env` (a dict, or one dict per rank; undone
    afterwards), `check` (True), `grace` (10 s that ranks get after another one has failed).
    """
    return _shared_pool().run(fn, world_size, *args, **options)


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """As `run_pooled`, in processes made for this call; `env` is there before torch is imported.
    `started`: by sys.executable, not by a fork.
    """
    pool = RankPool(env=options.get("env"), started=options.pop("started", False))
    try:
        return pool.run(fn, world_size, *args, **options)
    finally:
        pool.close()


_pool: RankPool | None = None


def _shared_pool() -> RankPool:
    global _pool
    if _pool is None:
        _pool = RankPool()
        atexit.register(_pool.close)
    return _pool


def _per_rank(env: Env, rank: int) -> dict[str, str]:
    if env is None:
        return {}
    return dict(env) if isinstance(env, dict) else dict(env[rank])


def _send(pipe: Connection, message: Any) -> None:
    # Plain pickle: torch makes Connection.send() share a tensor's memory instead of its values.
    pipe.send_bytes(pickle.dumps(message))


def _receive(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, env: dict[str, str], prelude: str, started: bool):
        ours, theirs = socket.socketpair()
        self.log: IO[bytes] = tempfile.TemporaryFile()
        settings = {"OMP_NUM_THREADS": "1", **os.environ, **env, "PYTHONUNBUFFERED": "1"}
        settings["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [settings.get("PYTHONPATH")])]
        )
        code = f"from tests.distributed import _serve; _serve({theirs.fileno()})"
        if started or not warm.enabled():
            command = [sys.executable, "-c", f"{prelude}\n{code}"]
        else:
            command = [*warm.python(prelude=prelude), "-c", code]
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=settings,
            cwd=ROOT,
        )
        theirs.close()
        self.pipe = Connection(ours.detach())
        self.log_start = 0
        self.pid: int | None = None  # of the rank; `process` may be its client (tests/warm)

    def tail(self) -> str:
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(self.log_start, size - _LOG_TAIL))
        return self.log.read().decode(errors="replace")

    def mark_log(self) -> None:
        self.log_start = self.log.seek(0, os.SEEK_END)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + _LINGER_SECONDS
        while self.pid and os.path.exists(f"/proc/{self.pid}") and time.monotonic() < deadline:
            time.sleep(0.002)  # killed when its client was
        self.pipe.close()
        self.log.close()

    def exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=2)
        return None


class RankPool:
    """Worker processes that run one function at a time; grown on demand, rebuilt after a death. Not
    thread-safe. `prelude`: Python that a worker runs first, before it imports torch. `started`: see
    `run_ranks`.
    """

    def __init__(self, env: Env = None, prelude: str = "", started: bool = False):
        self._env = env
        self._prelude = prelude
        self._started = started
        self._workers: list[_Worker] = []
        self._server: Any = None
        self._calls = 0

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        self._server = None

    def run(
        self,
        fn: Callable[..., Any],
        world_size: int,
        *args: Any,
        backend: str | None = "cgx",
        timeout: float = 60.0,
        group_timeout: float | None = None,
        env: Env = None,
        check: bool = True,
        grace: float = 10.0,
    ) -> list[Any]:
        """See `run_pooled`."""
        import torch.distributed as dist

        self._ready(world_size)
        # The parent serves the store: no port has to be guessed, and no rank's death takes it
        # along. One server for all calls: torch takes 5 s to start every tenth or so.
        if self._server is None:
            self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._calls += 1
        call = pickle.dumps((fn, args))
        for rank, worker in enumerate(self._workers[:world_size]):
            worker.mark_log()
            job = _Job(
                call=call,
                path=list(sys.path),
                rank=rank,
                world_size=world_size,
                port=self._server.port,
                number=self._calls,
                backend=backend,
                timeout=timeout,
                group_timeout=0.7 * timeout if group_timeout is None else group_timeout,
                env=_per_rank(env, rank),
            )
            _send(worker.pipe, job)
        outcomes = self._collect(world_size, timeout, grace if check else timeout)
        if not check:
            return list(outcomes)
        if any(o.error is not None for o in outcomes):
            raise RanksFailed(getattr(fn, "__name__", repr(fn)), outcomes)
        return [o.value for o in outcomes]

    def _ready(self, world_size: int) -> None:
        for rank, worker in enumerate(self._workers):
            if worker.process.poll() is not None:
                worker.kill()
                self._workers[rank] = self._worker(rank)
        for rank in range(len(self._workers), world_size):
            self._workers.append(self._worker(rank))
        deadline = time.monotonic() + _START_SECONDS
        for rank, worker in enumerate(self._workers[:world_size]):
            _send(worker.pipe, "ready?")
            try:
                if not worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise EOFError
                worker.pid = _receive(worker.pipe)
            except (EOFError, ConnectionError):
                log = worker.tail()
                self.close()
                raise RuntimeError(f"worker {rank} did not start:\n{log}") from None

    def _worker(self, rank: int) -> _Worker:
        return _Worker(_per_rank(self._env, rank), self._prelude, self._started)

    def _collect(self, world_size: int, timeout: float, grace: float) -> list[Outcome]:
        workers = self._workers[:world_size]
        start = time.monotonic()
        deadline = start + timeout + _LINGER_SECONDS
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < world_size:
            pending = {w.pipe: rank for rank, w in enumerate(workers) if rank not in outcomes}
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in pending.values():
                    outcomes[rank] = self._give_up(rank, time.monotonic() - start)
                break
            for pipe in ready:
                rank = pending[pipe]  # type: ignore[index]
                outcomes[rank] = self._receive(rank)
                outcomes[rank].seconds = time.monotonic() - start
                if outcomes[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + grace)
        return [outcomes[rank] for rank in range(world_size)]

    def _receive(self, rank: int) -> Outcome:
        worker = self._workers[rank]
        try:
            outcome = _receive(worker.pipe)
        except (EOFError, ConnectionError):
            code = worker.exit_code()
            cause = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"code {code}"
            outcome = Outcome(rank, error=f"the process ended ({cause})", exit_code=code)
        except Exception as error:
            outcome = Outcome(rank, error=f"its answer cannot be read: {error!r}")
        if outcome.error is not None:
            outcome.log = worker.tail()
        return outcome

    def _give_up(self, rank: int, seconds: float) -> Outcome:
        worker = self._workers[rank]
        log = worker.tail()
        worker.process.kill()
        worker.process.wait()
        error = f"no answer after {seconds:.1f} s; killed"
        return Outcome(rank, error=error, exit_code=-signal.SIGKILL, seconds=seconds, log=log)


# ---- in the worker ----

_store: Any = None
_client: Any = None  # of the parent's server; one per process


def store() -> Any:
    """The store of the running call (its own keys of a TCPStore), for functions that make process
    groups of their own.
    """
    if _store is None:
        raise RuntimeError("store() is only there inside a function run by run_pooled or run_ranks")
    return _store


def _serve(fd: int) -> None:
    import torch

    torch.set_num_threads(1)
    # Garbage of earlier calls may hold torch's groups of Gloo: one that ends in a child that a test
    # forks joins threads of this process.
    os.register_at_fork(after_in_child=gc.freeze)
    pipe = Connection(fd)
    while True:
        try:
            job = _receive(pipe)
        except EOFError:
            return
        if job == "ready?":
            _send(pipe, os.getpid())
            continue
        outcome = _run(job)
        try:
            _send(pipe, outcome)
        except Exception as error:  # the value or the exception cannot be pickled
            text = f"{outcome.error or ''}\ncannot be sent: {error!r}"
            _send(pipe, Outcome(job.rank, error=text))


def _run(job: _Job) -> Outcome:
    # Ends this process, with all stacks in its log, even if it hangs in C++ or its parent is gone.
    faulthandler.dump_traceback_later(job.timeout, exit=True)
    outcome = Outcome(job.rank)
    try:
        with _environment(job):
            sys.path[:] = job.path
            fn, args = pickle.loads(job.call)
            with _process_group(job):
                outcome.value = fn(job.rank, job.world_size, *args)
    except BaseException as error:
        outcome.error = traceback.format_exc()
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))
            outcome.exception = error
    finally:
        faulthandler.cancel_dump_traceback_later()
    return outcome


@contextlib.contextmanager
def _environment(job: _Job) -> Iterator[None]:
    saved = dict(os.environ)
    os.environ.update(
        RANK=str(job.rank),
        LOCAL_RANK=str(job.rank),
        WORLD_SIZE=str(job.world_size),
        LOCAL_WORLD_SIZE=str(job.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(job.port),
        # The store is served by the parent, as torchrun's agent does.
        TORCHELASTIC_USE_AGENT_STORE="True",
        # Keeps the keys of init_process_group("env://") apart from those of other calls.
        TORCHELASTIC_RESTART_COUNT=str(job.number),
        **job.env,
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextlib.contextmanager
def _process_group(job: _Job) -> Iterator[None]:
    global _store, _client
    import torch.distributed as dist

    if _client is None:
        _client = dist.TCPStore("127.0.0.1", job.port, is_master=False)
    _store = dist.PrefixStore(f"call{job.number}", _client)
    try:
        if job.backend is not None:
            if job.backend.count("cgx"):
                import torch_cgx  # noqa: F401  registers the backend where the package is not installed
            dist.init_process_group(
                job.backend,
                store=dist.PrefixStore("group", _store),
                rank=job.rank,
                world_size=job.world_size,
                timeout=datetime.timedelta(seconds=job.group_timeout),
            )
        yield
    except BaseException:
        _client = None  # a thread that the failed call left behind may be waiting in it
        raise
    finally:
        _store = None
        if dist.is_initialized():
            dist.destroy_process_group()
        # A failed init_process_group leaves torch's counter of group names as it is; the next group
        # would get another name, and so other store keys, on this rank than on ranks that were not
        # part of the failure.
        dist.distributed_c10d._world.group_count = 0
