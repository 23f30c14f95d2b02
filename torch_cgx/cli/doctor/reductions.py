"""All-reduces of known values over every communicator that the ranks can use."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import torch_cgx
from torch_cgx import _hosts
from torch_cgx.cli.doctor.finding import OK, PROBLEM, Finding
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.meeting import collect
from torch_cgx.cli.output import time_text

SECTION = "all-reduce"
NUMEL = 1 << 18  # 1 MiB of fp32
BITS = 4
# Relative L2 error that a sum of Gaussian values at 4 bits stays below (docs/numerics.md: 0.16).
MOST_ERROR = 0.25
_CALLS = 5


def communicators(facts: list[dict[str, Any]], mpi: bool) -> list[tuple[str, dict[str, Any], str]]:
    """(name, options, device) of each communicator that these ranks can use.

    facts: of all ranks. mpi: whether a launcher connects the ranks by MPI, and torch_cgx was built
    for one.
    """
    found: list[tuple[str, dict[str, Any], str]] = []
    if _hosts.count(facts) < len(facts):
        found.append(("SHM", {"inner_communicator": "SHM"}, "cpu"))
    names = ["GLOO", *(["MPI"] if mpi else [])]
    found += [(name, _everywhere(name), "cpu") for name in names]
    if all(one["cuda"] for one in facts) and dist.is_nccl_available():
        found.append(("NCCL", _everywhere("NCCL"), "cuda"))
    return found


def _everywhere(name: str) -> dict[str, Any]:
    return {"inner_communicator": name, "cross_communicator": name}


def try_all(
    store: Any, rank: int, size: int, facts: list[dict[str, Any]], timeout: float
) -> list[Finding]:
    """A finding for each communicator, equal on all ranks. Collective."""
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(
        "cgx", store=PrefixStore("cgx", store), rank=rank, world_size=size, timeout=limit
    )
    findings = []
    try:
        for name, options, device in communicators(facts, _mpi_connects()):
            mine = _try_one(options, torch.device(device), rank, size, limit)
            store.set(f"doctor/{name}/{rank}", json.dumps(mine))
            answers = collect(store, f"doctor/{name}", size, timeout)
            findings.append(verdict(name, [json.loads(text) for text in answers]))
    except CliError as error:
        findings.append(
            Finding(SECTION, "ranks", PROBLEM, str(error), "look at that rank's output")
        )
    finally:
        dist.destroy_process_group()
    return findings


def verdict(name: str, answers: list[dict[str, Any]]) -> Finding:
    """From what every rank measured, or the error that it met."""
    for rank, one in enumerate(answers):
        if one.get("error"):
            mend = "docs/reliability.md lists the errors, docs/launching.md what launchers need"
            return Finding(SECTION, name, PROBLEM, f"rank {rank}: {one['error']}", mend)
    if len({one["digest"] for one in answers}) > 1:
        mend = "please report this as a bug, with this output"
        return Finding(SECTION, name, PROBLEM, "ranks got different results", mend)
    worst = max(one["relative_error"] for one in answers)
    if not all(one["exact"] for one in answers) or worst > MOST_ERROR:
        mend = "please report this as a bug, with this output"
        found = f"wrong sum (relative error at {BITS} bits {worst:.3g})"
        return Finding(SECTION, name, PROBLEM, found, mend)
    exact = max(one["seconds_exact"] for one in answers)
    compressed = max(one["seconds"] for one in answers)
    found = (
        f"{answers[0]['communicator']}: 1 MiB in {time_text(exact)} exact, "
        f"{time_text(compressed)} at {BITS} bits; equal and right on all {len(answers)} ranks"
    )
    return Finding(SECTION, name, OK, found)


def _mpi_connects() -> bool:
    from torch_cgx import _mpi_loader
    from torch_cgx.launch import find

    launcher = find(os.environ)
    return launcher is not None and launcher.connects_mpi and bool(_mpi_loader.built())


def _try_one(
    options: dict[str, Any], device: torch.device, rank: int, size: int, limit: datetime.timedelta
) -> dict[str, Any]:
    """What this rank measured, or {"error": one line}."""
    try:
        if device.type == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        group = dist.new_group(
            backend="cgx", timeout=limit, pg_options=torch_cgx.Options(bits=32, **options)
        )
        try:
            return _measure(group, device, rank, size)
        finally:
            dist.destroy_process_group(group)
    except (RuntimeError, ValueError, ImportError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return {"error": lines[0]}


def _measure(group: Any, device: torch.device, rank: int, size: int) -> dict[str, Any]:
    # Small integers: their sum is exact.
    values = torch.arange(NUMEL, dtype=torch.float32, device=device) % 251
    total = values * size + size * (size - 1) / 2
    exact, seconds_exact = _timed(group, values + rank, None)
    generator = torch.Generator().manual_seed(0)
    noise = [
        torch.randn(NUMEL, generator=generator, dtype=torch.float32, device="cpu").to(device)
        for _ in range(size)
    ]
    config = {"bits": BITS, "codec": "maxmin"}
    rough, seconds = _timed(group, noise[rank].clone(), config)
    wanted = torch.stack(noise).double().sum(0)
    error = (rough.double() - wanted).norm() / wanted.norm()
    raw = rough.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    stats = torch_cgx.stats(group)
    on_gpu = device.type == "cuda"
    communicator = stats.cuda_communicator if on_gpu else stats.communicator
    return {
        "exact": bool(torch.equal(exact, total)),
        "relative_error": float(error),
        "digest": hashlib.sha256(raw).hexdigest(),
        "seconds_exact": seconds_exact,
        "seconds": seconds,
        "communicator": communicator,
    }


def _timed(group: Any, values: torch.Tensor, config: Any) -> tuple[torch.Tensor, float]:
    """The first call's result, and the median seconds of those after it."""
    times = []
    result = values.clone()
    given = {"bits": 32} if config is None else config
    torch_cgx.all_reduce(result, group=group, config=given)
    for _ in range(_CALLS):
        again = values.clone()
        begin = time.perf_counter()
        torch_cgx.all_reduce(again, group=group, config=given)
        if again.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return result, statistics.median(times)
