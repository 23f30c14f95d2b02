"""Benchmarks run as programs."""

from __future__ import annotations

import os
import subprocess

from tests import warm
from tests.distributed import ROOT


def python(*command: str) -> subprocess.CompletedProcess[str]:
    """The program, and all Python that it starts by `sys.executable`, is forked (tests/warm)."""
    return subprocess.run(
        [*warm.python(), *command],
        cwd=ROOT,
        env={**os.environ, **warm.NESTED},
        capture_output=True,
        text=True,
        timeout=170,
    )
