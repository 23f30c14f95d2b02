"""What a process holds of the system: descriptors, threads, mapped segments, memory."""

from __future__ import annotations

import contextlib
import gc
import os
import time


def held() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/maps") as maps:
        segments = sum("/dev/shm/" in line for line in maps)
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "segments": segments,
    }


def settled() -> dict[str, int]:
    """As held(), once two looks find the same; after 0.8 s, what the last one found."""
    found: dict[str, int] = {}
    for _ in range(40):
        now = held()
        if now == found:
            break
        found = now
        time.sleep(0.02)
    return found


def resident() -> int:
    """Bytes, after a collection."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def thread_names() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(names)
