"""Commands on the hosts of a test bed: started together, watched, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_cgx.testbed.network import BedError
from torch_cgx.testbed.watchdog import kill, pids_inside

_LOOKS = 10  # at a process that seems to have no variables
MARK = "HOSTBED_RUN"  # the variable that marks the processes of one run
_TAIL = 4000  # characters of an output that an error shows
_POLL_SECONDS = 0.01
_KILL_SECONDS = 20.0


@dataclass
class Started:
    """One process and the file that its output goes to. label: as errors call it."""

    label: str
    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def fate(self) -> str:
        code = self.process.poll()
        if code is None:
            return "still running, killed"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"


class HostsFailed(BedError):
    """A command failed on a host, or did not end in time.

    outputs: what each process wrote; fates: how it ended, before it was killed; timed_out: whether
    time ran out before any had failed.
    """

    def __init__(self, what: str, started: Sequence[Started], seconds: float, timed_out: bool):
        self.outputs = [one.output() for one in started]
        self.fates = [one.fate() for one in started]
        self.timed_out = timed_out
        how = f"did not end within {seconds:g} s" if timed_out else "failed"
        lines = [f"{what}: {how}"]
        for one, output, fate in zip(started, self.outputs, self.fates, strict=True):
            lines += [f"--- {one.label}: {fate}", output[-_TAIL:].rstrip()]
        super().__init__("\n".join(lines))


def start(label: str, command: Sequence[str], env: dict[str, str], log: Path) -> Started:
    """Starts a command in a session of its own; stdout and stderr go to `log`."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    return Started(label, process, log)


def finish(
    what: str,
    launch: Callable[[list[Started]], None],
    names: Sequence[str],
    mark: str,
    timeout: float,
    grace: float,
) -> list[str]:
    """Outputs of the processes that `launch` starts and appends to the list it is given, once all
    have ended with status 0.

    After the first failure the others have `grace` seconds to fail by themselves. Whatever happens,
    no process in the namespaces `names` that carries `mark` is left.
    """
    started: list[Started] = []
    try:
        launch(started)
        deadline = time.monotonic() + timeout
        failed = False
        while True:
            codes = [one.process.poll() for one in started]
            if None not in codes:
                failed = any(codes)
                break
            if not failed and any(codes):
                failed = True
                deadline = min(deadline, time.monotonic() + grace)
            if time.monotonic() >= deadline:
                raise HostsFailed(what, started, timeout, timed_out=not failed)
            time.sleep(_POLL_SECONDS)
        if failed:
            raise HostsFailed(what, started, timeout, timed_out=False)
        return [one.output() for one in started]
    finally:
        _end(started, names, mark)


def _end(started: Sequence[Started], names: Sequence[str], mark: str) -> None:
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        carries = {pid: _carries(pid, mark) for pid in pids_inside(names)}
        kill([pid for pid, marked in carries.items() if marked])
        left = [pid for pid, marked in carries.items() if marked is not False]
        if not left:
            break
        if time.monotonic() > deadline:
            raise BedError(f"processes {left} outlive SIGKILL by {_KILL_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    for one in started:
        one.process.wait()


def _carries(pid: int, mark: str) -> bool | None:
    """Whether the variables of a process hold the mark; None while it has neither variables nor
    arguments: it has no memory any more, or exec() has not filled it yet.
    """
    warm = False
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        warm = name.startswith("warm-")  # of tests/warm: its client has its variables
        if warm:
            pid = int(name.removeprefix("warm-"))
        for _ in range(_LOOKS):
            if variables := Path(f"/proc/{pid}/environ").read_bytes():
                return f"{MARK}={mark}".encode() in variables.split(b"\0")
            if not Path(f"/proc/{pid}/cmdline").read_bytes():
                return None
            # Arguments, but no variables: none were given, or exec() filled both between the reads.
            # A shell execs several programs in a row, so that happens more than once.
    except ProcessLookupError:  # it has no memory, but is still there
        return None
    except OSError:  # gone
        return warm  # it is killed when its client is, which may have ended between two looks
    return False


def environment(root: Path, folder: Path, mark: str, env: dict[str, str] | None) -> dict[str, str]:
    """Variables set for every process of a run, beside the inherited ones. folder: for temporary
    files that processes leave behind, as torchrun does.
    """
    path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        **(env or {}),
        MARK: mark,
    }


_LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "SLURM_", "MPI_", "HYDRA_", "TORCHELASTIC_")
_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT", "CGX_HOST_ID")  # fmt: skip


def inherited() -> dict[str, str]:
    """This process's variables, without the variables in which a launcher describes its rank."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK and not name.startswith(_LAUNCHERS)
    }
