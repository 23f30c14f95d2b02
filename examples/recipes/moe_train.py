"""A layer of experts that are spread over the ranks: tokens travel to their experts at 8 bits, and
back at 8; the gradients of both at 4.

torchrun --nproc-per-node 2 examples/recipes/moe_train.py [--forward 32 --backward 32]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from toy import batch

from torch_cgx import nn as cgx

STEPS = 40


class Experts(nn.Module):
    """Each token goes to the expert that the gate likes best (a "switch", arXiv 2101.03961), and
    comes back times the gate's weight. float32 [tokens, width] -> the same.

    experts: of all ranks, a multiple of their number; each rank holds its share. forward, backward:
    configurations of the exchanges of values and of gradients; None: exact. Parameters of the gate
    are the same on all ranks, those of the experts are each rank's own.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        group: dist.ProcessGroup | None = None,
        forward: Any = None,
        backward: Any = None,
    ) -> None:
        super().__init__()
        self._group, self._how = group, {"forward": forward, "backward": backward}
        self._ranks = dist.get_world_size(group)
        self._mine = experts // self._ranks
        self.gate = nn.Linear(width, experts, bias=False)
        every = [
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(experts)
        ]  # so that the number of ranks does not change the weights
        first = self._mine * dist.get_rank(group)
        self.experts = nn.ModuleList(every[first : first + self._mine])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.gate(x).softmax(1).max(1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self._mine * self._ranks)
        theirs = torch.empty_like(counts)  # [r, e]: tokens from rank r for my expert e
        dist.all_to_all_single(theirs, counts, group=self._group)
        sent = counts.view(self._ranks, -1).sum(1).tolist()
        by_rank = theirs.view(self._ranks, -1)
        got = by_rank.sum(1).tolist()

        arrived = self.exchange(x[order], got, sent)
        pieces = list(arrived.split(theirs.tolist()))  # by rank, then by expert
        for number, expert_of_mine in enumerate(self.experts):
            places = range(number, len(pieces), self._mine)
            done = expert_of_mine(torch.cat([pieces[place] for place in places]))
            for place, part in zip(places, done.split(by_rank[:, number].tolist()), strict=True):
                pieces[place] = part
        back = self.exchange(torch.cat(pieces), sent, got)
        return torch.empty_like(back).index_copy(0, order, back) * weight[:, None]

    def exchange(self, rows: torch.Tensor, got: list[int], sent: list[int]) -> torch.Tensor:
        """got, sent: numbers of rows, by rank."""
        return cgx.all_to_all_single(rows, got, sent, self._group, **self._how)

    def average_gradients(self) -> None:
        """Of the mean of all ranks' losses: after the backward pass."""
        dist.all_reduce(self.gate.weight.grad, dist.ReduceOp.AVG, self._group)
        for parameter in self.experts.parameters():
            if parameter.grad is not None:  # the sum over the tokens of all ranks
                parameter.grad /= self._ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forward", type=int, default=8, metavar="BITS", help="32: exact")
    parser.add_argument("--backward", type=int, default=4, metavar="BITS", help="32: exact")
    bits = parser.parse_args()
    dist.init_process_group("cgx")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    experts = Experts(64, 128, 2 * size, None, {"bits": bits.forward}, {"bits": bits.backward})
    head = nn.Linear(64, 10)
    parameters = [*experts.parameters(), *head.parameters()]

    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, labels = batch(rank, step)
        loss = F.cross_entropy(head(x + experts(x)), labels)
        optimizer.zero_grad()
        loss.backward()
        experts.average_gradients()
        for parameter in head.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        losses.append(loss.item())
    print(
        f"rank {rank} of {size}: steps 0 to {STEPS - 1}, "
        f"loss {losses[0]:.3f} to {losses[-1]:.3f}\n",
        end="",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
