"""Trains ResNet-18 on CIFAR-10 or CIFAR-100 from a folder, with DDP.

    torchrun --nproc-per-node 4 examples/cifar_train.py --data cifar-10-batches-py --backend cgx

The folder is what the archives of https://www.cs.toronto.edu/~kriz/cifar.html unpack to.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import cifar
import common
import torch
import torch.nn.functional as F
from common import Ranks
from meter import Meter
from resnet import ResNet18
from torch import nn

PAD = 4


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random crops of images [n, 3, 32, 32] padded by 4 zeros, half of them mirrored.

    `generator` lives on the CPU, so a seed means the same crops on every device.
    """
    n, size = images.shape[0], images.shape[-1]
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    shift = torch.randint(0, 2 * PAD + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    along = torch.arange(size).expand(n, size)
    rows = (along + shift[0]).to(images.device)
    columns = (torch.where(mirrored, size - 1 - along, along) + shift[1]).to(images.device)
    sample = torch.arange(n, device=images.device)[:, None, None]
    # Index tensors around the slice of channels put the channels last; DDP wants them contiguous.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def rate_factor(step: int, steps: int, warmup: int, schedule: str) -> float:
    """The learning rate at `step`, as a share of the peak.

    Linear over `warmup` steps, then a cosine to 0, or a tenth from 1/2 and a hundredth from 3/4 on.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "step":
        return 0.1 ** (int(2 * step >= steps) + int(4 * step >= 3 * steps))
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Normalise(nn.Module):
    """uint8 images -> float32, mean 0 and variance 1 per channel over the training set."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        sample = images[:10_000].float()
        self.register_buffer("mean", sample.mean((0, 2, 3)).view(1, 3, 1, 1))
        self.register_buffer("std", sample.std((0, 2, 3)).clamp_min(1.0).view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The normalised images."""
        return (images.float() - self.mean) / self.std


def evaluate(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, ranks: Ranks
) -> tuple[float, float]:
    """Mean cross-entropy in nats, and accuracy in 0..1; every rank sees its share of the images.

    All ranks use rank 0's running means of batch norm, as with a checkpoint of rank 0.
    """
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
    model.eval()
    sums = [0.0, 0.0, 0.0]
    with torch.no_grad():
        for index in torch.arange(ranks.rank, len(labels), ranks.world_size).split(500):
            logits = model(images[index].to(ranks.device))
            wanted = labels[index].to(ranks.device)
            sums[0] += float(F.cross_entropy(logits, wanted, reduction="sum"))
            sums[1] += float((logits.argmax(1) == wanted).sum())
            sums[2] += len(index)
    loss, hits, count = common.sum_over_ranks(sums, ranks)
    return loss / count, hits / count


def train(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """One training run on this rank; the result is the same on every rank."""
    data = cifar.load(args.data)
    images, labels = torch.tensor(data.train_images), torch.tensor(data.train_labels)
    net = nn.Sequential(Normalise(images), ResNet18(data.classes, args.width))
    model = common.data_parallel(net, args, ranks)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=args.weight_decay
    )
    per_epoch = len(labels) // args.batch
    steps = min(args.epochs * per_epoch, args.steps or args.epochs * per_epoch)
    warmup = min(args.warmup_epochs * per_epoch, steps // 10)
    meter = Meter(f"cifar{data.classes}", args, ranks, model, steps)
    meter.start()
    for epoch in range(args.epochs):
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + epoch)
        for chosen, mine in common.batches(len(labels), args.batch, ranks, args.seed, epoch):
            if meter.steps == steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = args.lr * rate_factor(meter.steps, steps, warmup, args.schedule)
            # Every rank draws the crops of the whole batch: the same for any world size.
            x = augment(images[chosen].to(ranks.device), generator)[mine]
            loss = F.cross_entropy(model(x), labels[chosen[mine]].to(ranks.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.step(loss)
    meter.stop()
    test_images, test_labels = torch.tensor(data.test_images), torch.tensor(data.test_labels)
    val_loss, accuracy = evaluate(model.module, test_images, test_labels, ranks)
    return meter.result(val_loss, accuracy)


def main(argv: list[str] | None = None) -> None:
    """Trains as the arguments say; prints the result on rank 0."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--batch", type=int, default=256, help="images per step, of all ranks")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--lr", type=float, default=0.2, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--schedule", choices=["cosine", "step"], default="cosine")
    args = common.parse(parser, argv)
    with common.process_group(args) as ranks:
        common.finish(args, ranks, train(args, ranks))


if __name__ == "__main__":
    main()
