"""Steps of exact FSDP2: the GPT of the examples, one sharded model a group, which take turns."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import _command
from benchmarks._collectives_rounds import GROUPS, make_groups, slowest
from benchmarks._ranks import everyone

_CONTEXT, _BATCH = 64, 32
_NEAR = 1e-3  # of losses: sums in another order
_WARM = 3  # steps that do not count: allocations, the optimizer's state


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank, in one round: `steps` steps of each model, and whether the losses agree."""
    sys.path.insert(0, str(_command.ROOT / "examples"))
    import common
    import corpus

    ranks = common.Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    groups = make_groups(tuple(fields["order"]))
    models = {name: _Model(group) for name, group in groups.items()}
    text, _ = corpus.load(1.0)
    batches = common.batches(text.numel() - _CONTEXT, _BATCH, ranks, 0, epoch=0)
    taken: dict[str, list[float]] = {name: [] for name in GROUPS}
    losses: dict[str, list[float]] = {name: [] for name in GROUPS}
    for step, (starts, mine) in zip(range(fields["steps"] + _WARM), batches, strict=False):
        x, y = corpus.windows(text, starts[mine], _CONTEXT)
        for k in range(len(GROUPS)):
            name = GROUPS[(step + k) % len(GROUPS)]
            dist.barrier()
            start = time.perf_counter()
            losses[name].append(models[name].step(x, y))
            if step >= _WARM:
                taken[name].append(time.perf_counter() - start)
    seconds = slowest(taken)
    every = everyone(losses)
    wrong = [
        f"FSDP2 over {name}: rank {rank} ends with loss {of[name][-1]:.6f}, over gloo with "
        f"{of['gloo'][-1]:.6f}"
        for rank, of in enumerate(every)
        for name in GROUPS
        if not abs(of[name][-1] - of["gloo"][-1]) <= _NEAR * of["gloo"][-1]
    ]
    row = {"operation": "FSDP2 step", "bytes": models["gloo"].bytes, "seconds": seconds}
    return {"rows": [row], "wrong": wrong}


class _Model:
    """The GPT, each block and the rest a `fully_shard` module over `group`, and its AdamW."""

    def __init__(self, group: Any):
        from gpt import GPT, GPTConfig
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        self.model = GPT(GPTConfig(context=_CONTEXT, layers=4, width=128))
        self.bytes = 4 * sum(p.numel() for p in self.model.parameters())
        mesh = dist.DeviceMesh.from_group(group, "cpu")
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())
