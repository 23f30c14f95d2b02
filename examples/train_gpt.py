"""Trains a small byte-level GPT on the source code of Python's standard library, with DDP.

    torchrun --nproc-per-node 2 examples/train_gpt.py --backend cgx --bits 4

The text is what your Python brought along, so nothing is downloaded. About a minute on two cores.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import common
import corpus
import torch
import torch.nn.functional as F
from common import Ranks
from gpt import GPT, GPTConfig
from meter import Meter
from torch import nn

VAL_WINDOWS = 1024


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear warm-up to `peak` over `warmup` steps, then a cosine to 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.5 * peak * (1 + math.cos(math.pi * progress))


def validate(model: nn.Module, text: torch.Tensor, length: int, ranks: Ranks) -> float:
    """Mean loss in nats per byte over evenly spaced windows of `text`; ranks share the work."""
    starts = torch.linspace(0, text.numel() - length - 1, VAL_WINDOWS).long()
    total, count = 0.0, 0.0
    model.eval()
    with torch.no_grad():
        for group in starts[ranks.rank :: ranks.world_size].split(32):
            x, y = (t.to(ranks.device) for t in corpus.windows(text, group, length))
            losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            total += float(losses)
            count += y.numel()
    total, count = common.sum_over_ranks([total, count], ranks)
    return total / count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options about the model and its data."""
    parser.add_argument("--batch", type=int, default=32, help="windows per step, of all ranks")
    parser.add_argument("--context", type=int, default=64, help="bytes per window")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--data-mb", type=float, default=4.0, help="text to use, in 1e6 bytes")


def make_model(args: argparse.Namespace) -> GPT:
    """The model that these options describe."""
    config = GPTConfig(context=args.context, layers=args.layers, heads=args.heads, width=args.width)
    return GPT(config)


def train(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """One training run on this rank; the result is the same on every rank."""
    train, val = corpus.load(args.data_mb)
    model = common.data_parallel(make_model(args), args, ranks)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    positions = train.numel() - args.context  # where a window may start
    meter = Meter("gpt", args, ranks, model, args.steps)
    meter.start()
    batches = common.batches(positions, args.batch, ranks, args.seed, epoch=0)
    for step, (starts, mine) in zip(range(args.steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.steps // 10, args.lr)
        x, y = (t.to(ranks.device) for t in corpus.windows(train, starts[mine], args.context))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        meter.step(loss)
    meter.stop()
    result = meter.result(validate(model.module, val, args.context, ranks), accuracy=None)
    result["unigram_entropy"] = corpus.unigram_entropy(val)
    result["data_bytes"] = train.numel() + val.numel()
    return result


def main(argv: list[str] | None = None) -> None:
    """Trains as the arguments say; prints the result on rank 0."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--steps", type=int, default=300)
    add_arguments(parser)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    args = common.parse(parser, argv)
    with common.process_group(args) as ranks:
        common.finish(args, ranks, train(args, ranks))


if __name__ == "__main__":
    main()
