"""Where the tests of this folder run: worker processes that share one GPU.

    CGX_TEST_GPU=1     no GPU is an error; otherwise the tests are skipped, with the reason
    CGX_TEST_GPU=fake  on the fake CUDA device, as far as it goes: to try the tests without a GPU

Jobs are functions as in tests/distributed.py; `run` calls them in processes with a context of the
device. No job may need more of torch than the fake device has, unless its test is `real`.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.device import fake_cuda
from tests.distributed import RankPool, store

WANTED = os.environ.get("CGX_TEST_GPU", "")
FAKE = WANTED == "fake"
MOST_RANKS = 4

# Of each process. Ranks of one GPU are, for NCCL, on hosts of their own (NCCL_HOSTID): it refuses
# two that share one. The name of the machine need not resolve to an address.
_PROCESS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
}
# What does not compress goes over Gloo: NCCL is asked for by its own tests.
_EVERYWHERE = {"CGX_CUDA_BACKEND": "GLOO"}
# Loads the kernels of torch outside of any test's time limit.
_PRELUDE = "import torch; torch.ones(1, device='cuda').add_(1).cpu()"


@cache
def missing() -> str | None:
    """Why there can be no test on a GPU here; None where there can."""
    if FAKE:
        return fake_cuda.missing()
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return None


real = pytest.mark.skipif(FAKE, reason="needs more of CUDA than the fake device has")

_pool: RankPool | None = None


def run(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """As `tests.distributed.run_pooled`."""
    global _pool
    options = {"timeout": 120.0, **options, "env": _EVERYWHERE | options.get("env", {})}
    if FAKE:
        if options["env"].get("CGX_INNER_COMMUNICATOR_TYPE") == "NCCL":
            return fake_cuda.run(_with_nccl, world_size, fn, *args, **options | {"backend": None})
        return fake_cuda.run(fn, world_size, *args, **options)
    if _pool is None:
        env = [_PROCESS | {"NCCL_HOSTID": f"cgx-test-{rank}"} for rank in range(MOST_RANKS)]
        _pool = RankPool(env, _PRELUDE)
        atexit.register(_pool.close)
    return _pool.run(fn, world_size, *args, **options)


def _with_nccl(rank: int, world_size: int, fn: Callable[..., Any], *args: Any) -> Any:
    """On the fake device, where a double stands in for NCCL's backend."""
    import torch.distributed as dist

    with fake_cuda.nccl():
        group = dist.PrefixStore("group", store())
        dist.init_process_group("cgx", store=group, rank=rank, world_size=world_size)
        return fn(rank, world_size, *args)  # the group is destroyed by the worker


def run_alone(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """In one process, without a process group."""
    return run(fn, 1, *args, backend=None, **options)[0]
