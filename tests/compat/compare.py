"""The same job over gloo and over cgx: what every rank returned, compared.

A job is a function for `run_pooled` that returns tensors and numbers in lists, tuples and dicts.
Two ranks must give equal bits: a sum of two has one order only. For more, gloo adds in the order of
its ring and cgx in that of the ranks, so that fp32 sums may differ by a few roundings; where no
sums are involved, `exact=True` asks for equal bits all the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tests.distributed import run_pooled

SEED = 1234


class Run(NamedTuple):
    """`value` of one rank and what the engine did for it, over all groups that were left."""

    value: Any
    calls: int
    compressed: int


def over(backend: str, job: Callable[..., Any], world_size: int, *args: Any, **options: Any):
    """The job on every rank, one `Run` each. `options` as of `run_pooled`."""
    return run_pooled(_measured, world_size, job, args, backend=backend, **options)


def same_as_gloo(
    job: Callable[..., Any],
    world_size: int,
    *args: Any,
    exact: bool | None = None,
    engine: bool = True,
    timeout: float = 120.0,
) -> list[Any]:
    """Asserts that the job gives over cgx what it gives over gloo; returns cgx's values. `engine`:
    whether the engine, not the inner gloo group, must have served a part of it.
    """
    expected = over("gloo", job, world_size, *args, timeout=timeout)
    found = over("cgx", job, world_size, *args, timeout=timeout)
    for rank, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        check_equal(ours.value, theirs.value, world_size == 2 if exact is None else exact, rank)
        assert (ours.calls > 0) is engine, f"rank {rank}: {ours.calls} calls of the engine"
        assert ours.compressed == 0
    return [run.value for run in found]


def compressed(
    job: Callable[..., Any], world_size: int, *args: Any, bits: int = 8, collectives: str = ""
) -> list[Any]:
    """The job's values with every SUM and AVG all-reduce at `bits` bits; some must be."""
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": str(bits), "CGX_COMPRESSION_BUCKET_SIZE": "64"}
    if collectives:
        env["CGX_COMPRESS_COLLECTIVES"] = collectives
    runs = over("cgx", job, world_size, *args, timeout=120, env=env)
    assert all(run.compressed > 0 for run in runs), [run.compressed for run in runs]
    return [run.value for run in runs]


def check_equal(a: Any, b: Any, exact: bool, where: Any = "") -> None:
    """Asserts that two nests are equal; floats that are not `exact` within 1e-5 of their size."""
    assert type(a) is type(b), (where, type(a), type(b))
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (where, a.keys(), b.keys())
        for key in a:
            check_equal(a[key], b[key], exact, (where, key))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), (where, len(a), len(b))
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            check_equal(x, y, exact, (where, i))
    elif isinstance(a, torch.Tensor):
        tolerance = 0.0 if exact or not a.is_floating_point() else 1e-5
        torch.testing.assert_close(
            a,
            b,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text: f"{where}: {text}",
        )
    elif isinstance(a, float) and not exact:
        assert abs(a - b) <= 1e-5 * max(1.0, abs(b)), (where, a, b)
    else:
        assert a == b, (where, a, b)


# The last group of plain gloo: its own threads end the process if they are the last to let go of
# it, as PowerSGD's callbacks make them do (over cgx: tests/faults/test_legitimate.py).
_kept: list[Any] = []


def _measured(rank: int, world_size: int, job: Callable[..., Any], args: tuple[Any, ...]) -> Run:
    if dist.get_backend() == "gloo":
        _kept[:] = [dist.group.WORLD]
    torch.manual_seed(SEED)
    try:
        value = job(rank, world_size, *args)
        calls = compressed_calls = 0
        for group in list(dist.distributed_c10d._world.pg_map):
            for name in dist.get_backend_config(group).split(","):
                if name.startswith("cpu:cgx"):
                    import torch_cgx

                    counters = torch_cgx.stats(group)
                    calls += counters["calls"]
                    compressed_calls += counters["compressed_calls"]
        return Run(value, calls, compressed_calls)
    finally:
        gc.collect()  # models that hold a group, before the group goes
