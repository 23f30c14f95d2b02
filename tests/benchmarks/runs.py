"""Benchmarks run as programs."""

from __future__ import annotations

import subprocess
import sys

from tests.distributed import ROOT


def python(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=170
    )
