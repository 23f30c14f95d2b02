"""Training with saved activations in few bits: losses of paired seeds, and bytes for backward.

    python -m benchmarks.training.activations [--quick] [--seeds N] [--steps N] [--workers N]
        [--projections] [--json FILE] [--plot FILE]

With --projections, the methods are linear layers that keep a part of their input
(activations.Linear), with and without 4 bits for all saved tensors; tasks gpt and digits.

Tasks, each trained in a process without a process group, on one thread:

- gpt: the GPT of examples/gpt.py on the text of examples/train_gpt.py.
- digits: the net of examples/train_digits.py, with GELU in place of ReLU.
- tuning: the GPT that "gpt" has trained exactly goes on with the sources of torch.nn: all weights,
  or a frozen base with adapters of rank 4 (LoRA, Hu et al., ICLR 2022). The adapters stand beside
  all linear layers of the blocks, or only beside the ones that make queries, keys and values.

The models have dropout, and modules where the examples call functions. The GPT has no gates, the
digits net no norms. Methods of one seed have the same initial weights, order of data and masks of
dropout; the converted Dropout of "modules" draws other masks. `activations.memory` counts the bytes
of one training step. benchmarks/report/activations_training.py defines harm and noise.

The loss is kept in 8 bits at least: the gradient of cross-entropy is the exponential of the log
probabilities that it saves, so their errors grow. "2 bits, loss too" shows it. The logits of digits
are fewer than `min_size`, so they stay exact.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import importlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import _command
from benchmarks._command import at_least
from benchmarks.report import activations_training as report
from benchmarks.report.activations_training import EXACT
from benchmarks.training.step_model import EXAMPLES
from torch_cgx import activations

Row = dict[str, Any]
Batch = tuple[torch.Tensor, torch.Tensor]
DROPOUT = 0.1
RANK = 4  # of adapters
BUCKET_SIZE = 256


@dataclass(frozen=True)
class Method:
    """convert: arguments of `activations.convert`; bits: of `compress_saved`, 0 without it;
    outside: bits of what no module inside the model saves, 0 for `bits`. rotated: the codec of this
    name, unbiased, in place of maxmin.
    """

    convert: dict[str, Any] = field(default_factory=dict)
    bits: int = 0
    rounding: str = "stochastic"
    outside: int = 8
    rotated: bool = False

    def saving(self, step: int) -> contextlib.AbstractContextManager[Any]:
        if not self.bits:
            return contextlib.nullcontext()
        config = {"codec": "maxmin", "bucket_size": BUCKET_SIZE, "rounding": self.rounding}
        outside = {**config, "bits": self.outside}
        if self.rotated:
            config = {"codec": "rotated", "scale": "unbiased"}
        return activations.compress_saved(
            {**config, "bits": self.bits},
            overrides={"^$": outside} if self.outside else None,
            step=step,
        )


_MODULES = {"activations": 3, "norms": True, "dropout": True, "gates": True}
METHODS = {
    EXACT: Method(),
    "3-bit functions": Method({"activations": 3}),
    "8 bits": Method(bits=8),
    "4 bits": Method(bits=4),
    "3 bits": Method(bits=3),
    "2 bits": Method(bits=2),
    "2 bits, rotated": Method(bits=2, rotated=True),
    "2 bits, nearest": Method(bits=2, rounding="nearest"),
    "2 bits, loss too": Method(bits=2, outside=0),
    "modules, 4 bits": Method(_MODULES, bits=4),
}
PARTS = (0.5, 0.2, 0.1)
PROJECTIONS = {EXACT: Method()}
PROJECTIONS |= {f"keep {part}": Method({"linear": part}) for part in PARTS}
PROJECTIONS |= {f"keep {part}, 4 bits": Method({"linear": part}, bits=4) for part in PARTS}
TUNING = ("tuning, all weights", "tuning, adapters", "tuning, adapters of qkv")
TASKS = {"gpt": tuple(METHODS), "digits": tuple(m for m in METHODS if m != "2 bits, loss too")}
TASKS |= dict.fromkeys(TUNING, (EXACT, "4 bits", "modules, 4 bits"))
TASKS_OF_PROJECTIONS = dict.fromkeys(("gpt", "digits"), tuple(PROJECTIONS))


@dataclass(frozen=True)
class Sizes:
    """steps: of gpt; tuning: steps of the tuning tasks; digits: steps of digits; megabytes: of
    text; windows: of the validation.
    """

    steps: int = 300
    tuning: int = 80
    digits: int = 435  # 15 epochs, as in examples/train_digits.py
    megabytes: float = 4.0
    windows: int = 512
    layers: int = 2
    width: int = 64
    context: int = 64
    batch: int = 16


QUICK = Sizes(steps=25, tuning=10, digits=60, megabytes=0.5, windows=64)


@dataclass(frozen=True)
class Job:
    """One training. base: weights that a tuning begins with."""

    task: str
    method: str
    seed: int
    sizes: Sizes
    base: dict[str, Any] | None = None


# ---- models


def _example(name: str) -> Any:
    """A module of examples/."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


