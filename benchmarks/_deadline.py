"""One command that ends in time, with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# A value of `stdout`: both go to the same place.
WITH_STDERR = -100


def run(
    command: Sequence[str], seconds: float, cwd: Path, stdout: int | None = WITH_STDERR
) -> tuple[int | None, str]:
    """Exit status, None after `seconds`, and what was written on stderr. Nothing that the command
    has started is left behind, unless in a session of its own. stdout: as of subprocess.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=log if stdout == WITH_STDERR else stdout,
            stderr=log,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return status, log.read()
