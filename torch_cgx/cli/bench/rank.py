"""One rank of `cgx bench`."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import socket
from pathlib import Path
from typing import Any

from torch_cgx.cli.errors import CliError
from torch_cgx.cli.meeting import collect, meet
from torch_cgx.cli.output import free_memory, progress, size_text

# What a size needs on each rank: input, result, reference, and the buffers of the communicators.
_MEMORY = 6


def run(args: argparse.Namespace) -> int:
    """Meets the others, measures, and shows the table on rank 0. Returns the exit status."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    from torch_cgx import _hosts
    from torch_cgx.cli.bench import measure, methods, show

    methods.check_codecs(args.codec, args.bits)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise CliError(f"--device cuda: torch {torch.__version__} sees no GPU here")
    store, rank, size = meet(args.timeout)
    facts = _facts(args, store)
    limit = datetime.timedelta(seconds=args.timeout)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    numbers = itertools.count()

    def gather(value: Any) -> list[Any]:
        number = next(numbers)
        store.set(f"bench/{number}/{rank}", json.dumps(value))
        return [json.loads(text) for text in collect(store, f"bench/{number}", size, args.timeout)]

    try:
        _agree(store, rank, size, facts, args.timeout)
        _check_memory(store, rank, size, max(args.sizes), args.timeout)
        _name_interface(rank)
        dist.init_process_group(
            "cgx", store=PrefixStore("cgx", store), rank=rank, world_size=size, timeout=limit
        )
        chosen = methods.methods(args.codec, args.bits, args.device, limit)
        rows: list[measure.Row] = []
        bar = progress(len(args.sizes) * args.repeats, "cgx bench", rank == 0)
        for nbytes in args.sizes:
            bar.set_postfix_str(size_text(nbytes))
            rows += measure.measure(chosen, nbytes, args.repeats, args.device, gather, bar.update)
        bar.close()
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CliError(f"rank {rank} on {socket.gethostname()}: {reason}") from None
    rows = measure.compare(rows, same_link=not _hosts.link_inside_host(_everyone))
    if rank == 0:
        facts |= {"ranks": size, "hosts": _hosts.count(_everyone)}
        facts |= {"networks": _hosts.count_networks(_everyone)}
        hidden = ("network", "gloo", "host_id")
        show.show(rows, {k: v for k, v in facts.items() if k not in hidden}, args)
    return 1 if show.wrong(rows) else 0


_everyone: list[dict[str, Any]] = []


def _facts(args: argparse.Namespace, store: Any) -> dict[str, Any]:
    import torch

    from torch_cgx import _C, __version__, _gloo_address, _hosts

    return {
        "torch_cgx": __version__,
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "host": socket.gethostname(),
        **_hosts.facts(),
        "gloo": _gloo_address.report(store),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "simd": _C.cpu_level(),
        "threads": torch.get_num_threads(),
        "device": args.device,
        "arguments": [args.sizes, args.bits, args.codec, args.repeats],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _agree(store: Any, rank: int, size: int, mine: dict[str, Any], timeout: float) -> None:
    """CliError, on all ranks, if versions or arguments differ."""
    store.set(f"bench/facts/{rank}", json.dumps(mine))
    everyone = [json.loads(text) for text in collect(store, "bench/facts", size, timeout)]
    for name in ("torch_cgx", "torch", "arguments"):
        for other, one in enumerate(everyone):
            if one[name] != everyone[0][name]:
                raise CliError(
                    f"{name} is {everyone[0][name]} on rank 0 ({everyone[0]['host']}) and "
                    f"{one[name]} on rank {other} ({one['host']}); it must be equal on all hosts"
                )
    _everyone[:] = everyone


def _name_interface(rank: int) -> None:
    """For the group of gloo, on a host whose own name leads to its loopback: groups of cgx find the
    interface by themselves.
    """
    from torch_cgx import _gloo_address
    from torch_cgx.launch import _network as net

    address = _gloo_address.choose(rank, [one["gloo"] for one in _everyone])
    interface = net.interface_of(address) if address else None
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def _check_memory(store: Any, rank: int, size: int, nbytes: int, timeout: float) -> None:
    """CliError, on all ranks, if the largest size does not fit into a host's free memory."""
    free = free_memory()
    beside = sum(one["host_id"] == _everyone[rank]["host_id"] for one in _everyone)
    store.set(f"bench/memory/{rank}", json.dumps([free, _MEMORY * nbytes * beside]))
    for other, text in enumerate(collect(store, "bench/memory", size, timeout)):
        there, needed = json.loads(text)
        if needed > there:
            raise CliError(
                f"--sizes up to {size_text(nbytes)} takes about {size_text(needed)} on "
                f"{_everyone[other]['host']}, which has {size_text(there)} free"
            )
