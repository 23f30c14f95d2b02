"""What the recipes for torchrun, mpirun, SLURM and Kubernetes start: DDP over cgx at 4 bits, and a
checkpoint from which the next attempt goes on.

    torchrun --nproc-per-node 2 examples/recipes/train.py --checkpoint /shared/last.pt

The checkpoint is in a folder that all hosts share. Rank 0 writes it; every rank reads it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from toy import batch, make_model, summary

from cgx_utils import CGXState, cgx_hook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("cgx")  # rank, size and meeting point: from whoever started this
    rank = dist.get_rank()

    module = make_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    state = CGXState(bits=4, bucket_size=512)
    first = 0
    if args.checkpoint is not None and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        first = saved["step"] + 1
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    dist.barrier()  # no rank writes the file while another one reads it
    model = DistributedDataParallel(module)
    model.register_comm_hook(state, cgx_hook)

    losses = []
    for step in range(first, args.steps):
        x, labels = batch(rank, step)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and args.checkpoint is not None and step % 10 == 9:
            save(args.checkpoint, step, module, optimizer)
    # One write: lines of several ranks do not mix.
    print(summary(module, first, losses) + "\n", end="", flush=True)
    del model  # before its group
    dist.destroy_process_group()


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whoever reads `path` sees all of the new checkpoint, or all of the former one."""
    part = path.with_name(path.name + ".part")
    content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, part)
    part.replace(path)


if __name__ == "__main__":
    main()
