"""Memory of /dev/shm that groups take: little at first, more as their messages need it; and what is
said where there is none. In mount namespaces of their own.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.distributed import ROOT
from tests.hosts.marks import needs_hosts

WAY_OUT = "CGX_INNER_COMMUNICATOR_TYPE=GLOO"

COMMON = """
import json, os, subprocess, sys, tempfile
from tests.calls import on_threads
from tests.comm.ranks import shm

def together(ranks, call):
    outcomes = on_threads(ranks, call)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes

def group(ranks=4):
    folder = tempfile.mkdtemp()
    return together(ranks, lambda rank: shm(folder, rank, ranks, 1 << 20))

def used():
    space = os.statvfs("/dev/shm")
    return (space.f_blocks - space.f_bfree) * space.f_frsize

def exchange(comms, length):
    def rank(number):
        comm = comms[number]
        message = bytes([number + 1]) * length
        comm.open_broadcast(message)
        comm.post()
        for peer in range(len(comms)):
            if peer == number:
                continue
            assert bytes(comm.receive(peer)) == bytes([peer + 1]) * length
            comm.release(peer)
    together(len(comms), rank)

def attempt(what):
    try:
        what()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"
"""

MANY = """
found = {}
groups = []
before = used()
for _ in range(30):
    groups.append(group())
    exchange(groups[-1], 4096)
found["a group"] = (used() - before) / len(groups)
for length in (60_000, 70_000, 300_000, 200_000, 1 << 20):
    before = used()
    for _ in range(4):  # both slots of each rank, twice
        exchange(groups[0], length)
    found[f"{length} bytes"] = used() - before
other = os.open("/dev/shm/other", os.O_WRONLY | os.O_CREAT)
while attempt(lambda: os.write(other, bytes(65536))) == "done":
    pass
os.truncate(other, os.fstat(other).st_size - (256 << 10))
found["grow"] = attempt(lambda: exchange(groups[1], 1 << 20))
found["short ones"] = attempt(lambda: exchange(groups[2], 60_000))
found["long ones"] = attempt(lambda: exchange(groups[0], 1 << 20))
found["another"] = attempt(lambda: group())
print(json.dumps(found))
"""

READ_ONLY = """
subprocess.run(["mount", "-o", "remount,ro", "/dev/shm"], check=True)
read_only = attempt(group)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
print(json.dumps([read_only, attempt(group)]))
"""


def in_namespace(tmp_path: Path, script: str, size: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(COMMON + script)
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", *warm.python(), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_hosts
def test_a_group_takes_what_its_messages_need(tmp_path: Path) -> None:
    found = json.loads(in_namespace(tmp_path, MANY, "64m"))
    assert found["a group"] < 1 << 20  # of 4 ranks; 9 MiB if all their slots were there at once
    slots = 4 * 2
    assert found["60000 bytes"] == 0
    assert slots * 70_000 <= found["70000 bytes"] <= slots * (140_000 + 65536)
    assert found["200000 bytes"] == 0  # what was taken stays
    whole = sum(found[f"{n} bytes"] for n in (70_000, 300_000, 1 << 20))
    assert slots << 20 <= whole <= slots * ((1 << 20) + 65536)
    for refused in ("grow", "another"):
        assert found[refused].startswith("ResourceError"), found
        for word in ("/dev/shm is too small", "--shm-size", "CGX_SHM_SEGMENT_KB", WAY_OUT):
            assert word in found[refused], found
    assert found["short ones"] == found["long ones"] == "done"


@needs_hosts
@pytest.mark.parametrize("size", ["8m"])
def test_where_there_is_no_shared_memory_the_way_out_is_named(tmp_path: Path, size: str) -> None:
    read_only, missing = json.loads(in_namespace(tmp_path, READ_ONLY, size))
    assert read_only.startswith("ResourceError") and "read-only" in read_only, read_only
    assert missing.startswith("ResourceError") and "There is no /dev/shm" in missing, missing
    assert WAY_OUT in read_only and WAY_OUT in missing
