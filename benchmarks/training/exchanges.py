"""Whether a pipeline and a layer of experts train as well with compressed exchanges, and how fast.

    python -m benchmarks.training.exchanges [--models pipeline experts] [--rate 1gbit] [--seeds 2]
        [--steps 200] [--width 128] [--layers 4] [--batch 32] [--quick] [--json FILE] [--plot FILE]

Trains the small GPT of torch_cgx.workloads on two hosts, which are network namespaces
(torch_cgx.testbed: needs Linux, root, iproute2), one rank on each:

- pipeline: half of the blocks on each host, by torch.distributed.pipelining's 1F1B with four
  microbatches; activations and their gradients cross the link (cgx_utils.pipelining).
- experts: every block has four experts in place of its perceptron, two on each host
  (examples/recipes/moe_train.py); tokens cross the link to their experts and back, and their
  gradients. What all ranks hold alike is averaged exactly, by one all-reduce a step.

Methods take turns, one run for each seed: torch's own over gloo, and cgx exact, at 8 bits, and at 8
bits with gradients at 4. A time is the median over the steps of the slowest rank; the frames that
leave a host are counted on its link, in a run of one step and in a longer one. The loss is the mean
of the last tenth of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from benchmarks import _command, _ranks
from benchmarks._command import at_least
from benchmarks._ranks import everyone
from torch_cgx.testbed.bed import hosts

BASE = "gloo fp32"
# Bits forward and backward.
METHODS = {BASE: (32, 32), "cgx exact": (32, 32), "cgx 8 bit": (8, 8), "cgx 8/4 bit": (8, 4)}
MODELS = ("pipeline", "experts")
_CONTEXT, _MICROBATCHES, _EXPERTS = 64, 4, 4
_COUNTED_STEPS = 11  # of the run whose frames are counted
_TIMEOUT = 1800.0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.exchanges",
        description="Loss, seconds and bytes of a pipeline and of experts, exchanged in few bits.",
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rate", type=_ranks.rate, default="1gbit", help="of every link; or none")
    parser.add_argument("--seeds", type=at_least(1), metavar="N", help="2; --quick: 1")
    parser.add_argument("--steps", type=at_least(2), metavar="N", help="200; --quick: 6")
    parser.add_argument("--width", type=at_least(4), default=128, metavar="N", help="of the GPT")
    parser.add_argument("--layers", type=at_least(2), default=4, metavar="N")
    parser.add_argument("--batch", type=at_least(_MICROBATCHES), default=32, metavar="N")
    parser.add_argument("--quick", action="store_true", help="one short run of each method")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def trained(job: dict[str, Any]) -> dict[str, Any]:
    """One run, on every rank; see `_ranks`."""
    from torch_cgx.workloads import corpus

    group = dist.new_group(backend="gloo" if job["method"] == BASE else "cgx")
    torch.manual_seed(job["seed"])
    step = (_pipeline if job["model"] == "pipeline" else _experts)(job, group)
    text, _ = corpus.load(4.0)
    generator = torch.Generator().manual_seed(job["seed"])
    losses, times = [], []
    for _ in range(job["steps"]):
        starts = torch.randint(0, text.numel() - _CONTEXT, (job["batch"],), generator=generator)
        x, y = corpus.windows(text, starts, _CONTEXT)
        begin = time.perf_counter()
        losses.append(step(x, y))
        times.append(time.perf_counter() - begin)
    medians = everyone(statistics.median(times))
    found = [one for one in everyone(losses[-max(1, job["steps"] // 10) :]) if None not in one]
    return {
        "loss": statistics.fmean(statistics.fmean(one) for one in found),
        "step_seconds": max(medians),
    }


Step = Callable[[torch.Tensor, torch.Tensor], "float | None"]


def _gpt(job: dict[str, Any]) -> Any:
    from torch_cgx.workloads.gpt import GPT, GPTConfig

    return GPT(GPTConfig(context=_CONTEXT, layers=job["layers"], width=job["width"]))


def _loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class _First(nn.Module):
    def __init__(self, model: Any, blocks: int):
        super().__init__()
        self.tokens, self.positions = model.tokens, model.positions
        self.blocks = model.blocks[:blocks]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x


class _Last(nn.Module):
    def __init__(self, model: Any, blocks: int):
        super().__init__()
        self.blocks, self.norm = model.blocks[blocks:], model.norm
        vocabulary, width = model.tokens.weight.shape
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _pipeline(job: dict[str, Any], group: Any) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from cgx_utils import pipelining

    model, rank = _gpt(job), dist.get_rank()
    module = (_Last if rank else _First)(model, job["layers"] // 2)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), group=group)
    forward, backward = job["bits"]
    if job["method"] != BASE:
        pipelining.compress(stage, {"bits": forward}, {"bits": backward})
    schedule = Schedule1F1B(stage, _MICROBATCHES, loss_fn=_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95))

    def step(x: torch.Tensor, y: torch.Tensor) -> float | None:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def _experts(job: dict[str, Any], group: Any) -> Step:
    sys.path.insert(0, str(_command.ROOT / "examples" / "recipes"))
    from moe_train import Experts  # type: ignore[import-not-found]

    class TorchsExperts(Experts):  # type: ignore[misc]
        def exchange(self, rows: torch.Tensor, got: list[int], sent: list[int]) -> torch.Tensor:
            from torch.distributed._functional_collectives import all_to_all_single_autograd

            return all_to_all_single_autograd(rows, got, sent, group)

    class Perceptron(nn.Module):
        """The experts in a block: each position is a token."""

        def __init__(self) -> None:
            super().__init__()
            kind = TorchsExperts if job["method"] == BASE else Experts
            forward, backward = ({"bits": bits} for bits in job["bits"])
            width = job["width"]
            self.experts = kind(width, 4 * width, _EXPERTS, group, forward, backward)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts(x.flatten(0, 1)).view(x.shape)

    model = _gpt(job)
    for block in model.blocks:
        block.up, block.down = Perceptron(), nn.Identity()
    own = {id(p) for b in model.blocks for p in b.up.experts.experts.parameters()}
    shared = [p for p in model.parameters() if id(p) not in own]
    mine = [p for p in model.parameters() if id(p) in own]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    size, rank = dist.get_world_size(), dist.get_rank()

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = _loss(model(x.chunk(size)[rank]), y.chunk(size)[rank])
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in shared])
        dist.all_reduce(flat, group=group)
        for p, grad in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad.copy_(grad.view_as(p) / size)
        for p in mine:
            p.grad /= size
        optimizer.step()
        return float(loss.detach())

    return step


def summary(model: str, name: str, runs: list[dict[str, Any]], link_bytes: float) -> dict[str, Any]:
    """The row of one method; its runs are compared with the base's of the same seed."""
    mine = [run for run in runs if (run["model"], run["method"]) == (model, name)]
    base = {r["seed"]: r for r in runs if (r["model"], r["method"]) == (model, BASE)}
    more = [100 * (run["loss"] / base[run["seed"]]["loss"] - 1) for run in mine]
    seconds = statistics.median(run["step_seconds"] for run in mine)
    return {
        "model": model,
        "method": name,
        "bits": list(METHODS[name]),
        "losses": [run["loss"] for run in mine],
        "loss": statistics.fmean(run["loss"] for run in mine),
        "percent_over_base": statistics.fmean(more),
        "link_bytes_per_step": link_bytes,
        "step_seconds": seconds,
        "faster": statistics.median(r["step_seconds"] for r in base.values()) / seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'model':<9} {'method':<12} {'loss':>8} {'over fp32':>10} {'link B/step':>13} "
        f"{'fewer':>7} {'ms/step':>9} {'faster':>7}"
    ]
    for row in rows:
        base = next(r for r in rows if (r["model"], r["method"]) == (row["model"], BASE))
        fewer = base["link_bytes_per_step"] / row["link_bytes_per_step"]
        lines.append(
            f"{row['model']:<9} {row['method']:<12} {row['loss']:>8.4f} "
            f"{row['percent_over_base']:>+8.2f} % {row['link_bytes_per_step']:>13,.0f} "
            f"{fewer:>6.2f}x {1e3 * row['step_seconds']:>9.1f} {row['faster']:>6.2f}x"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: milliseconds of a step, a part for each model."""
    models = list(dict.fromkeys(row["model"] for row in document["rows"]))
    with _command.picture(file, 1, len(models), figsize=(5 * len(models), 4)) as (figure, axes):
        for axis, model in zip(axes[0], models, strict=True):
            rows = [row for row in document["rows"] if row["model"] == model]
            labels = [f"{row['method']}\n{row['percent_over_base']:+.2f} %" for row in rows]
            colors = [_command.color(row["method"], row["bits"][1]) for row in rows]
            heights = [1e3 * row["step_seconds"] for row in rows]
            axis.bar_label(axis.bar(labels, heights, color=colors, alpha=0.85), fmt="%.0f")
            axis.margins(y=0.1)
            axis.set_title(model)
            axis.set_ylabel("ms per step")
        rate = _command.rate_text(document["rate"])
        figure.suptitle(f"GPT on 2 hosts, {rate}; below: loss against gloo's")


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    seeds = args.seeds or (1 if args.quick else 2)
    steps = args.steps or (6 if args.quick else 200)
    start = time.monotonic()
    facts = _ranks.print_link_facts(seeds=seeds, steps=steps)
    size = {name: getattr(args, name) for name in ("layers", "width", "batch")}
    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with hosts(2, args.rate) as bed:
        for model in args.models:
            link: dict[str, float] = {}
            jobs = {
                name: {"model": model, "method": name, "bits": bits, **size}
                for name, bits in METHODS.items()
            }
            for name, job in jobs.items():
                sent = []
                for count in (1, _COUNTED_STEPS):
                    short = {**job, "seed": 0, "steps": count}
                    _, traffic = bed.traffic_of(
                        lambda short=short: _ranks.on_hosts(bed, trained, short, 1, _TIMEOUT)
                    )
                    sent.append(max(one.sent_bytes for one in traffic))
                link[name] = (sent[1] - sent[0]) / (_COUNTED_STEPS - 1)
            for seed in range(seeds):
                for name in list(jobs) if seed % 2 == 0 else list(reversed(jobs)):
                    job = {**jobs[name], "seed": seed, "steps": steps}
                    found = _ranks.on_hosts(bed, trained, job, 1, _TIMEOUT)
                    runs.append({"model": model, "method": name, "seed": seed, **found})
                    ms = 1e3 * found["step_seconds"]
                    print(
                        f"{model}, seed {seed}, {name}: loss {found['loss']:.4f}, {ms:.0f} ms/step",
                        flush=True,
                    )
            rows += [summary(model, name, runs, link[name]) for name in METHODS]
    print(f"\n{table(rows)}\n", flush=True)
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "exchanges",
        "machine": facts,
        "hosts": 2,
        "rate": args.rate,
        "steps": steps,
        **size,
        "rows": rows,
        "runs": runs,
    }
    return _command.finish(args, document, lambda file: draw(document, file))


if __name__ == "__main__":
    sys.exit(main())
