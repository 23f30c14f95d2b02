"""compute-sanitizer: where it is, how it is called, and programs that end in time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks import _deadline as deadline
from tests.distributed import ROOT

TOOLS = ("memcheck", "racecheck", "synccheck")
_OURS = "kns=cgx_"  # kernels by a part of their names: all of the project's begin so


def limit() -> float:
    """Seconds for one program; run_all.sh sets CGX_SANITIZER_SECONDS."""
    return float(os.environ.get("CGX_SANITIZER_SECONDS", "420"))


def find() -> str | None:
    """On the PATH, or in a CUDA toolkit."""
    return shutil.which("compute-sanitizer") or next(
        (str(p) for p in sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))), None
    )


def command(sanitizer: str, tool: str) -> list[str]:
    """What stands before the program. Status 86: something was reported."""
    words = [sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "86"]
    if tool == "memcheck":
        # Errors that torch makes and handles are calls, not accesses.
        return [*words, "--report-api-errors", "no"]
    # These two slow a kernel down many times, and torch's kernels are not what is tested.
    return [*words, *_only_ours(sanitizer)]


def _only_ours(sanitizer: str) -> list[str]:
    """The option has had two names; a tool that has neither checks all kernels."""
    done = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, timeout=60)
    known = (done.stdout + done.stderr).replace("=", " ").split()
    for option in ("--kernel-name", "--kernel-regex"):
        if option in known:
            return [option, _OURS]
    return []


def run(words: list[str]) -> tuple[int, str]:
    """Status and output. Nothing that it started is left behind. AssertionError, with the end of
    the output, if it has not ended at limit().
    """
    code, said = deadline.run(words, limit(), ROOT)
    if code is None:
        raise AssertionError(f"{' '.join(words)} has not ended in {limit():g} s\n{said[-4000:]}")
    return code, said
