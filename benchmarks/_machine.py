"""Facts of the machine and the software that a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def cpu_model() -> str:
    """The model name of the first core, or what the platform module knows of it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git_revision() -> str | None:
    """The revision of the source tree, with "+" if files differ from it; None outside of one."""
    try:
        revision = _git("rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def facts() -> dict[str, Any]:
    """Everything that a measurement should be filed with; JSON types only."""
    import torch

    import torch_cgx
    from torch_cgx import _C

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_model(),
        "cores": usable,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cgx": torch_cgx.__version__,
        "simd": _C.cpu_level(),
        "revision": git_revision(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("CGX_")},
    }


def line(facts: dict[str, Any]) -> str:
    """The facts for a terminal."""
    return ", ".join(f"{key} {value}" for key, value in facts.items())
