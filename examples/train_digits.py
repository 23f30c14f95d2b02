"""Trains a small convnet on 1797 real handwritten digits (scikit-learn's load_digits), with DDP.

    torchrun --nproc-per-node 2 examples/train_digits.py --backend cgx --bits 4

The data comes with scikit-learn, so nothing is downloaded. It takes seconds.
"""

from __future__ import annotations

import argparse
from typing import Any

import common
import torch
import torch.nn.functional as F
from common import Ranks
from meter import Meter

from torch_cgx.workloads.digits import DigitsNet, evaluate, load


def train(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """One training run on this rank; the result is the same on every rank."""
    images, labels, test_images, test_labels = (t.to(ranks.device) for t in load())
    steps = args.epochs * (len(labels) // args.batch)
    steps = min(steps, args.steps or steps)
    model = common.data_parallel(DigitsNet(), args, ranks)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=max(steps, 2), pct_start=0.15
    )
    meter = Meter("digits", args, ranks, model, steps)
    meter.start()
    for epoch in range(args.epochs):
        for chosen, mine in common.batches(len(labels), args.batch, ranks, args.seed, epoch):
            if meter.steps == steps:
                break
            index = chosen[mine].to(ranks.device)
            loss = F.cross_entropy(model(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            meter.step(loss)
    meter.stop()
    # All ranks have the same weights and all the test data, so each gets the same numbers.
    val_loss, accuracy = evaluate(model.module, test_images, test_labels)
    return meter.result(val_loss, accuracy)


def main(argv: list[str] | None = None) -> None:
    """Trains as the arguments say; prints the result on rank 0."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--batch", type=int, default=48, help="samples per step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.05)
    args = common.parse(parser, argv)
    with common.process_group(args) as ranks:
        common.finish(args, ranks, train(args, ranks))


if __name__ == "__main__":
    main()
