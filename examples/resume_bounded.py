"""Trains the small GPT, saves it exactly and within a bound, and resumes from each checkpoint.

    python examples/resume_bounded.py
    python examples/resume_bounded.py --steps 200 --further 100 --max-error 1e-3 1e-4
    python examples/resume_bounded.py --steps 60 --further 40 --moments 1e-4 \\
        --moments-kind max_error

Prints the bytes and seconds of each checkpoint, and the loss after the further steps, which are the
same batches for all. The weights are bounded by --max-error, norms are exact. Adam's moments need
a bound of their own: second moments are squares of small gradients, of which an absolute 1e-4 would
leave nothing, so moments are bounded relative to each value (--moments). The third command shows
what an absolute bound of the moments does.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import corpus
import torch
import torch.nn.functional as F
from common import Ranks
from torch import nn
from train_gpt import add_arguments, learning_rate, make_model

from torch_cgx import bounded

ALONE = Ranks(0, 1, torch.device("cpu"))
VAL_WINDOWS = 256


@dataclasses.dataclass
class Run:
    """A model, its optimizer, and how many steps both have made."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A way to save and load."""

    name: str
    save: Callable[[Any, Path], None]
    load: Callable[[Path], Any]


def checkpoints(
    bounds: Sequence[float], moments: float, kind: str = "pointwise"
) -> list[Checkpoint]:
    """torch's own, and one for each bound of the weights; kind: of the bound of the moments."""
    found = [Checkpoint("exact, torch.save", torch.save, torch.load)]
    # In dotted names: "model.blocks.0.norm1.weight", "optimizer.state.3.exp_avg_sq".
    overrides = {r"norm": 0, r"\.step$": 0, r"\.exp_avg": {kind: moments}}

    def saver(bound: float) -> Callable[[Any, Path], None]:
        return lambda state, path: bounded.save(state, path, max_error=bound, overrides=overrides)

    return found + [Checkpoint(f"bounded, {one:g}", saver(one), bounded.load) for one in bounds]


def new_run(args: argparse.Namespace) -> Run:
    """As it is before the first step."""
    torch.manual_seed(args.seed)
    model = make_model(args)
    return Run(model, torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95)))


def train(run: Run, until: int, args: argparse.Namespace, text: torch.Tensor) -> None:
    """Steps until `until`; each one has its batch and learning rate whatever was resumed."""
    total = args.steps + args.further
    batches = common.batches(text.numel() - args.context, args.batch, ALONE, args.seed, epoch=0)
    for step, (starts, _) in zip(range(until), batches, strict=False):
        if step < run.steps:
            continue
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(step, total, total // 10, args.lr)
        x, y = corpus.windows(text, starts, args.context)
        loss = F.cross_entropy(run.model(x).flatten(0, 1), y.flatten())
        run.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
    run.steps = until


def validate(model: nn.Module, text: torch.Tensor, length: int) -> float:
    """Mean loss in nats per byte over evenly spaced windows of `text`."""
    starts = torch.linspace(0, text.numel() - length - 1, VAL_WINDOWS).long()
    with torch.no_grad():
        x, y = corpus.windows(text, starts, length)
        return float(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Trains once up to the checkpoints, and on from each of them."""
    text, val = corpus.load(args.data_mb)
    run = new_run(args)
    train(run, args.steps, args, text)
    state = run.state_dict()
    rows = []
    with tempfile.TemporaryDirectory(prefix="cgx_resume_") as folder:
        for number, one in enumerate(checkpoints(args.max_error, args.moments, args.moments_kind)):
            path = Path(folder, str(number))
            begin = time.perf_counter()
            one.save(state, path)
            saved = time.perf_counter()
            content = one.load(path)
            loaded = time.perf_counter()
            resumed = new_run(args)
            resumed.load_state_dict(content)
            at_resume = validate(resumed.model, val, args.context)
            train(resumed, args.steps + args.further, args, text)
            row = {"checkpoint": one.name, "bytes": path.stat().st_size}
            row |= {"save_seconds": saved - begin, "load_seconds": loaded - saved}
            row |= {"loss": at_resume, "final_loss": validate(resumed.model, val, args.context)}
            rows.append(row)
    return {
        "example": "resume_bounded",
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "steps": args.steps,
        "further": args.further,
        "loss": validate(run.model, val, args.context),
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """A line for each checkpoint; the first is the exact one."""
    exact = result["rows"][0]
    lines = [
        f"{'checkpoint':<18} {'bytes':>12} {'fewer':>7} {'save ms':>8} {'load ms':>8} "
        f"{'loss':>8} {'after more':>11}"
    ]
    for row in result["rows"]:
        lines.append(
            f"{row['checkpoint']:<18} {row['bytes']:>12,} {exact['bytes'] / row['bytes']:>6.2f}x "
            f"{1e3 * row['save_seconds']:>8.1f} {1e3 * row['load_seconds']:>8.1f} "
            f"{row['loss']:>8.4f} {row['final_loss']:>11.4f}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Runs as the arguments say, and prints the table."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--steps", type=int, default=200, help="before the checkpoint")
    p.add_argument("--further", type=int, default=100, help="steps after it")
    p.add_argument("--max-error", type=float, nargs="+", default=[1e-4, 1e-3], metavar="BOUND")
    p.add_argument("--moments", type=float, default=1e-2, help="bound of Adam's moments")
    p.add_argument("--moments-kind", choices=("pointwise", "max_error"), default="pointwise")
    add_arguments(p)
    p.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    p.add_argument("--seed", type=int, default=0, help="of initial weights and data order")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = p.parse_args(argv)
    for name in ("steps", "further", "batch"):
        if getattr(args, name) < 1:
            p.error(f"--{name} {getattr(args, name)}: must be positive")
    result = measure(args)
    print(f"{result['parameters']:,} parameters, {args.steps} steps, {args.further} more")
    print(table(result))
    if args.json is not None:
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
