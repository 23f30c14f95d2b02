"""Ray Train over cgx: workers on a cluster of Ray, which starts them again from the last checkpoint
when one fails.

    python examples/recipes/ray_train.py --storage /shared/runs

The cluster: the one that RAY_ADDRESS names, or `ray start` has joined this host to; without one, a
new one of this host alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel
from toy import batch, make_model, summary

from cgx_utils import CGXState, cgx_hook


def train_worker(config: dict[str, Any]) -> None:
    """What every worker runs; Ray has made the process group, with TorchConfig's backend."""
    rank = dist.get_rank()
    module = make_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if (checkpoint := train.get_checkpoint()) is not None:  # of an attempt that failed
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "last.pt"), weights_only=True)
        first = saved["step"] + 1
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    model = DistributedDataParallel(module)
    state = CGXState(bits=4, bucket_size=512)
    model.register_comm_hook(state, cgx_hook)

    losses = []
    for step in range(first, config["steps"]):
        x, labels = batch(rank, step)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            report(step, losses[-1], module, optimizer)
    print(summary(module, first, losses), flush=True)


def report(
    step: int, loss: float, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Every rank calls it. Ray copies rank 0's checkpoint into the storage."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if dist.get_rank() == 0:
            saved = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, Path(folder, "last.pt"))
            checkpoint = train.Checkpoint.from_directory(folder)
        train.report({"step": step, "loss": loss}, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="a folder that all hosts share, or a bucket's URL")
    parser.add_argument("--name", default="cgx", help="of the run; an unfinished one goes on")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--max-failures", type=int, default=1, help="restarts; -1: any number")
    args = parser.parse_args()
    if args.workers < 1:
        parser.error(f"--workers {args.workers}; allowed: 1 or more")
    # Ray copies this folder to all hosts, for toy.py.
    ray.init(runtime_env={"working_dir": str(Path(__file__).resolve().parent)})
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"steps": args.steps},
        torch_config=TorchConfig(backend="cgx"),
        scaling_config=train.ScalingConfig(num_workers=args.workers),
        run_config=train.RunConfig(
            name=args.name,
            storage_path=args.storage,
            failure_config=train.FailureConfig(max_failures=args.max_failures),
        ),
    )
    result = trainer.fit()
    print(f"finished: {result.metrics}")


if __name__ == "__main__":
    main()