class Block(nn.Module):
    """A block of examples/gpt.py, with modules for GELU and dropout."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = block.norm1, block.attention, block.norm2
        self.up, self.down = block.up, block.down
        self.gelu, self.dropout1, self.dropout2 = (
            nn.GELU(),
            nn.Dropout(DROPOUT),
            nn.Dropout(DROPOUT),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [batch, time, width] -> the same."""
        x = x + self.dropout1(self.attention(self.norm1(x)))
        return x + self.dropout2(self.down(self.gelu(self.up(self.norm2(x)))))


def gpt_model(sizes: Sizes) -> Any:
    gpt = _example("gpt")
    config = gpt.GPTConfig(context=sizes.context, layers=sizes.layers, width=sizes.width)
    model: Any = gpt.GPT(config)
    model.blocks = nn.ModuleList(Block(block) for block in model.blocks)
    return model


class DigitsModel(nn.Module):
    """The net of examples/train_digits.py, with GELU in place of ReLU, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        net = _example("train_digits").DigitsNet()
        self.layers = nn.Sequential(
            *(net.conv1, nn.GELU(), net.conv2, nn.GELU(), nn.MaxPool2d(2), nn.Flatten()),
            *(net.fc1, nn.GELU(), nn.Dropout(DROPOUT), net.fc2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, 10] of the images float32 [n, 1, 8, 8]."""
        logits: torch.Tensor = self.layers(x)
        return logits


class Adapted(nn.Module):
    """A linear layer, and beside it one of rank `RANK` that begins with 0."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.into = nn.Linear(linear.in_features, RANK, bias=False)
        self.out = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [..., in_features] -> [..., out_features]."""
        result: torch.Tensor = self.linear(x) + self.out(self.into(x))
        return result


