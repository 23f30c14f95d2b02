"""What ranks leave behind that are killed all at once.

    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python -m tests.stress.leftovers PHASE COMMUNICATOR TIMES

PHASE: "calls" (in the middle of all-reduces) or "making" (of groups). Prints JSON: how often ranks
were killed, and what of theirs was still there afterwards. A program of its own, because it forks.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from tests.stress.driver import shared_memory
from tests.stress.processes import StoreServer, fork

RANKS = 3


def _rank(
    channel: socket.socket, phase: str, communicator: str, rank: int, port: int, name: str
) -> None:
    os.environ["CGX_INNER_COMMUNICATOR_TYPE"] = communicator
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    limit = datetime.timedelta(seconds=60)
    store = dist.PrefixStore(name, client)
    dist.init_process_group("cgx", store=store, rank=rank, world_size=RANKS, timeout=limit)
    channel.send(b"r")
    while phase == "making":
        dist.destroy_process_group(dist.new_group(list(range(RANKS))))
    tensor = torch.ones(100_000)
    while True:
        torch_cgx.all_reduce(tensor, config={"bits": 4}, async_op=True)
        dist.all_reduce(tensor.fill_(1))


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has."""
    found = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _open_sockets() -> set[str]:
    """Inodes of all unix sockets, and of TCP sockets that listen or are connected."""
    with open("/proc/net/unix") as file:
        found = {line.split()[6] for line in file.readlines()[1:]}
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as file:
            found |= {line.split()[9] for line in file.readlines()[1:]}
    return found - {"0"}


def _named(pids: set[int]) -> set[str]:
    """Named POSIX semaphores of anybody, and System V memory of these processes."""
    found = {name for name in os.listdir("/dev/shm") if name.startswith("sem.")}
    with open("/proc/sysvipc/shm") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return found | {f"System V segment {row[1]}" for row in rows if int(row[4]) in pids}


def once(
    phase: str, communicator: str, rng: random.Random, server: StoreServer, name: str
) -> list[str]:
    """Starts ranks, kills them together, and looks."""
    semaphores = _named(set())
    ranks: list[tuple[int, socket.socket]] = []
    with tempfile.TemporaryFile() as log:
        for rank in range(RANKS):

            def body(end: socket.socket, rank: int = rank) -> None:
                _rank(end, phase, communicator, rank, server.port, name)

            ranks.append(fork(body, log.fileno()))
        for _, channel in ranks:
            channel.settimeout(60)
            if channel.recv(1) != b"r":
                log.seek(0)
                raise RuntimeError(f"a rank did not start: {log.read().decode()}")
        time.sleep(rng.uniform(0, 0.15))
        sockets = set().union(*(_sockets(pid) for pid, _ in ranks))
        found: list[str] = []
        for pid, _ in ranks:
            os.kill(pid, signal.SIGKILL)
        for pid, channel in ranks:
            status = os.waitpid(pid, 0)[1]
            channel.close()
            if status != signal.SIGKILL:
                log.seek(0)
                found.append(f"status {status} of a rank: {log.read().decode()}")
    pids = {pid for pid, _ in ranks}
    found += [f"/dev/shm/{block}" for block in shared_memory(pids)]
    found += [f"socket {inode}" for inode in sockets & _open_sockets()]
    found += sorted(_named(pids) - semaphores)
    return found


def main(phase: str, communicator: str, times: int) -> dict[str, Any]:
    rng = random.Random(times)
    server = StoreServer()
    found: list[str] = []
    try:
        for number in range(times):
            found += once(phase, communicator, rng, server, f"{phase}{number}")
    finally:
        server.close()
    for name in found:
        if name.startswith("/dev/shm/"):
            os.unlink(name)
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        found += [f"process {pid}" for pid in file.read().split()]
    return {"killed": times * RANKS, "left": found}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
