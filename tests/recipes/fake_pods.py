"""python fake_pods.py JOB.json --map /code=FOLDER ... [ARGUMENT ...]

The pods of a PyTorchJob as processes of this host, with the environment that the training operator
(1.7 and newer) sets: no Kubernetes is needed. ARGUMENTs are added to the container's command.

A container that fails starts again, as with restartPolicy OnFailure, until runPolicy.backoffLimit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
Steps = Iterator[None]


def variables(job: dict[str, Any], port: int) -> dict[str, dict[str, str]]:
    """By pod: what the operator sets, then what the container sets."""
    spec = job["spec"]
    pods: dict[str, dict[str, str]] = {}
    names = []
    for kind in ("Master", "Worker"):
        replicas = spec["pytorchReplicaSpecs"].get(kind, {"replicas": 0}).get("replicas", 1)
        names += [(kind, f"{job['metadata']['name']}-{kind.lower()}-{i}") for i in range(replicas)]
    per_pod = spec["nprocPerNode"]
    for rank, (kind, name) in enumerate(names):
        container = _container(job, kind)
        pods[name] = {
            "PYTHONUNBUFFERED": "1",
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
            "PET_MASTER_ADDR": LOOPBACK,
            "PET_MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(names) * int(per_pod)),
            "RANK": str(rank),
            "PET_NPROC_PER_NODE": per_pod,
            "PET_NODE_RANK": str(rank),
            "PET_NNODES": str(len(names)),
            **{variable["name"]: variable["value"] for variable in container["env"]},
            "CGX_HOST_ID": name,  # pods do not share memory
        }
    return pods


def command(job: dict[str, Any], kind: str, folders: dict[str, str]) -> list[str]:
    """The container's command, with this host's folders in place of its mounts."""
    container = _container(job, kind)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    words = []
    for word in container["command"]:
        for inside, here in folders.items():
            if word.startswith(f"{inside}/"):
                if inside not in mounts:
                    raise ValueError(f"{word}: no volume is mounted at {inside}")
                word = here + word.removeprefix(inside)
                break
        words.append(word)
    return words


def _kind(pod: str) -> str:
    return "Master" if "-master-" in pod else "Worker"


def _container(job: dict[str, Any], kind: str) -> dict[str, Any]:
    containers = job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]["containers"]
    return next(one for one in containers if one["name"] == "pytorch")


def _free_port() -> int:
    """In place of the operator's 23456, so that tests may run side by side."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


def _rank_of(torchrun: subprocess.Popen[bytes] | None) -> int | None:
    """The process of a pod's rank, once torchrun has started it."""
    if torchrun is None:
        return None
    try:
        children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    except OSError:
        return None
    return next((pid for pid in map(int, children) if _is_rank(pid)), None)


def _is_rank(pid: int) -> bool:
    """Not another child of torchrun, nor one that still runs torchrun's own code: torchrun waits
    for the end of that, and stops with it.
    """
    try:
        return b"\0LOCAL_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _listens(port: int) -> bool:
    lines = Path("/proc/net/tcp6").read_text() + Path("/proc/net/tcp").read_text()
    return re.search(rf":{port:04X} \w+:0000 0A ", lines) is not None


def _old_master_first(
    running: dict[str, subprocess.Popen[bytes]], names: list[str], port: int
) -> Steps:
    """Ends the worker, and lets it start again while the old master still runs, but its rank only
    when the new master listens.
    """
    master, worker = names
    while (rank := _rank_of(running.get(master))) is None:
        yield
    os.kill(rank, signal.SIGSTOP)
    before = running[master], running[worker]
    before[1].send_signal(signal.SIGTERM)
    while running.get(worker) is before[1] or (new := _rank_of(running.get(worker))) is None:
        yield
    os.kill(new, signal.SIGSTOP)
    print(f"pods: {worker} has started again, {master} goes on", flush=True)
    os.kill(rank, signal.SIGCONT)
    while running.get(master) is before[0] or not _listens(port):
        yield
    print(f"pods: {master} listens again, {worker} goes on", flush=True)
    os.kill(new, signal.SIGCONT)


def _stop_waiting(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """Ends a master alone, whose rank has ended: its torchrun waits five minutes for the one of a
    worker that knew the old master only.
    """
    (name,) = running
    until = time.monotonic() + 5.0
    while time.monotonic() < until and running[name].poll() is None:
        if _rank_of(running[name]) is not None:
            return
        time.sleep(0.01)
    if running[name].poll() is None:
        print(f"pods: {name} is not awaited", flush=True)
        running[name].kill()
        running.pop(name).wait()


def run_pods(
    job: dict[str, Any],
    folders: dict[str, str],
    more: list[str],
    end_worker: Path | None,
    old_master: bool = False,
) -> int:
    """Runs all pods to their end. end_worker: once this file exists, a worker gets SIGTERM;
    old_master: in the order of `_old_master_first`.
    """
    port = _free_port()
    pods = variables(job, port)
    restarts_left = job["spec"]["runPolicy"]["backoffLimit"]
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        words = [*command(job, _kind(name), folders), *more]
        running[name] = subprocess.Popen(words, env={**os.environ, **pods[name]})

    for name in pods:
        start(name)
    steps: Steps = iter(())
    ended_well = False
    while running:
        time.sleep(0.01)
        next(steps, None)
        if ended_well and len(running) == 1 and _rank_of(*running.values()) is None:
            _stop_waiting(running)
        if end_worker is not None and end_worker.exists():
            end_worker = None
            name = next(name for name in running if _kind(name) == "Worker")
            print(f"pods: {name} gets SIGTERM", flush=True)
            if old_master:
                steps = _old_master_first(running, list(pods), port)
            else:
                running[name].send_signal(signal.SIGTERM)
        for name, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[name]
            print(f"pods: {name} ended with status {process.returncode}", flush=True)
            if process.returncode == 0:
                ended_well = True
                continue
            policy = job["spec"]["pytorchReplicaSpecs"][_kind(name)]["restartPolicy"]
            if policy != "OnFailure" or restarts_left == 0:
                print("pods: the job has failed", flush=True)
                for other in running.values():
                    other.terminate()
                return 1
            restarts_left -= 1
            start(name)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", action="append", default=[], metavar="INSIDE=HERE")
    parser.add_argument("--end-worker", type=Path, metavar="FILE", help="once FILE exists")
    parser.add_argument("--old-master", action="store_true", help="outlives the worker's start")
    parser.add_argument("job", type=Path)
    options, more = parser.parse_known_args()
    folders = dict(word.split("=", 1) for word in options.map)
    return run_pods(
        json.loads(options.job.read_text()), folders, more, options.end_worker, options.old_master
    )


if __name__ == "__main__":
    sys.exit(main())
