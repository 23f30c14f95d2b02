"""Takes a test bed down when the process that built it lets go of it, or dies.

    python torch_cgx/testbed/watchdog.py PIPE PARENT NAME...

PIPE is the read end of a pipe whose other end only the process PARENT has. At its end every process
in the network namespaces NAME... is killed, the namespaces are deleted, and so are the folders
named by the environment variable HOSTBED_FOLDERS. Anything that cannot be removed is reported on
stderr, with status 1. One byte in the pipe before its end says that PARENT is done by itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PATIENCE = 20.0  # seconds for killed processes to go away
# A parent that was killed may have left an `ip` at work, which goes on making things for a moment.
_AFTERMATH = 1.0


def pids_inside(names: Sequence[str]) -> list[int]:
    """Processes in any of the named network namespaces; names that do not exist are skipped."""
    inside = set()
    for name in names:
        with contextlib.suppress(OSError):
            found = os.stat(f"/run/netns/{name}")
            inside.add((found.st_dev, found.st_ino))
    pids = []
    for folder in os.listdir("/proc") if inside else []:
        if folder.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or a zombie
                found = os.stat(f"/proc/{folder}/ns/net")
                if (found.st_dev, found.st_ino) in inside:
                    pids.append(int(folder))
    return pids


def kill(pids: Sequence[int]) -> None:
    """SIGKILL to all of them that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait(pipe: int, parent: int) -> bool:
    """True if the parent closed the bed itself. Its forked children may hold the pipe open, so its
    death is watched, too.
    """
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if hasattr(os, "pidfd_open"):  # Linux 5.3
        try:
            poller.register(os.pidfd_open(parent), select.POLLIN)
        except ProcessLookupError:
            return False
        except OSError:
            pass
    ready = [fd for fd, _ in poller.poll()]
    return pipe in ready and os.read(pipe, 1) != b""


def _remove(names: Sequence[str], seconds: float) -> list[str]:
    """Kills and deletes until nothing is left, for `seconds` at least. What is left."""
    start = time.monotonic()
    while True:
        here = [name for name in names if os.path.exists(f"/run/netns/{name}")]
        pids = pids_inside(here)
        kill(pids)
        passed = time.monotonic() - start
        # A name is deleted only once its namespace is empty, or its processes could not be found.
        if not pids and passed >= seconds:
            for name in here:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
            here = [name for name in here if os.path.exists(f"/run/netns/{name}")]
            if not here:
                return []
        if passed > _PATIENCE:
            return [*(f"namespace {name}" for name in here), *(f"process {pid}" for pid in pids)]
        time.sleep(0.02)


def main(arguments: Sequence[str]) -> int:
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    pipe, parent, names = int(arguments[0]), int(arguments[1]), arguments[2:]
    orderly = _wait(pipe, parent)
    folders = [one for one in os.environ.get("HOSTBED_FOLDERS", "").split(os.pathsep) if one]
    # First, as without the scripts in them no process gets into a namespace any more; and again,
    # as processes may have been writing there.
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    left = _remove(names, 0.0 if orderly else _AFTERMATH)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if Path(folder).exists():
            left.append(f"folder {folder}")
    with contextlib.suppress(BrokenPipeError):
        print("\n".join(left), file=sys.stderr, flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
