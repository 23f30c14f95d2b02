"""A pipeline of two stages over cgx: activations go forward at 8 bits, their gradients back at 8.

torchrun --nproc-per-node 2 examples/recipes/pipeline_train.py [--bits 32]
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from toy import batch, make_model

from cgx_utils import pipelining

STEPS, MICROBATCHES = 40, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bits", type=int, default=8, help="32: exact")
    bits = parser.parse_args().bits
    dist.init_process_group("cgx")
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = make_model()
    module = whole[:2] if rank == 0 else whole[2:]  # the stages of this model of four layers
    stage = PipelineStage(module, rank, size, torch.device("cpu"))  # or "cuda"
    sent = pipelining.compress(stage, activations={"bits": bits}, gradients={"bits": bits})
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=F.cross_entropy)

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses: list[float] = []
    for step in range(STEPS):
        x, labels = batch(0, step)  # every rank can make all samples
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            found: list[torch.Tensor] = []
            schedule.step(target=labels, losses=found)
            losses.append(torch.stack(found).mean().item())
        optimizer.step()
    ends = f"loss {losses[0]:.3f} to {losses[-1]:.3f}, " if losses else ""
    print(
        f"rank {rank} of {size}: steps 0 to {STEPS - 1}, {ends}"
        f"sent {sent.bytes_sent} of {sent.bytes_raw} bytes\n",
        end="",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
