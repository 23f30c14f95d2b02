"""Checks of this host: shared memory, network, open files."""

from __future__ import annotations

import os
import resource
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_cgx.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from torch_cgx.cli.output import size_text
from torch_cgx.launch._network import Address

SECTION = "host"
SHM = Path("/dev/shm")
CONTROL_BYTES = 1 << 20  # more than a group's control area takes
OLD = 60.0  # seconds: a name in /dev/shm lives only until all ranks of a group have opened it
OPEN_FILES = 1024


def check_shm(
    folder: Path,
    block_bytes: int,
    ranks: int,
    asked: str,
    free: int | None = None,
    needed: bool = True,
) -> Finding:
    """block_bytes: of `shm_segment_kb`; a group takes up to two such blocks per rank. asked:
    NAME=VALUE that asks for shared memory; empty for the default. free: bytes; None: as the folder
    has it. needed: whether groups use shared memory; where they do not, its lack is a note.
    """
    need = 2 * block_bytes * ranks + CONTROL_BYTES
    lack = PROBLEM if needed else NOTE
    try:
        space = os.statvfs(folder)
        if not stat.S_ISDIR(folder.stat().st_mode) or not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(f"{folder} cannot be written to")
    except OSError as error:
        mend = f"mount a tmpfs at {folder}, or set CGX_INNER_COMMUNICATOR_TYPE=GLOO"
        return Finding(SECTION, "shared memory", lack, str(error), mend)
    total = space.f_frsize * space.f_blocks
    if free is None:
        free = space.f_frsize * space.f_bavail
    found = f"{size_text(free)} free of {size_text(total)} in {folder}"
    needs = f"a group of {ranks} ranks takes up to {size_text(need)}"
    mend = (
        "docker: --shm-size=1g; Kubernetes: an emptyDir with medium Memory; or a smaller "
        "CGX_SHM_SEGMENT_KB, or CGX_INNER_COMMUNICATOR_TYPE=GLOO"
    )
    if free < need:
        why = f" ({asked})" if asked else ""
        return Finding(SECTION, "shared memory", lack, f"{found}; {needs}{why}", mend)
    if free < 8 * need:
        return Finding(SECTION, "shared memory", NOTE, f"{found}; {needs}: few groups fit", mend)
    return Finding(SECTION, "shared memory", OK, f"{found}; {needs}")


def check_leftovers(folder: Path, now: float | None = None) -> Finding | None:
    """Blocks whose names were not removed: their ranks died while a group was made."""
    now = time.time() if now is None else now
    old = []
    for path in sorted(folder.glob("cgx-*")):
        try:
            if now - path.stat().st_mtime > OLD:
                old.append(path)
        except OSError:  # removed meanwhile
            continue
    if not old:
        return None
    names = ", ".join(map(str, old[:3])) + (", ..." if len(old) > 3 else "")
    mend = "remove them, if no group is being made: rm /dev/shm/cgx-*"
    return Finding(SECTION, "left in /dev/shm", NOTE, f"{len(old)} blocks: {names}", mend)


def check_interfaces(
    found: Sequence[Address], names: Sequence[str], env: Mapping[str, str]
) -> Finding:
    """names: of all interfaces; found: addresses of those that are up."""
    wanted = [name for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    listed = ", ".join(f"{one.interface} {one.ip}" for one in found) or "none is up"
    for name in wanted:
        up = {one.interface for one in found}
        if name not in up:
            state = "is down or has no address" if name in names else "is not on this host"
            usable = ", ".join(sorted(up)) or "none"
            return Finding(
                SECTION,
                "interfaces",
                PROBLEM,
                f"GLOO_SOCKET_IFNAME={env['GLOO_SOCKET_IFNAME']}: {name!r} {state}; usable: "
                f"{usable}",
                "set GLOO_SOCKET_IFNAME to one of these, or unset it",
            )
    return Finding(SECTION, "interfaces", OK, listed)


def check_nccl_interfaces(found: Sequence[Address], env: Mapping[str, str]) -> Finding | None:
    """None where NCCL_SOCKET_IFNAME is not set. found: addresses of interfaces that are up.

    NCCL's rule: names with commas between them are beginnings of the interfaces to use; after "=",
    whole names; after "^", those to leave out. No name stands for all; ports behind ":" are not
    looked at.
    """
    text = env.get("NCCL_SOCKET_IFNAME", "")
    if not text:
        return None
    left_out = text.startswith("^")
    listed = text.removeprefix("^")
    words = (word.partition(":")[0] for word in listed.removeprefix("=").split(","))
    names = tuple(word for word in words if word) or ("",)
    whole = listed[:1] == "=" and names != ("",)
    up = list(dict.fromkeys(one.interface for one in found))
    named = [one for one in up if (one in names if whole else one.startswith(names))]
    used = [one for one in up if (one in named) != left_out]
    if used:
        return Finding(SECTION, "NCCL's interfaces", OK, f"{text}: {', '.join(used)}")
    return Finding(
        SECTION,
        "NCCL's interfaces",
        PROBLEM,
        f"NCCL_SOCKET_IFNAME={text}: leaves no interface; usable: {', '.join(up) or 'none'}",
        "set NCCL_SOCKET_IFNAME to one of these, or unset it",
    )


def check_name(host: str, addresses: Sequence[str], env: Mapping[str, str]) -> Finding:
    """addresses: what the host's name resolves to."""
    if not addresses:
        found = f"{host} resolves to no address"
    elif all(ip.startswith("127.") or ip == "::1" for ip in addresses):
        found = f"{host} resolves to loopback ({', '.join(addresses)})"
    else:
        return Finding(SECTION, "host name", OK, f"{host}, {', '.join(addresses)}")
    if env.get("GLOO_SOCKET_IFNAME"):
        return Finding(SECTION, "host name", OK, f"{found}; GLOO_SOCKET_IFNAME is set")
    mend = (
        "torchrun across hosts: --local-addr ADDRESS on each host, and --rdzv-conf is_host=1 where "
        "the endpoint is, is_host=0 elsewhere; groups of cgx find an address by themselves, groups "
        "of the backend gloo across hosts need GLOO_SOCKET_IFNAME"
    )
    return Finding(SECTION, "host name", NOTE, found, mend)


def resolve(host: str) -> list[str]:
    """Addresses of a name, from files or the resolver."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_files(limit: int | None = None) -> Finding:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        mend = f"ulimit -n {OPEN_FILES}: each group opens some sockets per rank"
        return Finding(SECTION, "open files", NOTE, f"at most {soft}", mend)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else f"at most {soft}"
    return Finding(SECTION, "open files", OK, shown)
