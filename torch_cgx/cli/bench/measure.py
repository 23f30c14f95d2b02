"""The measuring loop. All methods take turns in every repetition, so a slow phase of the machine
meets all of them; a time is the slowest rank's.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx.cli.bench.methods import BASE, Method
from torch_cgx.cli.output import tenths

TILE = 1 << 20  # values that are drawn, and compared; longer tensors repeat them
# Calls per sample, by bytes: a short call is about as short as the skew with which ranks begin.
_CALLS = ((64 << 10, 20), (1 << 20, 5))
Row = dict[str, Any]


def calls_of(nbytes: int) -> int:
    return next((calls for limit, calls in _CALLS if nbytes <= limit), 1)


def contribution(rank: int, numel: int, device: str) -> torch.Tensor:
    """Gaussian values of a rank; the first min(numel, TILE) are drawn."""
    values = torch.Generator().manual_seed(1000 + rank)
    drawn = torch.randn(min(numel, TILE), generator=values, dtype=torch.float32, device="cpu")
    return drawn.repeat(-(-numel // drawn.numel()))[:numel].to(device)


def measure(
    methods: Sequence[Method],
    nbytes: int,
    repeats: int,
    device: str,
    gather: Callable[[Any], list[Any]],
    update: Callable[[], object],
) -> list[Row]:
    """A row for each method. Collective; equal on all ranks. gather: an object of every rank;
    update: called after each repetition.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    x = contribution(rank, nbytes // 4, device)
    y = torch.empty_like(x)
    drawn = [contribution(r, min(nbytes // 4, TILE), "cpu").double() for r in range(size)]
    exact = torch.stack(drawn).sum(0)
    calls = calls_of(nbytes)
    checks = [_check(method, x, y, exact) for method in methods]
    times: list[list[float]] = [[] for _ in methods]
    sent: list[list[float]] = [[] for _ in methods]
    for repetition in range(repeats):
        for turn in range(len(methods)):
            i = (turn + repetition) % len(methods)
            method = methods[i]
            before = method.counters()["bytes_sent"] if method.counters else 0
            y.copy_(x)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                method.run(y)
            times[i].append((time.perf_counter() - begin) / calls)
            if method.counters:
                sent[i].append((method.counters()["bytes_sent"] - before) / calls)
        update()
    every = gather({"checks": checks, "times": times, "sent": sent})
    return [
        {
            "bytes": nbytes,
            "method": method.name,
            "codec": method.codec,
            "bits": method.bits,
            "communicator": method.communicator(device),
            "equal": len({one["checks"][i][0] for one in every}) == 1,
            "relative_error": max(one["checks"][i][1] for one in every),
            **_timing([one["times"][i] for one in every], nbytes, size),
            "bytes_sent": _sent(method, [one["sent"][i] for one in every], nbytes, size),
            "bytes_counted": method.counters is not None,
            "vs_gloo": 1.0,
            "samples": _slowest([one["times"][i] for one in every]),
        }
        for i, method in enumerate(methods)
    ]


def compare(rows: list[Row], same_link: bool = True) -> list[Row]:
    """Adds how many times as fast as gloo a row is: the median over repetitions. same_link: whether
    gloo and cgx send over the same link; else the rows of cgx get None.
    """
    base = {row["bytes"]: row["samples"] for row in rows if row["method"] == BASE}
    for row in rows:
        if same_link or not row["bytes_counted"]:
            row["vs_gloo"] = statistics.median(ratios(base[row["bytes"]], row["samples"]))
        else:
            row["vs_gloo"] = None
    return rows


def ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Of two methods' times, repetition by repetition: both of a pair met the same machine."""
    return [a / b for a, b in zip(slow, fast, strict=True)]


def _check(
    method: Method, x: torch.Tensor, y: torch.Tensor, exact: torch.Tensor
) -> tuple[int, float]:
    """A fingerprint of the result, and its relative L2 error; also warms the method up."""
    y.copy_(x)
    method.run(y)
    found = y[: exact.numel()].cpu()
    error = (found.double() - exact).norm() / exact.norm()
    return zlib.crc32(found.contiguous().view(torch.uint8).numpy().tobytes()), float(error)


def _slowest(per_rank: list[list[float]]) -> list[float]:
    return [max(samples) for samples in zip(*per_rank, strict=True)]


def _timing(per_rank: list[list[float]], nbytes: int, size: int) -> dict[str, float]:
    samples = _slowest(per_rank)
    median = statistics.median(samples)
    low, high = tenths(samples)
    algbw = nbytes / median / 1e9
    return {
        "seconds": median,
        "seconds_p10": low,
        "seconds_p90": high,
        "algbw": algbw,
        "busbw": algbw * 2 * (size - 1) / size,
    }


def _sent(method: Method, per_rank: list[list[float]], nbytes: int, size: int) -> float:
    """Of the rank that sends most; without counters that of a bandwidth-optimal all-reduce."""
    if method.counters is None:
        return 2 * (size - 1) / size * nbytes * method.width / 4
    return max(statistics.median(one) for one in per_rank)
