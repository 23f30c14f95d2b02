"""One rank of a comparison: trains what its stdin says, and answers on its stdout (ranks.py)."""

from __future__ import annotations

import hashlib
import os
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

from torch_cgx.emulate.comparison.load import load
from torch_cgx.emulate.comparison.ranks import HOST, Said, Start, Work
from torch_cgx.emulate.comparison.run import Rank, train
from torch_cgx.emulate.comparison.wire import Exchanged


def check_replicas(model: nn.Module) -> None:
    """RuntimeError, on all ranks, unless all have the same weights."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor):
            digest.update(
                value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
    mine = torch.tensor(
        [int.from_bytes(digest.digest()[:7], "big")], dtype=torch.int64, device="cpu"
    )
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if bool(least != most):
        raise RuntimeError("the ranks have trained different weights")


def _work(stdin: Connection, stdout: Connection) -> None:
    """Trains until stdin ends."""
    start = stdin.recv()
    assert isinstance(start, Start)
    task = load(start.model, start.data)
    store = TCPStore(HOST, start.port, is_master=False)
    dist.init_process_group("cgx", store=store, rank=start.rank, world_size=start.size.ranks)
    rank = Rank(start.rank, Exchanged, check_replicas)

    def on_step() -> None:
        stdout.send(Said("step"))

    while True:
        try:
            work = stdin.recv()
        except EOFError:
            break
        assert isinstance(work, Work)
        stdout.send(Said("done", train(task, work.recipe, work.seed, start.size, on_step, rank)))
    dist.destroy_process_group()


def main() -> None:
    """The files of the messages are moved away: what the user's code prints goes to stderr."""
    stdin, stdout = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        _work(stdin, stdout)
    except BrokenPipeError:  # the process that started this one has ended
        pass
    except Exception as error:
        stdout.send(Said("failed", " ".join(str(error).split())))


if __name__ == "__main__":
    main()
