"""Starts the ranks of `cgx bench`: processes of this host, or of others by ssh.

This process serves the store at which they meet, and ends all of them as soon as one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from torch_cgx._threads import start_daemon
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import free_memory, on_terminal, size_text, without_log_of_torch

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
_MOST_RANKS = 1024
_RANK_BYTES = 200 << 20  # of a process that has imported torch, without its tensors
PARENT = "TORCH_CGX_BENCH_PARENT"  # process id, for the ranks of this host
LIFELINE = "TORCH_CGX_BENCH_LIFELINE"  # for the others: stdin ends with the command


@dataclass
class Rank:
    number: int
    host: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]  # its stderr; of rank 0 the terminal has it


def run(args: argparse.Namespace) -> int:
    """Returns the exit status of rank 0; CliError names the rank that failed, and its last line."""
    places = _places(args)
    _check_room(places)
    store = _serve(len(places))
    with _ending_by_signals():
        ranks: list[Rank] = []
        try:
            for number, (host, local, beside) in enumerate(places):
                env = {
                    "RANK": f"{number}",
                    "WORLD_SIZE": f"{len(places)}",
                    "LOCAL_RANK": f"{local}",
                    "LOCAL_WORLD_SIZE": f"{beside}",
                    "MASTER_ADDR": args.address or _address_for(host) if host else "127.0.0.1",
                    "MASTER_PORT": f"{store.port}",
                    # The store is this process's: no rank serves one.
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "TORCH_CGX_BENCH_STARTED": "1",
                    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                }
                env |= {LIFELINE: "1"} if host else {PARENT: f"{os.getpid()}"}
                ranks.append(_start(args, number, host, env))
            return _wait(ranks)
        finally:
            _end(ranks)


def _places(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    """(host, local rank, ranks of the host) of every rank; an empty host is this one."""
    if args.hosts and args.ranks:
        raise CliError("--ranks is for this host; --hosts has its own numbers, as in a:2,b:2")
    hosts = args.hosts or [("", args.ranks or 2)]
    return [(host, local, number) for host, number in hosts for local in range(number)]


def _check_room(places: Sequence[tuple[str, int, int]]) -> None:
    """CliError, before anything is started, for more ranks than this host can hold."""
    if len(places) > _MOST_RANKS:
        raise CliError(f"{len(places)} ranks; allowed: at most {_MOST_RANKS}")
    needed = _RANK_BYTES * sum(not host for host, _, _ in places)
    free = free_memory()
    if needed > free:
        raise CliError(
            f"--ranks {len(places)} takes about {size_text(needed)} on this host, which has "
            f"{size_text(free)} free"
        )


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that its ranks end, too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the program that calls this owns its signals
        return

    def end(number: int, _: object) -> None:
        raise CliError(f"ended by {signal.Signals(number).name}", 128 + number)

    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, end) for kind in kinds}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def end_with_parent(pid: str) -> None:
    """On a rank: makes the kernel end this process when the command that started it ends, however
    that ends.
    """
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(pid):  # it has ended already
        raise CliError("the command that started this rank has ended")


def end_with_connection() -> None:
    """On a rank of another host: ends this process when stdin ends, as it does with the command or
    its ssh. A --rsh that passes no stdin on tells nothing: then the first byte is missing.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            if os.read(0, 1):
                while os.read(0, 1024):
                    pass
                os._exit(1)

    start_daemon(watch, "cgx-lifeline")


def _serve(size: int) -> Any:
    from torch._C._distributed_c10d import TCPStore

    try:
        with without_log_of_torch():
            return TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CliError(f"cannot listen for {size} ranks on this host: {reason}") from None


def _address_for(host: str) -> str:
    """This host's address on the route to another; nothing is sent. Where --rsh alone knows the
    host's name, the first address of this host that others may reach.
    """
    name = host.rpartition("@")[2]
    try:
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        return _some_address(f"--hosts {host}: {error.strerror or error}")
    try:
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise CliError(f"--hosts {host}: {error.strerror or error}") from None


