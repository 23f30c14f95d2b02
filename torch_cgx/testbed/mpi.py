"""Command lines of Open MPI and MPICH that start ranks on the hosts of a test bed."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torch_cgx.testbed.network import BedError


def kind(mpirun: str) -> str:
    """ "openmpi" or "mpich", as the given mpirun says of itself; BedError if it is neither."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise BedError(f"{mpirun}: {error}") from error
    said = done.stdout + done.stderr
    if "Open MPI" in said or "OpenRTE" in said:
        return "openmpi"
    if "HYDRA" in said and "Intel" not in said:
        return "mpich"
    raise BedError(f"{mpirun} is neither Open MPI's nor MPICH's; it says: {said.strip()[:200]!r}")


def command_line(
    mpirun: str, addresses: Sequence[str], ranks: Sequence[int], folder: Path, login: Path
) -> tuple[list[str], dict[str, str]]:
    """The beginning of mpirun's command line, which the ranks' command follows, and variables that
    mpirun and all ranks need. login: a program that takes the place of ssh.
    """
    if kind(mpirun) == "openmpi":
        return _openmpi(mpirun, addresses, ranks, folder, login)
    return _mpich(mpirun, addresses, ranks, login)


def _openmpi(
    mpirun: str, addresses: Sequence[str], ranks: Sequence[int], folder: Path, login: Path
) -> tuple[list[str], dict[str, str]]:
    file = folder / "hostfile"
    slots = zip(addresses, ranks, strict=True)
    file.write_text("".join(f"{address} slots={k}\n" for address, k in slots))
    command = [mpirun, "--allow-run-as-root", "--hostfile", str(file), "-np", str(sum(ranks))]
    # By slot: ranks in the order of hosts. Binding would put the first rank of every host on the
    # same core, as the hosts share a machine.
    command += ["--map-by", "slot", "--bind-to", "none"]
    # ob1 and these transports: others (UCX, vader's copies between processes) detect that the hosts
    # share a machine and would bypass the link.
    settings = {
        "plm_rsh_agent": str(login),
        "pml": "ob1",
        "btl": "self,sm,tcp",
        "btl_tcp_if_include": "eth0",
    }
    for name, value in settings.items():
        command += ["--mca", name, value]
    return command, {}


def _mpich(
    mpirun: str, addresses: Sequence[str], ranks: Sequence[int], login: Path
) -> tuple[list[str], dict[str, str]]:
    slots = zip(addresses, ranks, strict=True)
    hosts = ",".join(f"{address}:{k}" for address, k in slots)
    command = [mpirun, "-launcher", "rsh", "-launcher-exec", str(login), "-hosts", hosts]
    command += ["-iface", "eth0", "-np", str(sum(ranks))]
    # Both of MPICH's network layers, so that neither finds the memory that the hosts really share.
    layers = {
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
    }
    return command, layers


def rank_script(env: dict[str, str]) -> str:
    """A shell script that runs its arguments with `env` and with the name of its host, whatever
    the launcher has done to either.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join(
        ["#!/bin/sh", *lines, "read -r CGX_HOST_ID < /proc/sys/kernel/hostname",
         "export CGX_HOST_ID", 'exec "$@"', ""]
    )  # fmt: skip
