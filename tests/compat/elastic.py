"""A script for torchrun: trains over cgx from its last checkpoint on; in the first attempt, rank 1
comes to an end in step 3, while rank 0 waits for it.

    elastic.py FOLDER HOW     # HOW: exit, kill
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_cgx
from tests.compat.training import Net, batch, loss_of

STEPS = 6


def end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.set_num_threads(1)
    dist.init_process_group("cgx", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    torch.manual_seed(1234)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    start, saved = 0, folder / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        start = state["step"]
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    model = DDP(net)
    for step in range(start, STEPS):
        if step == 3 and attempt == 0 and rank == 1:
            end(how)
        optimizer.zero_grad()
        try:
            loss_of(model, batch(rank, step)).backward()
        except torch_cgx.CgxError as error:
            (folder / f"error{rank}.txt").write_text(f"{type(error).__name__}: {error}")
            raise
        optimizer.step()
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, folder / "new.pt")
            (folder / "new.pt").rename(saved)
        dist.barrier()
    lines = {"attempt": attempt, "start": start, "world_size": dist.get_world_size()}
    (folder / f"done{rank}.json").write_text(json.dumps(lines))
    if rank == 0:
        torch.save(net.state_dict(), folder / "end.pt")
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
