"""Runs a recipe of examples/recipes as a user would, in the environment that `make recipes` makes,
and ends all processes that it has started.

    pytestmark = needs_recipes

    def test_it_trains():
        finished = run_ranks("lightning_ddp.py")       # torchrun, two ranks
        assert finished.matches(r"rank (\\d)") == ["0", "1"]

CGX_TEST_RECIPES names the environment: `make recipes` makes .venv-recipes and sets it. Without it
the tests are skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import warm
from tests.distributed import ROOT

RECIPES = ROOT / "examples" / "recipes"
_VARIABLE = "CGX_TEST_RECIPES"
MARK = "RECIPE_RUN"  # in the environment of all processes of one run
_TAIL = 8000  # characters of output in an error
_GRACE_SECONDS = 10.0  # for processes to end by themselves, before and after SIGTERM

# What takes the ranks of a recipe most of their time. No recipe downloads: read at the import.
_TRAINERS = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import accelerate, lightning
from transformers import GPT2LMHeadModel, Trainer
"""
_DEEPSPEED = "import deepspeed"

needs_recipes = pytest.mark.skipif(
    not os.environ.get(_VARIABLE),
    reason=f"{_VARIABLE} does not name an environment; make recipes makes and names one",
)


def python() -> str:
    """The interpreter of the recipes' environment. RuntimeError if there is none."""
    path = Path(os.environ[_VARIABLE], "bin", "python")
    if not path.exists():
        raise RuntimeError(f"{_VARIABLE}={os.environ[_VARIABLE]}: {path} does not exist")
    return str(path)


def extensions() -> Path:
    """Where torch compiles extensions in these runs: nobody else waits for a lock there."""
    return Path(os.environ[_VARIABLE], "torch_extensions")


@dataclasses.dataclass
class Finished:
    """A run that has ended: its exit status, and what all its processes wrote."""

    status: int
    output: str
    seconds: float

    def matches(self, pattern: str) -> list[str]:
        """The first groups of all matches in the output, sorted: ranks write in any order."""
        return sorted(match[1] for match in re.finditer(pattern, self.output))


def run(
    command: Sequence[str],
    *,
    seconds: float = 180.0,
    env: Mapping[str, str] | None = None,
    status: int | None = 0,
) -> Finished:
    """Runs `command` in the root of the repository until it has ended, at most `seconds`.

    status: that the run must have; None: any other than 0. AssertionError, with the output, for
    another status, for a run that takes too long, and for processes that outlive it.
    """
    mark = uuid.uuid4().hex
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",  # no recipe downloads
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # What DeepSpeed compiles.
        **({"TORCH_EXTENSIONS_DIR": str(extensions())} if os.environ.get(_VARIABLE) else {}),
        **(env or {}),
        MARK: mark,
    }
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            found: int | None = process.wait(timeout=seconds)
            outlived = _names(_wait_for_end(mark))
        except subprocess.TimeoutExpired:
            found, outlived = None, []
        finally:
            end_all(mark, process)
        took = time.monotonic() - started
        log.seek(0)
        output = log.read().decode(errors="replace")
    shown = f"{' '.join(command)}\n{output[-_TAIL:]}"
    assert found is not None, f"still running after {seconds} s: {shown}"
    assert not outlived, f"left running: {outlived}: {shown}"
    good = found != 0 if status is None else found == status
    wanted = "another than 0" if status is None else status
    assert good, f"status {found}, expected {wanted}: {shown}"
    return Finished(found, output, took)


def write_commands(
    folder: Path, interpreter: str | os.PathLike[str], started: bool = False
) -> dict[str, str]:
    """Writes `python` and `torchrun` of `interpreter` into `folder`, for a PATH, and returns
    variables for the run. The commands and torchrun's ranks are forked from a process that has
    imported torch (tests/warm); started: each starts anew.
    """
    folder.mkdir(exist_ok=True)
    variables = {} if started else warm.nested(interpreter, "")
    program = variables.get("CGX_TEST_WARM_NESTED", os.fspath(interpreter))
    lines = {"python": "", "torchrun": " -m torch.distributed.run"}
    for name, words in lines.items():
        line = f'#!/bin/sh\nexec {shlex.quote(program)}{words} "$@"\n'
        # Not written here: a process that another thread forks meanwhile would hold the file open
        # for writing, and whoever runs it then finds the text file busy.
        install = ["install", "-m", "755", "/dev/stdin", os.fspath(folder / name)]
        subprocess.run(install, input=line, text=True, check=True)
    return variables


def trainers_python() -> list[str]:
    """The beginning of a line that runs Python with the trainers imported (tests/warm)."""
    return warm.python(python(), _TRAINERS)


def run_ranks(
    script: str,
    *arguments: str,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> Finished:
    """Runs examples/recipes/SCRIPT on ranks started by torchrun; a whole path is taken as it is.
    Takes the options of `run`.

    torchrun and the ranks are forked from a process that has imported the trainers.
    """
    imported = _DEEPSPEED if "deepspeed" in script else _TRAINERS
    command = [*warm.python(python(), imported), "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(RECIPES / script), *arguments]
    env = {**warm.nested(python(), imported), **(env or {})}
    return run(command, env=env, **options)  # type: ignore[arg-type]


def marked(mark: str) -> list[int]:
    """The processes, zombies apart, whose environment has the mark."""
    wanted = f"{MARK}={mark}".encode()
    found, forked = set(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (folder / "comm").read_text().strip()
            if name.startswith("warm-"):  # its client has its variables, and kills it by its end
                forked[int(folder.name)] = int(name.removeprefix("warm-"))
            elif wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return sorted(found | {pid for pid, client in forked.items() if client in found})


def _names(pids: Sequence[int]) -> list[str]:
    names = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            names.append(f"{pid} {' '.join(words)[:200]}")
    return names


def _wait_for_end(mark: str) -> list[int]:
    """The marked processes that are still there after a while."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (pids := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return pids


def end_all(mark: str, process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, on which torchrun ends its workers; after a while SIGKILL."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_SECONDS)
        if not _wait_for_end(mark):
            return
