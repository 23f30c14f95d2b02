"""The parts of `python -m benchmarks`: one entry each, and how one is run.

A part is a module of this package that takes --quick, --json FILE and --plot FILE, prints its own
table, and ends with status 0. One that cannot run here says so on stderr, "nothing measured: why",
writes nothing and ends with 0, too. Each runs in a process of its own, so that it neither warms nor
breaks another.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _machine

RESULTS = _machine.ROOT / "benchmarks" / "results"
NOTHING = "nothing measured: "
LIMIT = 1500.0  # seconds that one part may take


@dataclass(frozen=True)
class Part:
    """result: name of its files, without .json and .png; arguments: of a full run; quick: of a
    short one.
    """

    name: str
    module: str
    about: str
    result: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)


_BITS = ("--bits", "32", "16", "8", "4", "2")
_ALL = (
    Part("codec", "codec", "codecs on one core, against the memory", "codec"),
    Part("gpu-codec", "gpu_codec", "codecs on a GPU, against a copy in its memory", "gpu_codec"),
    Part("codec-peers", "codec_peers", "8-bit codecs of others", "codec_peers"),
    Part("allreduce", "allreduce", "all-reduces on one host", "allreduce", _BITS),
    Part(
        "mpi",
        "allreduce",
        "the same beside Open MPI, under its mpirun",
        "allreduce_mpi",
        ("--mpirun", "auto", "--carrier", "shm", "--no-bf16", "--peers", *_BITS),
        ("--mpirun", "auto", "--carrier", "shm", "--no-bf16", "--peers", "--quick"),
    ),
    Part("gpu-allreduce", "gpu_allreduce", "all-reduces of two ranks on one GPU", "gpu_allreduce"),
    Part("passthrough", "passthrough", "all other collectives, against gloo", "passthrough"),
    Part("latency", "latency", "where a small all-reduce spends its time", "latency"),
    Part(
        "hosts",
        "hosts",
        "all-reduces between hosts",
        "hosts",
        ("--hosts", "2", "4", "--rates", "1gbit", "10gbit", "--repeats", "11", *_BITS),
    ),
    Part("exact", "exact", "exact all-reduces over Gloo, against gloo's own", "exact"),
    Part("autotune", "autotune", "autotuned groups, against the best choice", "autotune"),
    Part("crossover", "crossover", "the size from which compression pays", "crossover"),
    Part(
        "training",
        "hosts_training",
        "a training between hosts",
        "hosts_training",
        ("--runs", "2", "--steps", "40"),
    ),
    Part("overlap", "overlap", "a picture of encode, transfer and decode", "overlap"),
)
# Those whose module is in this tree.
PARTS = {part.name: part for part in _ALL if importlib.util.find_spec(f"benchmarks.{part.module}")}


@dataclass(frozen=True)
class Outcome:
    """status: "done", "not measured", "kept" or "failed"; reason: of all but the first."""

    part: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    not_measured: tuple[str, ...] = ()


def run_part(
    part: Part, quick: bool, out: Path | None, limit: float = LIMIT, drop: bool = False
) -> Outcome:
    """Runs a part; its files are put into `out` when it has ended well. drop: print nothing."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        written = Path(folder) / f"{part.result}.json"
        picture = written.with_suffix(".png")
        command = [sys.executable, "-m", f"benchmarks.{part.module}"]
        command += [*(part.quick if quick else part.arguments), "--json", str(written)]
        if out is not None:
            command += ["--plot", str(picture)]
        status, said = _run(command, limit, drop)
        seconds = round(time.monotonic() - start, 1)
        if status is None:
            return Outcome(part.name, "failed", f"not done after {limit:.0f} s", seconds)
        if status != 0:
            reason = f"status {status}: {_last_line(said)}"
            return Outcome(part.name, "failed", reason, seconds)
        if not written.exists():
            why = [line[len(NOTHING) :] for line in said.splitlines() if line.startswith(NOTHING)]
            if not why:
                return Outcome(part.name, "failed", "wrote no results", seconds)
            return Outcome(part.name, "not measured", why[-1], seconds)
        missing = json.loads(written.read_text()).get("not_measured") or {}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for file in (written, picture):
                if file.exists():
                    # On the same file system first, so that the old one is replaced at once.
                    new = out / f".{file.name}.new"
                    new.write_bytes(file.read_bytes())
                    new.replace(out / file.name)
        lines = tuple(f"{peer}: {why}" for peer, why in missing.items())
        return Outcome(part.name, "done", "", seconds, lines)


def _run(command: list[str], limit: float, drop: bool) -> tuple[int | None, str]:
    """Exit status, None after `limit` seconds, and what was written on stderr. Nothing that the
    command has started is left behind.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=_machine.ROOT,
            stdout=subprocess.DEVNULL if drop else None,
            stderr=errors,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        said = errors.read()
    if not drop:
        sys.stderr.write(said)
    return status, said


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing on stderr"


def kept(part: Part, out: Path) -> bool:
    """Whether `out` holds a result of this part for this revision of the sources."""
    file = out / f"{part.result}.json"
    now = _machine.git_revision()
    if now is None or now.endswith("+") or not file.exists():
        return False
    facts: dict[str, Any] = json.loads(file.read_text()).get("machine", {})
    return bool(facts.get("revision") == now)