def adapt(model: nn.Module, names: tuple[str, ...]) -> None:
    """Freezes all weights, and puts adapters beside the linear layers of these names."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, Adapted(child))


# ---- a training


@functools.cache
def _text(task: str, megabytes: float) -> Batch:
    """To train on and to validate."""
    folder = None if task == "gpt" else Path(nn.__file__).parent
    found: Batch = _example("corpus").load(megabytes, folder)
    return found


def _text_batches(task: str, seed: int, sizes: Sizes) -> Iterator[Batch]:
    text = _text(task, sizes.megabytes)[0]
    for starts in _orders(text.numel() - sizes.context, sizes.batch, seed):
        yield _example("corpus").windows(text, starts, sizes.context)


@functools.cache
def _digits() -> tuple[torch.Tensor, ...]:
    """Images and labels to train on, then to test."""
    found: tuple[torch.Tensor, ...] = _example("train_digits").load()
    return found


def _digits_batches(seed: int) -> Iterator[Batch]:
    images, labels, *_ = _digits()
    for chosen in _orders(len(labels), 48, seed):
        yield images[chosen], labels[chosen]


def _orders(samples: int, batch: int, seed: int) -> Iterator[torch.Tensor]:
    """Without an end. Each epoch is in an order of its own."""
    common = _example("common")
    alone, epoch = common.Ranks(0, 1, torch.device("cpu")), 0
    while True:
        for chosen, _ in common.batches(samples, batch, alone, seed, epoch):
            yield chosen
        epoch += 1


def _prepared(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, Iterable[Batch], int, float]:
    """The model, its optimizer, its batches, the number of steps, and the highest rate."""
    sizes = job.sizes
    if job.task == "digits":
        model: nn.Module = DigitsModel()
        sgd = torch.optim.SGD(
            model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4, lr=0.05
        )
        return model, sgd, _digits_batches(job.seed), sizes.digits, 0.05
    model, steps, rate = gpt_model(sizes), sizes.steps, 2e-3
    if job.base is not None:
        model.load_state_dict({k: torch.from_numpy(v) for k, v in job.base.items()})
        steps, rate = sizes.tuning, 1e-3
        if job.task != TUNING[0]:
            adapt(model, ("qkv",) if job.task == TUNING[2] else ("qkv", "out", "up", "down"))
            rate = 5e-3
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.1)
    return model, adamw, _text_batches(job.task, job.seed, sizes), steps, rate


def run(job: Job) -> tuple[Row, dict[str, Any]]:
    """The row, and the weights as arrays."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model, optimizer, batches, steps, peak = _prepared(job)
    method = {**METHODS, **PROJECTIONS}[job.method]
    if method.convert:
        activations.convert(model, **method.convert)
    torch.manual_seed(job.seed)  # of dropout: models have drawn different numbers
    schedule = _example("train_gpt").learning_rate
    seconds = []
    for step, (x, y) in zip(range(steps), batches, strict=False):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, max(1, steps // 10), peak)
        with method.saving(step):
            loss = _loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if job.task != "digits":  # as in the examples
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    row: Row = {"task": job.task, "method": job.method, "seed": job.seed}
    row["kept_bytes"] = kept_bytes(model, method, x, y)
    row["step_seconds"] = statistics.median(seconds)
    row["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    row["val_loss"], row["accuracy"] = _validate(model, job)
    return row, {k: v.numpy() for k, v in model.state_dict().items()}


def _loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def kept_bytes(model: nn.Module, method: Method, x: torch.Tensor, y: torch.Tensor) -> int:
    """Of one step, between forward and backward. RuntimeError where payloads are not counted."""
    with method.saving(0) as context:
        total = activations.memory(model, x, loss=lambda logits: _loss(logits, y)).total
    if context is not None and total < context.bytes_kept:
        raise RuntimeError(
            f"activations.memory counts {total} bytes, but compress_saved keeps "
            f"{context.bytes_kept} in payloads"
        )
    return total


def _validate(model: nn.Module, job: Job) -> tuple[float, float | None]:
    """The mean loss in nats, and the accuracy of digits."""
    if job.task == "digits":
        loss, accuracy = _example("train_digits").evaluate(model, *_digits()[2:])
        return loss, accuracy
    sizes, text = job.sizes, _text(job.task, job.sizes.megabytes)[1]
    starts = torch.linspace(0, text.numel() - sizes.context - 1, sizes.windows).long()
    model.eval()
    with torch.no_grad():
        losses = [
            float(_loss(model(x), y)) * len(x)
            for x, y in (
                _example("corpus").windows(text, some, sizes.context) for some in starts.split(32)
            )
        ]
    return sum(losses) / sizes.windows, None


# ---- all trainings


def measure(
    sizes: Sizes, seeds: int, workers: int, tasks: dict[str, tuple[str, ...]] = TASKS
) -> list[Row]:
    """A row for each training, in the order of tasks, methods and seeds."""
    first = [Job("gpt", EXACT, seed, sizes) for seed in range(seeds)]
    with _mapping(workers) as apply:
        done = [_told(one) for one in apply(run, first)]
        bases = [weights for _, weights in done]
        others = [
            Job(task, method, seed, sizes, bases[seed] if task in TUNING else None)
            for task, methods in tasks.items()
            for method in methods
            for seed in range(seeds)
            if (task, method) != ("gpt", EXACT)
        ]
        done += [_told(one) for one in apply(run, others)]
    return [row for row, _ in done]


@contextlib.contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """`map`, here or in as many processes."""
    if workers == 1:
        yield map
        return
    start = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=start) as pool:
        yield pool.map


def _told(one: tuple[Row, dict[str, Any]]) -> tuple[Row, dict[str, Any]]:
    row = one[0]
    print(
        f"{row['task']}, {row['method']}, seed {row['seed']}: loss {row['val_loss']:.4f}",
        file=sys.stderr,
        flush=True,
    )
    return one


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.activations",
        description="Training with saved activations in few bits.",
    )
    parser.add_argument("--quick", action="store_true", help="smaller models, fewer steps")
    parser.add_argument("--seeds", type=at_least(2), metavar="N", help="5; 2 with --quick")
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="of every training")
    parser.add_argument("--projections", action="store_true", help="linear layers that keep less")
    parser.add_argument("--workers", type=at_least(1), metavar="N", help="processes; 2")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    sizes = QUICK if args.quick else Sizes()
    if args.steps:
        steps = dict.fromkeys(("steps", "tuning", "digits"), args.steps)
        sizes = Sizes(**{**vars(sizes), **steps})
    seeds = args.seeds or (2 if args.quick else 5)
    workers = args.workers or min(2, os.cpu_count() or 1)
    facts = _command.print_facts(seeds=seeds, workers=workers, threads=1, **vars(sizes))
    runs = measure(sizes, seeds, workers, TASKS_OF_PROJECTIONS if args.projections else TASKS)
    rows = report.summary(runs)
    print(report.text_table(rows))
    name = "projections-training" if args.projections else "activations-training"
    document = {"benchmark": name, "machine": facts, "runs": runs, "rows": rows}
    return _command.finish(args, document, lambda file: report.draw(runs, rows, file))


if __name__ == "__main__":
    sys.exit(main())
