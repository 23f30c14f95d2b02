"""Trains the small GPT twice, plainly and with less kept for backward, and compares the losses.

    python examples/train_small_memory.py
    python examples/train_small_memory.py --bits 2 --steps 200

The second training keeps the outputs of norms instead of their inputs, and everything else that
autograd saves at --bits per value. Prints what both keep between forward and backward, the peak of
a step, and the training loss along the way. Both see the same batches from the same weights. Needs
no process group. Less than a minute on one core; set OMP_NUM_THREADS=1 where others use the cores.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import corpus
import torch
import torch.nn.functional as F
from common import Ranks
from torch import nn
from train_gpt import add_arguments, learning_rate, make_model

from torch_cgx import activations

ALONE = Ranks(0, 1, torch.device("cpu"))
Context = contextlib.AbstractContextManager[Any]


def loss_against(targets: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of the model's output: mean loss in nats per byte."""
    return lambda logits: F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain(model: nn.Module, bits: int) -> Context:
    """As torch does it."""
    return contextlib.nullcontext()


def small(model: nn.Module, bits: int) -> Context:
    """Converts the norms of the model; inside the context, what is saved has `bits` per value."""
    activations.convert(model, norms=True)
    return activations.compress_saved({"codec": "maxmin", "bits": bits})


def train(
    args: argparse.Namespace, text: torch.Tensor, prepare: Callable[[nn.Module, int], Context]
) -> dict[str, Any]:
    """One training: bytes kept for backward, peak of a step in bytes, loss of every step."""
    torch.manual_seed(args.seed)
    model = make_model(args)
    context = prepare(model, args.bits)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    batches = common.batches(text.numel() - args.context, args.batch, ALONE, args.seed, epoch=0)
    report, losses = None, []
    for step, (starts, _) in zip(range(args.steps), batches, strict=False):
        x, y = corpus.windows(text, starts, args.context)
        loss_of = loss_against(y)
        if report is None:
            with context:
                report = activations.memory(model, x, loss=loss_of)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.steps // 10, args.lr)
        with context:
            loss = loss_of(model(x))
        optimizer.zero_grad()
        loss.backward()  # outside of the context: nothing is saved here
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert report is not None
    return {"kept": report.total, "peak": report.peak, "losses": losses}


def table(result: dict[str, Any]) -> str:
    """What both keep, and about ten lines of loss."""
    one, other = result["plain"], result["small"]
    mib = 1 << 20
    lines = [f"{'':<22} {'plain':>10} {'small':>10} {'of plain':>9}"]
    for what, key in (("kept for backward", "kept"), ("peak of a step", "peak")):
        share = 100 * other[key] / one[key]
        lines.append(
            f"{what:<22} {one[key] / mib:>6.1f} MiB {other[key] / mib:>6.1f} MiB {share:>7.0f} %"
        )
    steps = len(one["losses"])
    every = max(1, steps // 10)
    for begin in range(0, steps, every):
        end = min(begin + every, steps)
        a, b = (sum(run["losses"][begin:end]) / (end - begin) for run in (one, other))
        lines.append(f"{f'loss, steps {begin + 1} to {end}':<22} {a:>10.4f} {b:>10.4f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Runs both trainings, and prints the table."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--bits", type=int, choices=range(1, 9), default=4, help="of a saved value")
    add_arguments(p)
    p.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--seed", type=int, default=0, help="of initial weights and data order")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = p.parse_args(argv)
    for name in ("steps", "batch"):
        if getattr(args, name) < 1:
            p.error(f"--{name} {getattr(args, name)}: must be positive")
    text, _ = corpus.load(args.data_mb)
    result: dict[str, Any] = {"example": "train_small_memory", "bits": args.bits}
    result["plain"] = train(args, text, plain)
    result["small"] = train(args, text, small)
    print(table(result))
    if args.json is not None:
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
