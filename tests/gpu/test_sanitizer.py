"""compute-sanitizer on a program that runs every kernel: no access out of bounds, no race in shared
memory, no barrier that some threads miss.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.distributed import ROOT
from tests.gpu import ranks

pytestmark = ranks.real
LIMIT = 420.0

_found = shutil.which("compute-sanitizer") or next(
    (str(p) for p in Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None
)


def _run(command: list[str]) -> tuple[int, str]:
    """Status and output. Nothing that it started is left behind."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return code, log.read()


def test_the_program_runs_by_itself():
    code, said = _run([sys.executable, "-m", "tests.gpu.all_kernels"])
    assert code == 0, said[-4000:]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_nothing_is_reported(tool):
    if _found is None:
        pytest.skip("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    command = [_found, "--tool", tool, "--target-processes", "all", "--error-exitcode", "86"]
    # Errors that torch makes and handles are calls, not accesses.
    command += ["--report-api-errors", "no"] if tool == "memcheck" else []
    code, said = _run([*command, sys.executable, "-m", "tests.gpu.all_kernels"])
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not support this device, or its virtual machine")
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    assert code == 0, said[-6000:]
    assert set(summaries) == {"0"}, said[-6000:]  # some, and no other
