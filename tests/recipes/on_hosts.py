"""Recipes on a bed of hosts: commands that run beside each other, and the processes of ranks.

with hosts(2) as bed, commands(bed, tmp_path, [PATH, ...]) as job:
    job.start(0, ["./torchrun.sh", ...])
    job.finish(seconds=60)        # all must end with status 0
    print(job.output())
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.distributed import ROOT
from torch_cgx.testbed.bed import Hosts
from torch_cgx.testbed.processes import environment, inherited
from torch_cgx.testbed.watchdog import pids_inside

LINE = re.compile(
    r"rank (\d) of (\d): steps (\d+) to (\d+), loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)


class Job:
    """Commands on the hosts of a bed, in `folder`. path: what comes first in their PATH."""

    def __init__(self, bed: Hosts, folder: Path, path: Sequence[Path]):
        self.bed = bed
        self.folder = folder
        self.env = inherited() | environment(ROOT, bed.folder, "", None)
        self.env["PATH"] = os.pathsep.join([*map(str, path), os.environ["PATH"]])
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, host: int, command: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"output{len(self.started)}"
        with log.open("wb") as file:
            process = self.bed.popen(
                host,
                command,
                env=self.env | env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append((process, log))
        return process

    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for _, log in self.started)

    def wait_until(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        """AssertionError, with the end of all output, where `condition` does not come true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.output()[-8000:]
            time.sleep(0.02)

    def finish(self, seconds: float) -> list[int]:
        """The status of each command, in the order in which they were started."""
        self.wait_until(lambda: None not in [p.poll() for p, _ in self.started], seconds)
        return [process.returncode for process, _ in self.started]

    def kill(self) -> None:
        """What this process has started; the bed's end kills the rest."""
        for process, _ in self.started:
            process.kill()
            process.wait()

    def left(self) -> list[int]:
        """Processes on the hosts, a few seconds later."""
        deadline = time.monotonic() + 10
        while (pids := pids_inside(self.bed.names)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return pids

    def ranks(self) -> dict[int, int]:
        """The processes of ranks on all hosts: pid by rank."""
        found = {}
        for pid in pids_inside(self.bed.names):
            with contextlib.suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                variables = Path(f"/proc/{pid}/environ").read_bytes()
                rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", variables)
                if rank and b"train.py" in arguments:
                    found[int(rank[1])] = pid
        return found


@contextlib.contextmanager
def commands(bed: Hosts, folder: Path, path: Sequence[Path]) -> Iterator[Job]:
    """A `Job`, of which nothing is left at the end."""
    job = Job(bed, folder, path)
    try:
        yield job
    finally:
        job.kill()


def check_ranks(output: str, ranks: int, last: int, share: float = 0.2) -> tuple[int, str]:
    """All ranks have ended at step `last`, alike, with less than `share` of the bytes of exact
    gradients: their first step and weights.
    """
    found = sorted(LINE.findall(output))
    assert [one[0] for one in found] == [str(rank) for rank in range(ranks)], output
    for _, size, _, end, _, _, _, sent, raw in found:
        assert int(size) == ranks and int(end) == last
        assert 0 < int(sent) < share * int(raw)
    assert len({(one[2], one[6]) for one in found}) == 1, "steps or weights differ between ranks"
    return int(found[0][2]), found[0][6]
