"""The recipe for torchft: two replicas train; one is killed, and comes back with the weights of the
other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.recipes.running import (
    MARK,
    RECIPES,
    end_all,
    marked,
    needs_recipes,
    python,
    run_ranks,
)

pytestmark = [needs_recipes, pytest.mark.slow]

_LIGHTHOUSE = """
import sys
least = int(sys.argv[1])
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=least, join_timeout_ms=2000)
print(server.address().replace("[::]", "127.0.0.1"), flush=True)
sys.stdin.read()
server.shutdown()
"""
LAST = r"replica (\d): step (\d+), weights (\w+), sent (\d+) of (\d+) bytes"


class Replicas:
    """Trainings beside each other, each under a torchrun of its own."""

    def __init__(self, folder: Path, lighthouse: str, mark: str):
        self._folder = folder
        self.mark = mark
        self._env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TORCHFT_LIGHTHOUSE": lighthouse,
            MARK: mark,
            **warm.nested(python(), ""),
        }
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, *arguments: str, restarts: int = 0) -> None:
        command = [*warm.python(python()), "-m", "torch.distributed.run", "--standalone"]
        command += ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
        command += [str(RECIPES / "torchft_ddp.py"), *arguments]
        with (self._folder / f"output{number}").open("ab") as log:
            env = {**self._env, "REPLICA_GROUP_ID": str(number)}
            options = {"cwd": ROOT, "env": env, "stdin": subprocess.DEVNULL}
            self.started[number] = subprocess.Popen(command, stdout=log, stderr=log, **options)

    def output(self, number: int) -> str:
        return (self._folder / f"output{number}").read_text(errors="replace")

    def all_output(self) -> str:
        return "\n".join(self.output(number) for number in self.started)

    def wait_until(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.all_output()
            time.sleep(0.05)

    def worker_of(self, number: int) -> int:
        """The process that trains, below torchrun."""
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"REPLICA_GROUP_ID={number}".encode() in words and b"RANK=0" in words:
                    return pid
        raise AssertionError(f"replica {number} has no worker: {self.all_output()}")

    def finish(self, seconds: float = 120.0) -> list[int]:
        self.wait_until(lambda: None not in [one.poll() for one in self.started.values()], seconds)
        return [one.returncode for one in self.started.values()]

    def counts(self, number: int) -> list[int]:
        """How many replicas took part, step by step, as replica `number` has written it."""
        return [int(found) for found in re.findall(r", (\d) replicas: ", self.output(number))]

    def last(self) -> dict[str, tuple[str, ...]]:
        """By replica: step, weights, bytes sent, bytes raw."""
        return {found[0]: found[1:] for found in re.findall(LAST, self.all_output())}


@pytest.fixture
def replicas(request, tmp_path) -> Iterator[Replicas]:
    mark = uuid.uuid4().hex
    lighthouse = subprocess.Popen(
        [python(), "-c", _LIGHTHOUSE, str(getattr(request, "param", 1))],
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each step
    )
    assert lighthouse.stdin is not None and lighthouse.stdout is not None
    try:
        yield Replicas(tmp_path, lighthouse.stdout.readline().decode().strip(), mark)
    finally:
        lighthouse.stdin.close()
        lighthouse.stdout.close()
        end_all(mark, lighthouse)


@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_two_replicas_train_with_fewer_bytes(replicas):
    for number in range(2):
        replicas.start(number)
    assert replicas.finish() == [0, 0], replicas.all_output()
    last = replicas.last()
    assert sorted(last) == ["0", "1"] and last["0"][1] == last["1"][1]
    for step, _, sent, raw in last.values():
        assert step == "40" and 0 < int(sent) < int(raw) / 5
    assert "cgx: compressing 2 of 6" in replicas.all_output()
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", replicas.output(0))]
    assert losses[-1] < 0.6 * losses[0]


def test_a_replica_that_is_killed_comes_back_with_the_weights_of_the_other(replicas):
    # Replica 1 starts three times before replica 0 has ended.
    training = ["--steps", "200", "--pause", "0.2"]
    for number in range(2):
        replicas.start(number, *training, restarts=number)
    replicas.wait_until(lambda: replicas.counts(1)[-3:] == [2] * 3)
    first = replicas.worker_of(1)
    os.kill(first, signal.SIGKILL)  # torchrun starts it again
    before = len(replicas.counts(1))
    replicas.wait_until(lambda: replicas.counts(1)[before:][-3:] == [2] * 3)
    replicas.started[1].kill()  # now torchrun, too
    os.kill(replicas.worker_of(1), signal.SIGKILL)
    replicas.wait_until(lambda: replicas.counts(0)[-3:] == [1] * 3)
    replicas.start(1, *training)  # the same line again
    assert replicas.finish() == [0, 0], replicas.all_output()
    assert replicas.counts(0)[-1] == 2, replicas.all_output()
    last = replicas.last()
    assert last["0"][:2] == last["1"][:2] and last["0"][0] == "200"
    steps = [int(found) for found in re.findall(r"replica 1, step (\d+)", replicas.output(1))]
    assert steps == sorted(steps)  # it has never begun anew


def test_mistakes_are_named():
    script = str(ROOT / "tests" / "recipes" / "torchft_mistakes.py")
    assert run_ranks(script, ranks=1).matches("(all named)") == ["all named"]
