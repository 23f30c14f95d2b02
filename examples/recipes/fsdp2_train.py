"""FSDP2 over cgx: gradients are reduced at 4 bits, weights gathered at 8; optimizer state is exact.

torchrun --nproc-per-node 2 examples/recipes/fsdp2_train.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from toy import batch, make_model, summary

from cgx_utils import fsdp


def main() -> None:
    dist.init_process_group("cgx")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))  # or "cuda"
    model = make_model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    fsdp.compress(model, gradients={"bits": 4}, weights={"bits": 8})

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(40):
        x, labels = batch(dist.get_rank(), step)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(summary(model, 0, losses) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
