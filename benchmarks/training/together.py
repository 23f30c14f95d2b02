"""Compressed gradients and compressed saved tensors at once: losses of paired seeds, and bytes.

    python -m benchmarks.training.together [--quick] [--seeds N] [--steps N] [--json FILE]
        [--plot FILE]

Two ranks of this host train the GPT of benchmarks/training/activations.py, with dropout and modules
of GELU, under DistributedDataParallel over shared memory. METHODS send gradients exactly, as
DistributedDataParallel does, or at 4 bits (cgx_hook), and keep what backward needs as it is or at 4
bits (compress_saved; the loss, which is inside, at 8), with 3-bit GELU. All methods of one seed
have the same initial weights, order of data and masks of dropout, and end with equal weights on
both ranks.

A Monitor counts the bytes that a rank sends per step, `activations.memory` what it keeps between
forward and backward of one step: what `convert` has made smaller is in the latter only. The lines
that the Monitor writes of "both", for the first seed, are in the results. Losses do not depend on
the load of the machine. benchmarks/report/activations_training.py defines harm and noise.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import at_least
from benchmarks.report import together as report
from benchmarks.report.activations_training import EXACT
from benchmarks.report.together import BOTH
from benchmarks.training import activations as alone
from benchmarks.training.step_model import EXAMPLES
from cgx_utils import CGXState, Monitor, cgx_hook
from cgx_utils.monitor import Table
from torch_cgx import activations
from torch_cgx.workloads import corpus

Row = dict[str, Any]
RANKS = 2
BITS = 4
RECORDS = 3  # of a training
PEAK = 2e-3  # learning rate


@dataclass(frozen=True)
class Method:
    """bits: of gradients, 0 without the hook. kept: what is kept for backward, and how."""

    bits: int = 0
    kept: alone.Method = field(default_factory=alone.Method)

    def saving(self, model: nn.Module) -> activations.compress_saved | None:
        """One context for all steps, as a Monitor watches it. None: nothing is compressed."""
        if not self.kept.bits:
            return None
        config = {"codec": "maxmin", "bucket_size": alone.BUCKET_SIZE, "rounding": "stochastic"}
        return activations.compress_saved(
            {**config, "bits": self.kept.bits},
            overrides={"^$": {**config, "bits": self.kept.outside}},
            model=model,
        )


_KEPT = alone.Method({"activations": 3}, bits=BITS)
METHODS = {
    EXACT: Method(),
    "gradients 4 bits": Method(BITS),
    "saved 4 bits, 3-bit GELU": Method(kept=_KEPT),
    BOTH: Method(BITS, _KEPT),
}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """On a rank. runs: a row for each training, by seed and method; monitor: lines of its table."""
    # Exact where no hook says otherwise, without a warning that nothing is compressed.
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=32))
    sizes = alone.Sizes(**job["sizes"])
    runs, lines = [], []
    for seed in range(job["seeds"]):
        for method in METHODS:
            row, table = train(method, seed, sizes, group)
            runs.append(row)
            if not seed and method == BOTH:
                lines = table.splitlines()
            if dist.get_rank() == 0:
                text = f"{method}, seed {seed}: loss {row['val_loss']:.4f}"
                print(text, file=sys.stderr, flush=True)
    return {"runs": runs, "monitor": lines}


def train(name: str, seed: int, sizes: alone.Sizes, group: dist.ProcessGroup) -> tuple[Row, str]:
    """One training on this rank: its row, and what the Monitor has written. Collective.
    RuntimeError where ranks end with different weights.
    """
    method, common, example = METHODS[name], _example("common"), _example("train_gpt")
    ranks = common.Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    train_text, val_text = corpus.load(sizes.megabytes)
    torch.manual_seed(seed)
    module = alone.gpt_model(sizes)
    if method.kept.convert:
        activations.convert(module, **method.kept.convert)
    model = DistributedDataParallel(module, process_group=group)
    if method.bits:
        model.register_comm_hook(CGXState(group, bits=method.bits), cgx_hook)
    optimizer = torch.optim.AdamW(module.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    saving = method.saving(module)
    lines, seconds = io.StringIO(), []
    every = max(1, sizes.steps // RECORDS)
    target = model if method.bits else group
    with Monitor(target, every, Table(lines), saved=saving) as monitor:
        batches = _batches(train_text, seed, sizes, ranks)
        for step, (x, y) in zip(range(sizes.steps), batches, strict=False):
            begin = time.perf_counter()
            for one in optimizer.param_groups:
                one["lr"] = example.learning_rate(
                    step, sizes.steps, max(1, sizes.steps // 10), PEAK
                )
            with saving or contextlib.nullcontext():
                # Inside, as entering the context draws a number of the generator.
                torch.manual_seed((seed * sizes.steps + step) * ranks.world_size + ranks.rank)
                loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            monitor.step()  # of a group; steps of the hook are found without it
            seconds.append(time.perf_counter() - begin)
    common.require_equal_weights(module, ranks)
    last: Any = monitor.last
    row = {"task": "gpt", "method": name, "seed": seed, "accuracy": None}
    row |= {"sent_bytes": last["bytes_sent"], "step_seconds": statistics.median(seconds)}
    row |= {"saved_bytes": last["saved_bytes"], "payload_bytes": last["kept_bytes"]}
    row["kept_bytes"] = alone.kept_bytes(module, method.kept, x, y)
    row["trained"] = sum(p.numel() for p in module.parameters())
    row["val_loss"] = example.validate(module, val_text, sizes.context, ranks)
    return row, lines.getvalue()


def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of logits [batch, time, vocabulary] and bytes [batch, time]: nats, a mean."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def _batches(
    text: torch.Tensor, seed: int, sizes: alone.Sizes, ranks: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's windows; `sizes.batch` is of a rank."""
    positions, batch = text.numel() - sizes.context, sizes.batch * ranks.world_size
    for starts, mine in _example("common").batches(positions, batch, ranks, seed, epoch=0):
        yield corpus.windows(text, starts[mine], sizes.context)


def _example(name: str) -> Any:
    """A module of examples/."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.together",
        description="Compressed gradients and compressed saved tensors at once.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and seeds")
    parser.add_argument("--seeds", type=at_least(2), metavar="N", help="5; 2 with --quick")
    parser.add_argument("--steps", type=at_least(1), metavar="N", help="of every training; 300")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    sizes = dict(vars(alone.QUICK if args.quick else alone.Sizes()))
    sizes["steps"] = args.steps or sizes["steps"]
    seeds = args.seeds or (2 if args.quick else 5)
    names = ("steps", "megabytes", "layers", "width", "context", "batch")
    facts = _command.print_facts(
        seeds=seeds, ranks=RANKS, threads=1, **{name: sizes[name] for name in names}
    )
    found = _ranks.on_this_host(measure, {"sizes": sizes, "seeds": seeds}, RANKS)
    rows = report.summary(found["runs"])
    print(report.text_table(rows), *found["monitor"], sep="\n")
    document = {"benchmark": "together", "machine": facts, "rows": rows, **found}
    return _command.finish(args, document, lambda file: report.draw(found["runs"], rows, file))


if __name__ == "__main__":
    sys.exit(main())
