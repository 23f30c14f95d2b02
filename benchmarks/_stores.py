"""The store that a benchmark's parent serves to its ranks, on the loopback interface."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

# torch's stubs do not know dist.TCPStore.


def serve() -> Any:
    """On a port of its own choice: its `port`."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def join(port: int, timeout: timedelta) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
