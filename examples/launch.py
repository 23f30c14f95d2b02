"""Runs an example with torchrun from another Python program, and returns its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent


class RunFailed(Exception):
    """A run ended with an error or took too long; the message holds its command and its output."""


def run_example(
    script: str, arguments: Sequence[str], processes: int = 2, timeout: float = 300.0
) -> dict[str, Any]:
    """Runs `examples/<script>` on `processes` ranks of this machine; returns what it wrote as JSON.

    Cores are shared out over the ranks unless OMP_NUM_THREADS says otherwise. After `timeout`
    seconds all processes of the run are killed. Raises RunFailed.
    """
    environment = dict(os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // processes)))
    # The ranks are to import the modules that this process would.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryDirectory(prefix="cgx_example_") as folder:
        results = Path(folder, "results.json")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes), str(EXAMPLES / script)]
        command += [*arguments, "--json", str(results)]
        output = _run(command, environment, timeout)
        if not results.exists():
            raise RunFailed(f"{' '.join(command)} wrote no results\n{output}")
        return dict(json.loads(results.read_text()))


def _run(command: list[str], environment: dict[str, str], timeout: float) -> str:
    # A session of its own, so that a kill reaches the ranks and not only torchrun.
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            line = f"{' '.join(command)} took more than {timeout:g} s"
            raise RunFailed(f"{line}\n{output}") from None
        raise
    if process.returncode != 0:
        line = f"{' '.join(command)} ended with status {process.returncode}"
        raise RunFailed(f"{line}\n{output}")
    return output
