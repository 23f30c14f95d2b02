"""Training with the hook until something fails; what comes out of `backward()`.

    python -m tests.utils.hook_failures link      # a rank of a job on several hosts

Prints what `train` returns.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils import CGXState, cgx_hook
from tests.utils.training import batch, loss_of, make_model

_FAILS_AT = 2  # the step, where the kind has one
# The timeout of the group once it trains, where that is what ends it.
_SECONDS = {"late": 1.5, "link": 4.0}


def train(rank: int, size: int, kind: str) -> str:
    """Trains; the last rank fails: "kill" ends its process in the middle of a backward pass ("kill,
    float64": of gradients that the inner backend reduces), "late" has it stay away until the
    timeout has passed, "bits" gives it other bits, "link" takes its host's link down.

    Returns the class and the text of what `backward()` raised.
    """
    failing = rank == size - 1
    state = CGXState(None, config={"bits": 8 if kind == "bits" and failing else 4})
    # Several buckets, so that some are under way when the failure comes.
    dtype = torch.float64 if kind.endswith("float64") else torch.float32
    model = DistributedDataParallel(make_model().to(dtype), bucket_cap_mb=0.01)
    model.register_comm_hook(state, cgx_hook)
    dist.barrier()  # a rank that is still at the broadcast of the weights would get the error there
    if kind in _SECONDS:
        dist.group.WORLD.set_timeout(datetime.timedelta(seconds=_SECONDS[kind]))
    step = 0

    def fail(_gradient: torch.Tensor) -> None:
        if not failing or step != _FAILS_AT:
            return
        if kind.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "link":
            subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        if kind == "late":
            time.sleep(_SECONDS["late"] + 0.5)

    model.module.second.weight.register_hook(fail)
    for step in range(10):  # noqa: B007  `fail` reads it
        loss = loss_of(model, batch(rank, step))
        try:
            loss.backward()
        except Exception as error:
            kinds = type(error)
            return f"{kinds.__module__}.{kinds.__qualname__}: {error}"
    return "nothing failed"


def main() -> None:
    kind = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("cgx", timeout=datetime.timedelta(seconds=30))
    print(train(dist.get_rank(), dist.get_world_size(), kind), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
