"""A cluster of Ray on a bed of hosts, for tests of the recipe.

    with ray_cluster(storage) as cluster:
        training = cluster.train("run1", "--steps", "120")
        cluster.kill_a_worker("run1", host=1)      # as soon as it has a checkpoint
        assert cluster.status_of(training) == 0
        print(cluster.lines_of_workers())

Each host has one CPU, and so one worker. All files but the checkpoints are in the bed's folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from testbed.bed import Hosts, hosts
from testbed.processes import environment, inherited
from testbed.watchdog import pids_inside
from tests.distributed import ROOT
from tests.recipes.running import RECIPES, python

HOSTS = 2
_PORT = 6379
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "2",  # of the head, which never counts as idle
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # checkpoints wait for it, and so do failures
}


class RayCluster:
    """A running cluster; made by `ray_cluster`."""

    def __init__(self, bed: Hosts, storage: Path):
        self.bed = bed
        self.storage = storage
        self.address = f"{bed.addresses[0]}:{_PORT}"
        self._env = inherited() | environment(ROOT, bed.folder, "", None) | _SETTINGS
        self._env |= {"HOME": str(bed.folder), "RAY_ADDRESS": self.address}
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for host in range(HOSTS):
            command = [python(), "-m", "ray.scripts.scripts", "start", "--block"]
            command += ["--num-cpus", "1", "--object-store-memory", "100000000"]
            command += ["--node-ip-address", self.bed.addresses[host]]
            command += ["--temp-dir", str(self._folder(host))]
            if host == 0:
                command += ["--head", "--port", str(_PORT), "--include-dashboard", "false"]
            else:
                command += ["--address", self.address]
            self._nodes.append(self._popen(host, command))
            self._wait_until(lambda: self.output().count("Ray runtime started") == len(self._nodes))

    def stop(self) -> None:
        """AssertionError where a process of Ray outlives its node."""
        for node in reversed(self._nodes):
            node.send_signal(signal.SIGTERM)
        self._wait_until(lambda: None not in [node.poll() for node in self._nodes])
        self._wait_until(lambda: not pids_inside(self.bed.names), 10)

    def kill(self) -> None:
        """What this process has started; the bed's end kills the rest."""
        for process, _ in self._started:
            process.kill()
            process.wait()

    def train(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts the recipe on the first host."""
        command = [python(), str(RECIPES / "ray_train.py"), "--name", name]
        return self._popen(0, [*command, "--storage", str(self.storage), *arguments])

    def kill_a_worker(self, name: str, host: int) -> None:
        """The worker on `host`, as soon as the run `name` has a checkpoint."""
        index = self.storage / name / "checkpoint_manager_snapshot.json"
        self._wait_until(lambda: index.exists() and "checkpoint_2" in index.read_text())
        (victim,) = self._workers([self.bed.names[host]])
        os.kill(victim, signal.SIGKILL)

    def status_of(self, training: subprocess.Popen[bytes]) -> int:
        """Once it has ended, and all its workers."""
        self._wait_until(lambda: training.poll() is not None)
        self._wait_until(lambda: not self._workers(self.bed.names), 10)
        return training.returncode

    def lines_of_workers(self) -> str:
        """All that workers have written, each line once. Ray shows it where a training was started,
        but not always to the end.
        """
        logs = [self._folder(host) / "session_latest" / "logs" for host in range(HOSTS)]
        files = [file for folder in logs for file in folder.glob("worker-*.out")]
        return "\n".join(file.read_text(errors="replace") for file in files)

    def output(self) -> str:
        """What nodes and trainings have written."""
        return "\n".join(log.read_text(errors="replace") for _, log in self._started)

    def _folder(self, host: int) -> Path:
        return self.bed.folder / str(host)  # a short path: Ray has sockets below it

    def _popen(self, host: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
        log = self.bed.folder / f"output{len(self._started)}"
        with log.open("wb") as file:
            process = self.bed.popen(
                host,
                command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._started.append((process, log))
        return process

    def _workers(self, names: Sequence[str]) -> list[int]:
        found = []
        for pid in pids_inside(names):
            with contextlib.suppress(OSError):
                if b"RayTrainWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _wait_until(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.output()[-8000:]
            time.sleep(0.02)


@contextlib.contextmanager
def ray_cluster(storage: Path) -> Iterator[RayCluster]:
    """Two hosts with Ray, one worker on each; `storage` is the folder for checkpoints."""
    with hosts(HOSTS) as bed:
        cluster = RayCluster(bed, storage)
        try:
            cluster.start()
            yield cluster
            cluster.stop()
        finally:
            cluster.kill()
