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
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.recipes.on_hosts import Job
from tests.recipes.running import RECIPES, python
from torch_cgx.testbed.bed import Hosts, hosts
from torch_cgx.testbed.watchdog import pids_inside

HOSTS = 2
_PORT = 6379
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "2",  # of the head, which never counts as idle
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # checkpoints wait for it, and so do failures
}


class RayCluster(Job):
    """A running cluster; made by `ray_cluster`."""

    def __init__(self, bed: Hosts, storage: Path):
        super().__init__(bed, bed.folder, [])
        self.storage = storage
        self.address = f"{bed.addresses[0]}:{_PORT}"
        self.env |= _SETTINGS | {"HOME": str(bed.folder), "RAY_ADDRESS": self.address}
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start_nodes(self) -> None:
        for host in range(HOSTS):
            command = [python(), "-m", "ray.scripts.scripts", "start", "--block"]
            command += ["--num-cpus", "1", "--object-store-memory", "100000000"]
            command += ["--node-ip-address", self.bed.addresses[host]]
            command += ["--temp-dir", str(self._folder(host))]
            if host == 0:
                command += ["--head", "--port", str(_PORT), "--include-dashboard", "false"]
            else:
                command += ["--address", self.address]
            self._nodes.append(self.start(host, command))
            self.wait_until(lambda: self.output().count("Ray runtime started") == len(self._nodes))

    def stop_nodes(self) -> None:
        """AssertionError where a process of Ray outlives its node."""
        for node in reversed(self._nodes):
            node.send_signal(signal.SIGTERM)
        self.wait_until(lambda: None not in [node.poll() for node in self._nodes])
        self.wait_until(lambda: not pids_inside(self.bed.names), 10)

    def train(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts the recipe on the first host."""
        command = [python(), str(RECIPES / "ray_train.py"), "--name", name]
        return self.start(0, [*command, "--storage", str(self.storage), *arguments])

    def kill_a_worker(self, name: str, host: int) -> None:
        """The worker on `host`, as soon as the run `name` has a checkpoint."""
        index = self.storage / name / "checkpoint_manager_snapshot.json"
        self.wait_until(lambda: index.exists() and "checkpoint_2" in index.read_text())
        (victim,) = self._workers([self.bed.names[host]])
        os.kill(victim, signal.SIGKILL)

    def status_of(self, training: subprocess.Popen[bytes]) -> int:
        """Once it has ended, and all its workers."""
        self.wait_until(lambda: training.poll() is not None)
        self.wait_until(lambda: not self._workers(self.bed.names), 10)
        return training.returncode

    def lines_of_workers(self) -> str:
        """All that workers have written, each line once. Ray shows it where a training was started,
        but not always to the end.
        """
        logs = [self._folder(host) / "session_latest" / "logs" for host in range(HOSTS)]
        files = [file for folder in logs for file in folder.glob("worker-*.out")]
        return "\n".join(file.read_text(errors="replace") for file in files)

    def _folder(self, host: int) -> Path:
        return self.bed.folder / str(host)  # a short path: Ray has sockets below it

    def _workers(self, names: Sequence[str]) -> list[int]:
        found = []
        for pid in pids_inside(names):
            with contextlib.suppress(OSError):
                if b"RayTrainWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


@contextlib.contextmanager
def ray_cluster(storage: Path) -> Iterator[RayCluster]:
    """Two hosts with Ray, one worker on each; `storage` is the folder for checkpoints."""
    with hosts(HOSTS) as bed:
        cluster = RayCluster(bed, storage)
        try:
            cluster.start_nodes()
            yield cluster
            cluster.stop_nodes()
        finally:
            cluster.kill()
