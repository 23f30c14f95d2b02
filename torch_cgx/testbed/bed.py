"""Hosts made of network namespaces, for tests and benchmarks of what crosses a wire.

    with hosts(2, rate="1gbit") as h:
        outputs = h.run([sys.executable, "train.py"], ranks=2)  # two ranks on each host
        _, traffic = h.traffic_of(lambda: h.torchrun([sys.executable, "train.py"], [2, 1]))
        print(traffic[0].sent_bytes)

A host has a name, an address on its interface eth0, a link of the given rate to a switch that joins
all hosts, a /dev/shm of its own, and an /etc/hosts with all names. It shares this machine's cores,
memory, files, boot id and process ids; CGX_HOST_ID, the host's name, marks the hosts as different.
Only the other hosts can be reached. All of it goes away at the end, also if this process is killed.

Needs Linux, root, iproute2 (`apt-get install iproute2`) and util-linux: `hosts_available()` says
what is missing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from torch_cgx.testbed import mpi, network, watchdog
from torch_cgx.testbed.network import BedError, Counters, hosts_available
from torch_cgx.testbed.processes import (
    MARK,
    HostsFailed,
    Started,
    environment,
    finish,
    inherited,
    start,
)

__all__ = ["BedError", "Counters", "Hosts", "HostsFailed", "hosts", "hosts_available"]

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
_FIRST_PORT = 29500  # below the ports that the kernel hands out; a bed's hosts have no other users
_beds = itertools.count()

# Runs a command as a fresh login would, from any host: with the files of the machine, not with the
# files of the calling host.
_ENTER = """#!/bin/sh
# enter HOST COMMAND...
host=$1; shift
exec nsenter --target {watchdog} --mount --uts --net -- \\
  ip netns exec "$host" unshare --uts -- sh {folder}/inside "$host" "$PWD" "$@"
