"""Linear layers that keep a part of their input: time, bytes, and variance of the estimates.

    python -m benchmarks.projections [--quick] [--rounds N] [--draws N] [--json FILE] [--plot FILE]

Layers: the forward and the backward pass of one linear layer, 1024 rows, 768 to 3072 features, with
each method and part, by torch's time. Steps: of the encoder of benchmarks/activations.py (two
layers of BERT's form, batch 8), with all linear layers replaced. In every round plain torch runs
before and after each method; the result is the median of the method's time, divided by the mean of
these two.

Bytes: twelve layers of BERT's form, width 768, batch 128, sequence 128, as RoBERTa-base in FewBit's
README, on meta tensors: what is kept for backward, and the same with weights, gradients and AdamW's
state of RoBERTa-base (124.6 million parameters, 16 bytes each) for the step. Masks have one byte a
value, as on a GPU.

Variance: a GPT of the examples trains for some steps; inputs and gradients of its linear layers are
recorded, and the gradient of each weight is estimated from a fifth of the rows, 2000 times. The
result is the mean squared error of an estimate by that of uniform rows, a geometric mean over the
layers.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import _command
from benchmarks._activation_models import WIDTH, BertLayer, Encoder
from benchmarks._command import at_least, quartiles
from benchmarks.report import projections as report
from torch_cgx import activations
from torch_cgx.activations.functional import linear
from torch_cgx.activations.projection.function import METHODS
from torch_cgx.workloads import corpus
from torch_cgx.workloads.gpt import GPT, GPTConfig

Row = dict[str, Any]
PARTS = (0.5, 0.2, 0.1)
SEQUENCE = 128
ROBERTA_LAYERS, ROBERTA_BATCH = 12, 128
ROBERTA_PARAMETERS = 124_645_632
STATE = 16  # bytes of a weight, its gradient and AdamW's two moments
# By the rows of FewBit's README: the arguments of `convert`.
README: dict[str, dict[str, Any]] = {
    "3-bit GELU": {"activations": 3},
    "linear 0.2": {"linear": 0.2},
    "3-bit GELU, linear 0.2": {"activations": 3, "linear": 0.2},
}


# ---- time


def ratios(
    plain: Callable[[], float], others: dict[str, Callable[[], float]], rounds: int
) -> tuple[dict[str, list[float]], float]:
    """Of each, by plain torch's time; and the median of the latter in seconds."""
    for one in (plain, *others.values()):
        one()
    found: dict[str, list[float]] = {name: [] for name in others}
    seconds = []
    for _ in range(rounds):
        before = plain()
        for name, other in others.items():
            mine, after = other(), plain()
            found[name].append(mine / ((before + after) / 2))
            seconds.append(after)
            before = after
    return found, statistics.median(seconds)


def timed(step: Callable[[], Tensor]) -> Callable[[], float]:
    """A function that runs forward and backward, and returns the seconds."""

    def call() -> float:
        begin = time.perf_counter()
        step().backward()
        return time.perf_counter() - begin

    return call


def measure_layers(rounds: int, threads: int, rows: int, width: int) -> list[Row]:
    x = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(4 * width, width, requires_grad=True)
    dy = torch.randn(rows, 4 * width)

    def step(function: Callable[..., Tensor], **options: Any) -> Callable[[], float]:
        def call() -> float:
            begin = time.perf_counter()
            function(x, weight, **options).backward(dy)
            seconds = time.perf_counter() - begin
            x.grad = weight.grad = None
            return seconds

        return call

    others = {
        f"{method} {by} {part}": step(linear, keep=part, method=method, by=by)
        for by in ("batch", "features")
        for method in METHODS
        for part in (PARTS if by == "batch" else (0.2,))
    }
    found, seconds = ratios(step(F.linear), others, rounds)
    return [
        {
            "kind": "layer",
            "method": name.split()[0],
            "by": name.split()[1],
            "keep": float(name.split()[2]),
            "threads": threads,
            "plain_seconds": seconds,
            **_quartiles(one),
        }
        for name, one in found.items()
    ]


def _quartiles(values: list[float]) -> Row:
    low, median, high = quartiles(values)
    return {"ratio": median, "ratio_q1": low, "ratio_q3": high}


def measure_steps(rounds: int, threads: int, batch: int, width: int) -> list[Row]:
    x = torch.randn(batch, SEQUENCE, width)

    def step(options: dict[str, Any] | None, saved: bool = False) -> Callable[[], float]:
        torch.manual_seed(0)
        model = Encoder(BertLayer, width=width)
        if options is not None:
            activations.convert(model, linear=options)

        def call() -> float:
            begin = time.perf_counter()
            if saved:
                with activations.compress_saved(step=1):
                    loss = model(x).square().mean()
            else:
                loss = model(x).square().mean()
            loss.backward()
            seconds = time.perf_counter() - begin
            model.zero_grad()
            return seconds

        return call

    others = {
        f"{method} {part}": step({"keep": part, "method": method})
        for method in METHODS
        for part in (PARTS if method in ("wta", "rows") else (0.2,))
    }
    others["wta 0.2, saved 4 bits"] = step({"keep": 0.2}, True)
    found, seconds = ratios(step(None), others, rounds)
    return [
        {
            "kind": "step",
            "method": name,
            "threads": threads,
            "batch": batch,
            "plain_seconds": seconds,
            **_quartiles(one),
        }
        for name, one in found.items()
    ]


