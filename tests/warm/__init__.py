"""Python processes that have torch already: forked by a server that imported it once.

    from tests import warm

    subprocess.run([*warm.python(), "-m", "torch.distributed.run", ...])

`python()` is the beginning of a command line and takes the place of `sys.executable`. A process
that imports torch costs 2.6 s of CPU time; this costs 0.05 s. The parts:

- client.py, the process that the caller starts. It stays, forwards signals, and ends as the real
  one does, also by the same signal. SIGKILL of it kills the real one.
- hub.py, one for the session. It knows the zygotes and starts those that are missing.
- zygote.py, a process of one thread that has imported torch and forks on request. There is one for
  each interpreter, torch_cgx, prelude, and set of variables that are read before or while torch is
  imported (`LD_PRELOAD`, `OMP_NUM_THREADS`, ...): see `hub.variant`.

The child has the client's files, arguments, folder, environment, signals, limits, affinity, and
namespaces. It differs from a started process in five ways: its parent is the zygote, its
/proc/PID/environ and cmdline are the zygote's (comm is and stays warm-CLIENT, with the client's
pid), strings hash alike in all children of one zygote, nothing that happens while torch is imported
happens in it, and at its end torch's own modules and static objects are not taken apart (torch_cgx
and process groups are). Tests of those things start `sys.executable`; with CGX_TEST_WARM=0, all
tests do.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

HERE = Path(__file__).resolve().parent
_HUB = "CGX_TEST_WARM_HUB"  # where the hub listens, for processes below the one that started it


class _Started(NamedTuple):
    """The hub that this process has started."""

    owner: int
    process: subprocess.Popen[bytes]
    folder: str


_started: _Started | None = None


def enabled() -> bool:
    """Whether processes are forked here; not where CGX_TEST_WARM=0 is set."""
    text = os.environ.get("CGX_TEST_WARM", "1")
    if text not in ("0", "1"):
        raise ValueError(f"CGX_TEST_WARM={text!r}; allowed: 0, 1")
    return text == "1" and sys.platform == "linux"


def python(
    interpreter: str | os.PathLike[str] = sys.executable,
    prelude: str = "",
) -> list[str]:
    """The beginning of a command line that runs `interpreter` with torch imported.

    What may follow: `-u`, and a script, `-m MODULE` or `-c CODE`, with arguments. prelude: Python
    that the zygote runs before it imports torch; a started process does not, so that the program
    has to do it, too.
    """
    program = os.fspath(interpreter)
    if not enabled():
        return [program]
    return [program, "-I", "-S", str(HERE / "client.py"), hub(), prelude]


def hub() -> str:
    """The address of the session's hub, which is started if there is none."""
    if _HUB not in os.environ:
        folder = tempfile.mkdtemp(prefix="cgx-warm-")
        address = os.path.join(folder, "hub")
        # The hub ends when the other end of its stdin is closed, as by the end of this process.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(HERE / "hub.py"), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the hub of warm processes at {address} did not start")
        process.stdout.close()
        _script(Path(folder, "python"), sys.executable, address, "")
        os.environ[_HUB] = address
        global _started
        _started = _Started(os.getpid(), process, folder)
        atexit.register(close)
    return os.environ[_HUB]


def _script(path: Path, interpreter: str, address: str, prelude: str) -> None:
    command = [interpreter, "-I", "-S", str(HERE / "client.py"), address, prelude]
    started = shlex.quote(interpreter)  # with options that a warm start has not, as -S
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(
        # multiprocessing passes on that no bytecode is written, which the environment says, too.
        '#!/bin/sh\n[ "$1" = -B ] && [ -n "$PYTHONDONTWRITEBYTECODE" ] && shift\n'
        f'case $1 in -c | -m | -u | [!-]*) exec {shlex.join(command)} "$@" ;; esac\n'
        f'exec {started} "$@"\n'
    )
    part.chmod(0o755)
    part.replace(path)


NESTED = {"CGX_TEST_WARM_NESTED": "1"}
"""In the environment of a warm process: its `sys.executable` is a warm start, too."""


def nested(interpreter: str | os.PathLike[str], prelude: str) -> dict[str, str]:
    """NESTED for the processes of `python(interpreter, prelude)`."""
    if not enabled():
        return {}
    program = os.fspath(interpreter)
    name = hashlib.sha256(f"{program}\n{prelude}".encode()).hexdigest()[:16]
    path = Path(hub()).with_name(f"python-{name}")
    if not path.exists():
        _script(path, program, hub(), prelude)
    return {"CGX_TEST_WARM_NESTED": str(path)}


@contextlib.contextmanager
def executable() -> Iterator[None]:
    """`sys.executable` is a warm start inside, here and in the processes started."""
    if not enabled():
        yield
        return
    path = os.path.join(os.path.dirname(hub()), "python")
    with mock.patch.object(sys, "executable", path), mock.patch.dict(os.environ, NESTED):
        yield


def close() -> None:
    """Ends the hub and its zygotes, if this process has started them. The end of the process does
    the same.
    """
    global _started
    started, _started = _started, None
    if started is None or os.getpid() != started.owner:  # a forked child
        return
    os.environ.pop(_HUB, None)
    assert started.process.stdin is not None
    started.process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.process.wait(timeout=10)
    started.process.kill()
    started.process.wait()
    shutil.rmtree(started.folder, ignore_errors=True)
