"""Measures the link between hosts, by the ranks that a launcher has started."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import time
from dataclasses import dataclass

from torch_cgx.cli.errors import CliError

TIMEOUT = 60.0
_BYTES = 4 << 20
_SECONDS = 2.0
_PINGS = 20


@dataclass(frozen=True)
class Link:
    """bits_per_second: of a host's link, one way, with both directions busy. latency: of a message,
    in seconds.
    """

    bits_per_second: float
    latency: float
    hosts: int
    ranks_per_host: int


def measure() -> tuple[int, Link]:
    """(rank, the link between rank 0 and the first rank of another host, with both directions
    busy). Collective.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    from torch_cgx import _hosts
    from torch_cgx.cli.meeting import collect, launched, meet

    if not launched(os.environ):
        raise CliError(
            "--measure needs the ranks of a launcher on two hosts: torchrun --nnodes 2 ... "
            "--no-python cgx advise --measure ... (or name the link: --link 1gbit)"
        )
    store, rank, size = meet(TIMEOUT)
    store.set(f"advise/{rank}", json.dumps(_hosts.facts()))
    ranks = [json.loads(text) for text in collect(store, "advise", size, TIMEOUT)]
    places = [one["host_id"] for one in ranks]
    hosts = list(dict.fromkeys(places))
    if len(hosts) < 2:
        raise CliError(f"--measure: all {size} ranks are on one host, so there is no link")
    if len({places.count(host) for host in hosts}) > 1:
        raise CliError("--measure: hosts have different numbers of ranks; allowed: equal numbers")
    limit = datetime.timedelta(seconds=TIMEOUT)
    # cgx, as it finds the interface that leads to the other hosts by itself.
    dist.init_process_group(
        "cgx", store=PrefixStore("advise", store), rank=rank, world_size=size, timeout=limit
    )
    try:
        other = places.index(hosts[1])
        if rank in (0, other):
            found = _between(other if rank == 0 else 0)
            if rank == 0:
                store.set("advise/link", json.dumps(found))
        seconds, latency = json.loads(store.get("advise/link").decode())
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CliError(f"--measure: rank {rank}: {reason}") from None
    finally:
        dist.destroy_process_group()
    return rank, Link(8 * _BYTES / seconds, latency, len(hosts), places.count(places[0]))


def _between(peer: int) -> tuple[float, float]:
    """Seconds of an exchange of _BYTES, both ways at once, and of one value."""
    import torch

    def exchange(send: torch.Tensor, receive: torch.Tensor) -> float:
        import torch.distributed as dist

        begin = time.perf_counter()
        works = [dist.isend(send, peer), dist.irecv(receive, peer)]
        for work in works:
            assert work is not None
            work.wait()
        return time.perf_counter() - begin

    def zeros(number: int) -> torch.Tensor:
        return torch.zeros(number, dtype=torch.float32, device="cpu")

    small = zeros(1), zeros(1)
    pings = [exchange(*small) for _ in range(_PINGS)]
    large = zeros(_BYTES // 4), zeros(_BYTES // 4)
    exchange(*large)
    # As often on both sides: from the first exchange, which both take about equally long.
    once = zeros(1).fill_(exchange(*large)), zeros(1)
    exchange(*once)
    number = max(3, int(_SECONDS / max(float(once[0]), float(once[1]))))
    times = [exchange(*large) for _ in range(number)]
    return statistics.median(times), statistics.median(pings)