# ---- bytes


def bytes_kept(options: dict[str, Any], layers: int, batch: int, width: int) -> int:
    """For backward, with masks of a byte; the input of the head is left out."""
    with torch.device("meta"):
        model = Encoder(BertLayer, layers, width)
        x = torch.empty(batch, SEQUENCE, width)
    if options:
        activations.convert(model.layers, **options)
    found = activations.memory(model, x)
    masks = found.by_kind.get("mask", 0)
    return int(found.total - x.nbytes - masks + masks // 4)


def measure_bytes(layers: int, batch: int, width: int) -> list[Row]:
    plain = bytes_kept({}, layers, batch, width)
    state = ROBERTA_PARAMETERS * STATE
    rows = []
    for name, options in README.items():
        kept = bytes_kept(options, layers, batch, width)
        rows.append(
            {
                "kind": "bytes",
                "method": name,
                "layers": layers,
                "batch": batch,
                "plain": plain,
                "kept": kept,
                "saving": 1 - kept / plain,
                "saving_of_step": (plain - kept) / (plain + state),
            }
        )
    return rows


# ---- variance


def recorded(steps: int) -> dict[str, tuple[Tensor, Tensor]]:
    """By layer: the input [rows, in] and the gradient of the output [rows, out], float32."""
    torch.manual_seed(0)
    config = GPTConfig(context=64, layers=2, width=64)
    model: nn.Module = GPT(config)
    text, _ = corpus.load(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        x = inputs[0].detach().flatten(0, -2)
        output.register_hook(lambda dy: found.update({name: (x, dy.flatten(0, -2))}))

    for step in range(steps + 1):
        starts = torch.randint(text.numel() - config.context - 1, (16,))
        x, y = corpus.windows(text, starts, config.context)
        if step == steps:
            for name, module in model.named_modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(functools.partial(record, name))
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def squared_error(x: Tensor, dy: Tensor, method: Any, draws: int, keep: float) -> float:
    """The mean over draws, relative to the square of the exact gradient."""
    exact = dy.t() @ x
    weight = torch.zeros_like(exact, requires_grad=True)
    total = 0.0
    for _ in range(draws):
        (one,) = torch.autograd.grad(linear(x, weight, keep=keep, method=method), weight, dy)
        total += float((one - exact).square().sum())
    return total / draws / float(exact.square().sum())


def measure_variance(steps: int, draws: int, keep: float = 0.2) -> list[Row]:
    rows: list[Row] = []
    for name, (x, dy) in recorded(steps).items():
        found = {method: squared_error(x, dy, method, draws, keep) for method in METHODS}
        rows += [
            {
                "kind": "variance",
                "layer": name,
                "method": method,
                "draws": draws,
                "keep": keep,
                "error": error,
                "by_rows": error / found["rows"],
            }
            for method, error in found.items()
        ]
    for method in METHODS:
        mine = [math.log(row["by_rows"]) for row in rows if row["method"] == method]
        rows.append(
            {
                "kind": "variance",
                "layer": "all",
                "method": method,
                "draws": draws,
                "keep": keep,
                "by_rows": math.exp(statistics.fmean(mine)),
            }
        )
    return rows


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small layers, and two rounds")
    parser.add_argument("--rounds", type=at_least(1), metavar="N", help="7; 2 with --quick")
    parser.add_argument("--draws", type=at_least(1), metavar="N", help="2000; 20 with --quick")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    rounds = args.rounds or (2 if args.quick else 7)
    draws = args.draws or (20 if args.quick else 2000)
    width = 96 if args.quick else WIDTH
    before = torch.get_num_threads()
    facts = _command.print_facts(rounds=rounds, draws=draws, width=width)
    layers, batch = (2, 8) if args.quick else (ROBERTA_LAYERS, ROBERTA_BATCH)
    rows = measure_bytes(layers, batch, width)
    try:
        for threads in (1,) if args.quick else (1, 2):
            torch.set_num_threads(threads)
            rows += measure_layers(rounds, threads, 128 if args.quick else 1024, width)
            rows += measure_steps(rounds, threads, 2 if args.quick else 8, width)
        torch.set_num_threads(1)
        rows += measure_variance(5 if args.quick else 150, draws)
    finally:
        torch.set_num_threads(before)
    print(report.text(rows))
    return _command.finish(
        args, {"machine": facts, "rows": rows}, lambda file: report.draw(rows, file)
    )


if __name__ == "__main__":
    sys.exit(main())
