"""Trains the small GPT over slow links, by DiLoCo's local steps or by DDP, for a given time.

    torchrun --nproc-per-node 2 examples/train_diloco.py --backend cgx --bits 4 --every 20
    torchrun --nproc-per-node 2 examples/train_diloco.py --method ddp --seconds 60

Both have the same model and batches, and a learning rate that is constant after a warm-up, which
does not need to know how many steps fit into the time. The clock stands still during validation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from typing import Any

import common
import corpus
import torch
import torch.nn.functional as F
from common import Ranks
from meter import Meter
from torch import nn
from train_gpt import add_arguments, make_model, validate

WARMUP = 50  # steps


class Clock:
    """Seconds of training on rank 0, by which all ranks go."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._spent = 0.0
        self._begin = time.perf_counter()

    def pause(self) -> float:
        """Stops the clock; the seconds so far, equal on all ranks."""
        self._spent += time.perf_counter() - self._begin
        mine = self._spent if self._ranks.rank == 0 else 0.0
        return common.sum_over_ranks([mine], self._ranks)[0]

    def start(self) -> None:
        """The clock goes on."""
        self._begin = time.perf_counter()


def set_up(args: argparse.Namespace, ranks: Ranks) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """The model to train, its optimizer, and the DiLoCo around the steps (DDP: nothing)."""
    model: nn.Module = make_model(args).to(ranks.device)
    if args.method == "ddp":
        model = common.data_parallel(model, args, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    if args.method == "ddp":
        return model, optimizer, contextlib.nullcontext()
    from cgx_utils import DiLoCo

    outer = torch.optim.SGD(
        model.parameters(), lr=args.outer_lr, momentum=args.outer_momentum, nesterov=True
    )
    diloco = DiLoCo(
        model,
        optimizer,
        outer,
        every=args.every,
        config={"codec": args.codec, "bits": args.bits, "bucket_size": args.bucket_size},
        min_size=args.min_size,
        error_feedback=not args.no_error_feedback,
    )
    return model, optimizer, diloco


def train(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """One training run on this rank; the result is the same on every rank."""
    text, held_out = corpus.load(args.data_mb)
    model, optimizer, diloco = set_up(args, ranks)
    plain = model.module if args.method == "ddp" else model
    positions = text.numel() - args.context  # where a window may start
    batches = common.batches(positions, args.batch, ranks, args.seed, epoch=0)
    value = validate(plain, held_out, args.context, ranks)
    curve = [{"seconds": 0.0, "steps": 0, "val_loss": value}]
    meter = Meter("diloco", args, ranks, plain, args.steps)
    meter.start()
    clock = Clock(ranks)
    for number in itertools.count(1):
        model.train()
        with diloco:
            for starts, mine in itertools.islice(
                batches, min(args.every, args.steps - meter.steps)
            ):
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * min(1.0, (meter.steps + 1) / WARMUP)
                x, y = (
                    t.to(ranks.device) for t in corpus.windows(text, starts[mine], args.context)
                )
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                meter.step(loss)
        if args.method == "diloco" and diloco.local_steps:
            diloco.sync()  # the last round may be a short one
        seconds = clock.pause()
        done = meter.steps >= args.steps or (args.seconds > 0 and seconds >= args.seconds)
        if done or number % args.validate_every == 0:
            value = validate(plain, held_out, args.context, ranks)
            curve.append({"seconds": seconds, "steps": meter.steps, "val_loss": value})
        if done:
            break
        clock.start()
    meter.stop()
    result = meter.result(value, accuracy=None)
    result |= {"method": args.method, "every": args.every, "curve": curve}
    return result | {"train_seconds": seconds}


def main(argv: list[str] | None = None) -> None:
    """Trains as the arguments say; prints the result on rank 0."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--method", choices=["diloco", "ddp"], default="diloco")
    parser.add_argument("--every", type=int, default=20, help="steps per round, of DDP: per look")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    parser.add_argument("--no-error-feedback", action="store_true", help="the default is with it")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after these; 0: by --steps")
    parser.add_argument("--validate-every", type=int, default=1, help="in rounds")
    parser.add_argument("--steps", type=int, default=300, help="at most")
    add_arguments(parser)
    parser.add_argument("--lr", type=float, default=2e-3, help="after the warm-up")
    args = common.parse(parser, argv)
    if args.watch is not None:
        parser.error(f"--watch {args.watch}: DiLoCo reduces no gradients that a Monitor follows")
    if args.error_feedback and args.no_error_feedback:
        parser.error("--error-feedback and --no-error-feedback exclude each other")
    for name in ("every", "validate_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: must be positive")
    if args.method == "diloco" and not common.uses_cgx(args):
        parser.error(f"--method diloco needs --backend cgx, not {args.backend}")
    with common.process_group(args) as ranks:
        common.finish(args, ranks, train(args, ranks))


if __name__ == "__main__":
    main()
