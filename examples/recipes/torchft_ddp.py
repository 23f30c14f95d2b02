"""torchft over cgx: replicas of a training; when one fails the others go on, and it comes back with
their weights.

    torchft_lighthouse --min_replicas 1 --join_timeout_ms 10000 &              # on one host
    export TORCHFT_LIGHTHOUSE=http://HOST:29510                                # on all
    REPLICA_GROUP_ID=0 torchrun --standalone --max-restarts 3 examples/recipes/torchft_ddp.py
    REPLICA_GROUP_ID=1 torchrun --standalone --max-restarts 3 examples/recipes/torchft_ddp.py
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
import torchft
from toy import batch, make_model, weights_of

import torch_cgx
from cgx_utils.trainers.torchft import DistributedDataParallel, ProcessGroupCGX


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds in each step")
    args = parser.parse_args()
    replica = int(os.environ["REPLICA_GROUP_ID"])

    module = make_model()
    inner = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def save() -> dict[str, Any]:
        return {"model": module.state_dict(), "optimizer": inner.state_dict()}

    def load(saved: dict[str, Any]) -> None:  # when this replica comes back
        module.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    group = ProcessGroupCGX(timeout=timedelta(seconds=30))
    manager = torchft.Manager(
        pg=group,
        min_replica_size=1,  # with fewer a step is repeated; the lighthouse has its own number
        load_state_dict=load,
        state_dict=save,
        replica_id=f"cgx_{replica}",
        use_async_quorum=False,
        max_retries=10,  # steps without a result, one after another; None: it tries for ever
    )
    model = DistributedDataParallel(manager, module, bits=4, bucket_size=512)
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < args.steps:
        optimizer.zero_grad()  # joins the quorum; a replica that comes back gets step and weights
        step = manager.current_step()
        x, labels = batch(replica, step)
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()  # if this replica has the reduced gradients
        print(
            f"replica {replica}, step {step}, {manager.num_participants()} replicas: "
            f"loss {loss.item():.3f}",
            flush=True,
        )
        time.sleep(args.pause)
    counters = torch_cgx.stats(group.parent)  # since the last change of replicas
    print(
        f"replica {replica}: step {manager.current_step()}, weights {weights_of(module)}, sent "
        f"{counters['bytes_sent']} of {counters['bytes_raw']} bytes",
        flush=True,
    )
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