def _some_address(why: str) -> str:
    from torch_cgx.launch import LaunchError
    from torch_cgx.launch import _network as net

    try:
        return net.candidates(None)[0]
    except LaunchError:
        raise CliError(
            f"{why}, and this host has no address that others could reach; name one by --address"
        ) from None


def _start(args: argparse.Namespace, number: int, host: str, env: dict[str, str]) -> Rank:
    command = [args.python or sys.executable, "-m", "torch_cgx", "bench", *_arguments(args, number)]
    if host:
        variables = [f"{name}={value}" for name, value in (*env.items(), *_passed())]
        remote = ["cd", os.getcwd(), "2>/dev/null;", "exec", "env", *map(shlex.quote, variables)]
        command = [*shlex.split(args.rsh), host, " ".join([*remote, *map(shlex.quote, command)])]
    said = tempfile.TemporaryFile()  # without a name: nothing stays after SIGKILL
    # The byte is there before the rank is: this process may be killed as soon as that runs.
    ours, theirs = _lifeline() if host else (None, None)
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=theirs or subprocess.DEVNULL,
            stdout=None if number == 0 else subprocess.DEVNULL,
            stderr=None if number == 0 and on_terminal() else said,
            start_new_session=True,
        )
    except OSError as error:
        raise CliError(f"{command[0]!r} does not start: {error.strerror}") from None
    finally:
        if theirs:
            theirs.close()
    process.stdin = ours
    return Rank(number, host, process, said)


def _lifeline() -> tuple[IO[bytes], IO[bytes]]:
    """A pipe with a byte in it: the end for this process, and the one to read from."""
    reading, writing = os.pipe()
    os.write(writing, b"\n")
    return open(writing, "wb", buffering=0), open(reading, "rb", buffering=0)


def _passed() -> list[tuple[str, str]]:
    """Variables that the other hosts get, too."""
    names = ("PYTHONPATH", "LD_LIBRARY_PATH")
    return [(n, v) for n, v in os.environ.items() if n in names or n.startswith("CGX_")]


def _arguments(args: argparse.Namespace, number: int) -> list[str]:
    words = ["--sizes", ",".join(map(str, args.sizes)), "--bits", ",".join(map(str, args.bits))]
    words += ["--codec", ",".join(args.codec), "--device", args.device]
    words += ["--repeats", f"{args.repeats}", "--timeout", f"{args.timeout}"]
    words += ["--interface", args.interface] if args.interface else []
    if number == 0:
        for name in ("json", "csv", "plot"):
            path = getattr(args, name)
            words += [f"--{name}", str(path.absolute())] if path else []
    return words


def _wait(ranks: Sequence[Rank]) -> int:
    left = list(ranks)
    while left:
        for rank in list(left):
            status = rank.process.poll()
            if status is None:
                continue
            left.remove(rank)
            if status != 0:
                raise CliError(_reason(rank, status))
        time.sleep(_POLL_SECONDS)
    return 0


def _reason(rank: Rank, status: int) -> str:
    """The last line that a rank wrote, or how it ended."""
    rank.said.seek(0)
    lines = rank.said.read().decode(errors="replace").strip().splitlines()
    where = f"rank {rank.number}" + (f" on {rank.host}" if rank.host else "")
    how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
    if lines and lines[-1].startswith("cgx bench: "):
        return lines[-1].removeprefix("cgx bench: ")
    text = f"{where} {how}" + (f": {lines[-1]}" if lines and status > 0 else "")
    if rank.host and (status == 127 or "No module named" in text):
        text += " (torch_cgx must be installed there; --python names its interpreter)"
    return text


def _end(ranks: Sequence[Rank]) -> None:
    """Nothing stays: SIGTERM to what still runs, then SIGKILL. A second Ctrl-C does not stop it."""
    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(kind, signal.SIG_IGN)
    for kind, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
        running = [rank for rank in ranks if rank.process.poll() is None]
        for rank in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, kind)
        limit = time.monotonic() + seconds
        for rank in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, limit - time.monotonic()))
