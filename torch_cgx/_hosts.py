"""What counts as a host, for commands: what process groups count as one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


def facts() -> dict[str, str]:
    """Of this process: `host_id`, equal for processes that a group puts on one host (they share
    /dev/shm, and have equal CGX_HOST_ID), and `network`, equal for processes that share the
    loopback address.
    """
    from torch_cgx import _C
    from torch_cgx.launch import _network as net

    host_id = _C.host_identity(os.environ.get("CGX_HOST_ID", ""))
    return {"host_id": host_id, "network": net.network_identity()}


def count(ranks: Sequence[Mapping[str, Any]]) -> int:
    """The number of hosts among the facts of all ranks."""
    return len({one["host_id"] for one in ranks})


def count_networks(ranks: Sequence[Mapping[str, Any]]) -> int:
    """The number of network namespaces among the facts of all ranks."""
    return len({one["network"] for one in ranks})


def link_inside_host(ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ranks of one host are in several network namespaces: Gloo then sends over a link what
    a group of cgx sends through shared memory.
    """
    return len({(one["host_id"], one["network"]) for one in ranks}) > count(ranks)
