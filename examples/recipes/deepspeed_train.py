"""DeepSpeed over cgx, ZeRO stages 0 to 3: gradients are reduced at 4 bits, by a group of their own;
all else is exact.

torchrun --nproc-per-node 2 examples/recipes/deepspeed_train.py --stage 2
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read by the import; "cuda" for GPUs

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from toy import batch, make_model, summary

import torch_cgx


class DataParallel:
    """What DeepSpeed calls an `mpu`: plain data parallelism, over a group that compresses."""

    def __init__(self, options: torch_cgx.Options) -> None:
        self.group = dist.new_group(backend="cgx", pg_options=options)
        self.alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self.group

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank()

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size()

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self.alone

    def get_model_parallel_rank(self) -> int:
        return 0

    def get_model_parallel_world_size(self) -> int:
        return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, default=1, choices=range(4), help="of ZeRO")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--accumulate", type=int, default=1, help="batches in a step")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint", help="folder from which to go on, and to save to")
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="cgx")  # without options: exact
    parallel = DataParallel(torch_cgx.Options(bits=4, min_size=1024))

    model = make_model()
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": args.dtype == "bf16"},
        "fp16": {"enabled": args.dtype == "fp16", "initial_scale_power": 12},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=parallel)
    if args.checkpoint and os.path.exists(os.path.join(args.checkpoint, "latest")):
        engine.load_checkpoint(args.checkpoint)

    losses = []
    first = engine.global_steps * args.accumulate
    for number in range(first, args.steps * args.accumulate):
        x, labels = batch(dist.get_rank(), number)
        x = x.to({"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype])
        loss = F.cross_entropy(engine(x).float(), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if args.checkpoint:
        engine.save_checkpoint(args.checkpoint)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):  # stage 3 shards them
        print(summary(model, first, losses, parallel.group) + "\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
