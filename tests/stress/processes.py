"""Processes of the driver: the ranks and the server of their store, all forked from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.stress import worker
from tests.stress.board import Board


def fork(body: Callable[[socket.socket], None], log: int) -> tuple[int, socket.socket]:
    """A child that runs `body` with its end of a channel, and has no other descriptor of ours."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    status = 1
    try:
        worker.die_with_parent(parent)
        os.dup2(log, 1)
        os.dup2(log, 2)
        keep = theirs.detach()
        os.closerange(3, keep)
        os.closerange(keep + 1, 1 << 16)
        body(socket.socket(fileno=keep))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class Process:
    """A rank's process; lives through several episodes."""

    def __init__(self, board: Board, slot: int):
        self.slot = slot
        self.log = tempfile.TemporaryFile()
        self.pid, channel = fork(lambda end: worker.serve(end, board, slot), self.log.fileno())
        self._channel = channel
        channel.setblocking(False)
        self._buffer = b""
        self.status: int | None = None  # as of os.waitpid
        self.ended: float | None = None  # time.monotonic() before which it cannot have ended

    def send(self, message: Any) -> None:
        data = pickle.dumps(message)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(struct.pack("<I", len(data)) + data)

    async def receive(self) -> Any:
        """The next message; EOFError when the process has ended."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack("<I", self._buffer[:4])
                if len(self._buffer) >= 4 + length:
                    data, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    return pickle.loads(data)
            try:
                part = await loop.sock_recv(self._channel, 1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                self._reap()
                raise EOFError
            self._buffer += part

    def _reap(self) -> None:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]

    def signal(self, number: int) -> None:
        if self.status is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it in any case."""
        self.signal(signal.SIGKILL)
        self._reap()
        self._channel.close()
        self.log.close()

    def output(self, most: int = 6000) -> str:
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - most))
        return self.log.read().decode(errors="replace")

    def stacks(self) -> str:
        """Of all its Python threads, and where in the kernel its threads are."""
        self.signal(signal.SIGUSR2)
        time.sleep(0.5)
        lines = [self.output()]
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{self.pid}/task"):
                found = []
                for name in ("comm", "wchan", "syscall"):
                    with open(f"/proc/{self.pid}/task/{task}/{name}") as file:
                        found.append(file.read().strip())
                lines.append(f"thread {task}: " + " ".join(found))
        return "\n".join(lines)


class StoreServer:
    """Serves a TCPStore from a process of its own, so that the driver has a single thread."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()
        self.pid, self._channel = fork(self._serve, self._log.fileno())
        try:
            (self.port,) = struct.unpack("<I", self._channel.recv(4))
        except struct.error:
            self._log.seek(0)
            raise RuntimeError(f"no store: {self._log.read().decode()}") from None

    @staticmethod
    def _serve(channel: socket.socket) -> None:
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        channel.send(struct.pack("<I", store.port))
        channel.recv(1)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._channel.close()
        self._log.close()