"""
_INSIDE = """# inside HOST FOLDER COMMAND...: on HOST, in mount and uts namespaces of its own
host=$1; cd "$2" || exit 1; shift 2
set -e
echo "$host" > /proc/sys/kernel/hostname
mount --bind {folder}/hosts /etc/hosts
mount --bind {memory}/"$host" /dev/shm
export CGX_HOST_ID="$host"
exec "$@"
"""
_LOGIN = """#!/bin/sh
# login [OPTIONS] ADDRESS COMMAND...: in place of ssh, for mpirun
while case $1 in -*) true;; *) false;; esac; do shift; done
host=$(awk -v key="$1" '$1 == key || $2 == key {{ print $2; exit }}' {folder}/hosts)
[ -n "$host" ] || {{ echo "login: no host $1" >&2; exit 1; }}
shift
exec {folder}/enter "$host" sh -c "$*"
"""


class Hosts:
    """A running test bed; made by `hosts`. Its methods may be called from several threads."""

    @staticmethod
    def python() -> list[str]:
        """The command that starts torchrun; tests use a process that has imported torch."""
        return [sys.executable]

    def __init__(
        self, name: str, number: int, rate: str | None, folder: Path, memory: Path, watchdog: int
    ):
        self.names = [f"{name}-{i}" for i in range(number)]
        """Names of the hosts, and of their network namespaces."""
        self.addresses = [network.address(i) for i in range(number)]
        """IPv4 addresses of the hosts' eth0."""
        self.rate = rate
        """Of every link, each way; None: as fast as this machine can."""
        self.folder = folder
        """A folder that goes away with the bed."""
        self._switch = f"{name}-s"
        self._memory = memory
        self._watchdog = watchdog
        self._runs = itertools.count()

    @property
    def namespaces(self) -> list[str]:
        """Names of all network namespaces of the bed: the hosts' and the switch's."""
        return [*self.names, self._switch]

    def _build(self) -> None:
        for name in self.names:
            (self._memory / name).mkdir(mode=0o1777)
        table = zip(self.addresses, self.names, strict=True)
        lines = [
            "127.0.0.1 localhost",
            "::1 localhost",
            *(f"{address} {name}" for address, name in table),
            "",
        ]
        (self.folder / "hosts").write_text("\n".join(lines))
        values = {"folder": self.folder, "memory": self._memory, "watchdog": self._watchdog}
        (self.folder / "inside").write_text(_INSIDE.format(**values))
        self._script("enter", _ENTER.format(**values))
        self._script("login", _LOGIN.format(**values))
        network.build(self._switch, self.names, self.rate)

    def _script(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    # ---- traffic

    def counters(self) -> list[Counters]:
        """The traffic of every host's link so far."""
        return network.read(self._switch, self.names)

    def traffic_of(self, call: Callable[[], T]) -> tuple[T, list[Counters]]:
        """The result of `call`, and the traffic of every host's link while it ran."""
        before = self.counters()
        value = call()
        after = self.counters()
        return value, [a - b for a, b in zip(after, before, strict=True)]

    # ---- processes

    def command_on(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on host number `host`."""
        return [str(self.folder / "enter"), self.names[host], *command]

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` of a command on one host. It is killed when the bed ends."""
        options.setdefault("env", inherited() | environment(ROOT, self.folder, "", None))
        return subprocess.Popen(self.command_on(host, command), **options)

    def run(
        self,
        command: Sequence[str],
        ranks: Sequence[int] | int = 1,
        env: dict[str, str] | None = None,
        timeout: float = 120.0,
        grace: float = 5.0,
    ) -> list[str]:
        """Runs `command` (a whole command line) as ranks of one job; what each has written, in rank
        order.

        Each rank is started directly with the variables that torchrun sets (RANK, WORLD_SIZE,
        LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT): the start that costs
        least. torchrun adds an agent per host.

        ranks: per host, one number for all or one for each. env: variables on top of this
        process's. HostsFailed if a rank fails, or `timeout` seconds are over; nothing of the run is
        left then or later. `grace`: seconds that the others have to end after the first failure.
        """
        counts = self._counts(ranks)
        folder, mark, port, base, extra = self._prepare(env)

        def launch(started: list[Started]) -> None:
            rank = 0
            for host, count in enumerate(counts):
                for local in range(count):
                    place = {
                        "RANK": rank,
                        "WORLD_SIZE": sum(counts),
                        "LOCAL_RANK": local,
                        "LOCAL_WORLD_SIZE": count,
                        "GROUP_RANK": host,
                        "MASTER_ADDR": self.addresses[0],
                        "MASTER_PORT": port,
                    }
                    settings = base | {name: str(value) for name, value in place.items()} | extra
                    label = f"rank {rank} on {self.names[host]}"
                    line = self.command_on(host, command)
                    started.append(start(label, line, settings, folder / f"rank{rank}.log"))
                    rank += 1

        what = f"{' '.join(command)} as {counts} ranks"
        return finish(what, launch, self.names, mark, timeout, grace)

    def torchrun(
        self,
        command: Sequence[str],
        ranks: Sequence[int] | int = 1,
        env: dict[str, str] | None = None,
        timeout: float = 120.0,
        grace: float = 5.0,
    ) -> list[str]:
        """As `run`, by one torchrun per host; what each torchrun and its ranks have written, in the
        order of hosts.
        """
        counts = self._counts(ranks)
        folder, mark, port, base, extra = self._prepare(env)

        def launch(started: list[Started]) -> None:
            for host, count in enumerate(counts):
                line = [*Hosts.python(), "-m", "torch.distributed.run"]
                line += ["--nnodes", str(len(counts)), "--node-rank", str(host)]
                line += ["--nproc-per-node", str(count), "--master-addr", self.addresses[0]]
                line += ["--master-port", str(port), "--no-python", *command]
                label = f"torchrun on {self.names[host]}"
                line = self.command_on(host, line)
                started.append(start(label, line, base | extra, folder / f"host{host}.log"))

        what = f"torchrun of {' '.join(command)} as {counts} ranks"
        return finish(what, launch, self.names, mark, timeout, grace)

    def mpirun(
        self,
        command: Sequence[str],
        ranks: Sequence[int] | int = 1,
        mpirun: str | os.PathLike[str] = "mpirun",
        env: dict[str, str] | None = None,
        timeout: float = 120.0,
        grace: float = 5.0,
    ) -> str:
        """As `run`, by one mpirun on host 0 (Open MPI's or MPICH's: which is found out), which
        starts the ranks over TCP; what it and all ranks have written.
        """
        counts = self._counts(ranks)
        folder, mark, _, base, extra = self._prepare(env)
        program = os.fspath(mpirun)
        login = self.folder / "login"
        line, needed = mpi.command_line(program, self.addresses, counts, folder, login)
        rank = self._script(f"{folder.name}/rank", mpi.rank_script(needed | extra))
        line = self.command_on(0, [*line, str(rank), *command])

        def launch(started: list[Started]) -> None:
            label = f"mpirun on {self.names[0]}"
            started.append(start(label, line, base | needed | extra, folder / "mpirun.log"))

        what = f"{program} of {' '.join(command)} as {counts} ranks"
        return finish(what, launch, self.names, mark, timeout, grace)[0]

    def _counts(self, ranks: Sequence[int] | int) -> list[int]:
        counts = [ranks] * len(self.names) if isinstance(ranks, int) else list(ranks)
        if len(counts) != len(self.names) or any(count < 1 for count in counts):
            raise ValueError(
                f"ranks {ranks!r}; allowed: one number from 1 for each of the "
                f"{len(self.names)} hosts, or one for all"
            )
        return counts

    def _prepare(
        self, env: dict[str, str] | None
    ) -> tuple[Path, str, int, dict[str, str], dict[str, str]]:
        number = next(self._runs)
        folder = self.folder / f"run{number}"
        folder.mkdir()
        mark = str(folder)
        return folder, mark, _FIRST_PORT + number, inherited(), environment(ROOT, folder, mark, env)


@contextlib.contextmanager
def hosts(n: int, rate: str | None = "1gbit") -> Iterator[Hosts]:
    """A bed of `n` hosts (1 to 250), each joined to a switch by a link of `rate` each way, as
    "1gbit", "200mbit"; None: unshaped. BedError if it cannot be built: see `hosts_available`.
    """
    if not 1 <= n <= network.MAX_HOSTS:
        raise ValueError(f"{n} hosts; allowed: 1 to {network.MAX_HOSTS}")
    if rate is not None:
        network.parse_rate(rate)
    name = f"cgx{os.getpid()}-{next(_beds)}"
    unique = f"{name}-{os.urandom(4).hex()}"
    folder = Path(tempfile.gettempdir()) / f"hosts-{unique}"
    memory = Path("/dev/shm") / f"hosts-{unique}"
    namespaces = [*(f"{name}-{i}" for i in range(n)), f"{name}-s"]
    taken = [one for one in namespaces if Path("/run/netns", one).exists()]
    if taken:
        raise BedError(f"network namespaces {taken} exist already; ip netns del removes them")
    guard, pipe = _start_watchdog(namespaces, [folder, memory])
    try:
        for one in (folder, memory):
            one.mkdir(mode=0o700)
        bed = Hosts(name, n, rate, folder, memory, guard.pid)
        bed._build()
        yield bed
    finally:
        with contextlib.suppress(BrokenPipeError):
            pipe.write(b".")
        pipe.close()
        _, said = guard.communicate()
        if guard.returncode:
            raise BedError(f"the test bed {name} is not gone: {said.strip() or guard.returncode}")


def _start_watchdog(
    names: Sequence[str], folders: Sequence[Path]
) -> tuple[subprocess.Popen[str], IO[bytes]]:
    reads, writes = os.pipe()
    # By its file: as a module it would import torch first.
    program = watchdog.__file__
    command = [sys.executable, "-S", program, str(reads), str(os.getpid())]
    env = inherited()
    env["HOSTBED_FOLDERS"] = os.pathsep.join(map(str, folders))
    env.pop(MARK, None)
    process = subprocess.Popen(
        [*command, *names],
        pass_fds=[reads],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=env,
        start_new_session=True,
    )
    os.close(reads)
    return process, os.fdopen(writes, "wb", buffering=0)
