"""Two ways to set bits without a group of one's own; says whether gradients are compressed.

torchrun --nproc-per-node 2 tests/recipes/deepspeed_ways.py {environment|options}
"""

from __future__ import annotations

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import groups

import torch_cgx


def main() -> None:
    if sys.argv[1] == "environment":
        deepspeed.init_distributed(dist_backend="cgx")
    else:
        dist.init_process_group("cgx", pg_options=torch_cgx.Options(bits=4, min_size=1024))
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    assert dist.get_backend() == "cgx"
    for _ in range(5):
        engine.backward(engine(torch.randn(8, 64)).square().mean())
        engine.step()
    used = torch_cgx.stats(groups._get_data_parallel_group())
    assert used["calls"] == 10  # gradients and their norm, five times
    assert torch_cgx.stats()["calls"] == 0  # of the default group
    calls = used["compressed_calls"]
    print(f"rank {dist.get_rank()}: {calls} calls compressed\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
