"""Whether FSDP2 trains as well with compressed gradients and weights, and what it then sends.

    python -m benchmarks.training.fsdp [--hosts 2] [--ranks-per-host 1] [--rate none] [--seeds 3]
        [--steps 300] [--gradients 4] [--weights 8] [--codec rotated] [--quick]
        [--json FILE] [--plot FILE]

Trains the GPT of examples/train_gpt.py, each block and the rest a `fully_shard` module, with that
example's data, optimizer and learning rates: in fp32 over gloo, and over cgx with
`cgx_utils.fsdp.compress`. Hosts are network namespaces (torch_cgx.testbed: needs Linux, root,
iproute2). The methods take turns, one run for each seed. The validation loss is computed by the
sharded model, and so with the weights that its gathers give: with the compressed ones over cgx. The
frames that leave a host are counted on its link, in a run of one step and in a longer one, both
without validation; the difference is what the steps between have sent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist

from benchmarks import _command, _ranks
from benchmarks._command import at_least
from torch_cgx.testbed.bed import hosts

BASE = "gloo fp32"
_COUNTED_STEPS = 21  # of the run whose frames are counted
_TIMEOUT = 1200.0


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.fsdp", description="Loss and bytes of compressed FSDP2."
    )
    parser.add_argument("--hosts", type=at_least(2), default=2, metavar="N")
    parser.add_argument("--ranks-per-host", type=at_least(1), default=1, metavar="N")
    parser.add_argument("--rate", type=_ranks.rate, default=None, help="of every link; or none")
    parser.add_argument("--seeds", type=at_least(1), metavar="N", help="3; --quick: 1")
    parser.add_argument("--steps", type=at_least(2), metavar="N", help="300; --quick: 10")
    parser.add_argument("--gradients", type=int, choices=_command.BITS, default=4, metavar="BITS")
    parser.add_argument("--weights", type=int, choices=_command.BITS, default=8, metavar="BITS")
    parser.add_argument("--codec", default="rotated", help="of gradients")
    parser.add_argument("--width", type=at_least(4), default=128, metavar="N", help="of the GPT")
    parser.add_argument("--layers", type=at_least(1), default=4, metavar="N")
    parser.add_argument("--quick", action="store_true", help="one short run of each method")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def trained(job: dict[str, Any]) -> dict[str, Any]:
    """One run, on every rank; see `_ranks`."""
    sys.path.insert(0, str(_command.ROOT / "examples"))
    import common
    import corpus
    import train_gpt
    from gpt import GPT, GPTConfig
    from torch.distributed.fsdp import fully_shard
    from torch.nn.functional import cross_entropy

    import torch_cgx
    from cgx_utils import fsdp

    ranks = common.Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    torch.manual_seed(job["seed"])
    model = GPT(GPTConfig(context=64, layers=job["layers"], width=job["width"]))
    group = dist.new_group(backend="cgx") if job["gradients"] else dist.group.WORLD
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    said = ""
    if job["gradients"]:
        said = str(fsdp.compress(model, job["gradients"], job["weights"]))
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    text, held_out = corpus.load(4.0)
    batches = common.batches(text.numel() - 64, 32, ranks, job["seed"], epoch=0)
    losses, times = [], []
    for step, (starts, mine) in zip(range(job["steps"]), batches, strict=False):
        begin = time.perf_counter()
        for one in optimizer.param_groups:
            one["lr"] = train_gpt.learning_rate(step, job["steps"], job["steps"] // 10, 2e-3)
        x, y = corpus.windows(text, starts[mine], 64)
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        times.append(time.perf_counter() - begin)
    counters = torch_cgx.stats(group) if job["gradients"] else {}
    value = train_gpt.validate(model, held_out, 64, ranks) if job["validate"] else None
    return {
        "val_loss": value,
        "train_loss": statistics.fmean(losses[-20:]),
        "step_seconds": statistics.median(times),
        "engine_bytes_per_step": counters.get("bytes_sent", 0) / job["steps"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "compressed": said,
    }


def summary(
    name: str, bits: list[int], runs: list[dict[str, Any]], link_bytes: float
) -> dict[str, Any]:
    """The row of one method, which has these bits of gradients and of weights; its runs are
    compared with the base's of the same seed.
    """
    mine = [run for run in runs if run["method"] == name]
    base = {run["seed"]: run for run in runs if run["method"] == BASE}
    more = [100 * (run["val_loss"] / base[run["seed"]]["val_loss"] - 1) for run in mine]
    return {
        "method": name,
        "bits": bits,
        "val_losses": [run["val_loss"] for run in mine],
        "val_loss": statistics.fmean(run["val_loss"] for run in mine),
        "percent_over_base": statistics.fmean(more),
        "percent_over_base_by_seed": more,
        "link_bytes_per_step": link_bytes,
        "engine_bytes_per_step": mine[0]["engine_bytes_per_step"],
        "step_seconds": statistics.median(run["step_seconds"] for run in mine),
    }


def table(rows: list[dict[str, Any]]) -> str:
    base = next(row for row in rows if row["method"] == BASE)
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{'method':<{width}} {'val loss':>9} {'over fp32':>10} {'by seed':>24} "
        f"{'link B/step':>12} {'fewer':>7} {'ms/step':>8}"
    ]
    for row in rows:
        seeds = " ".join(f"{value:+.2f}" for value in row["percent_over_base_by_seed"])
        fewer = base["link_bytes_per_step"] / row["link_bytes_per_step"]
        lines.append(
            f"{row['method']:<{width}} {row['val_loss']:>9.4f} {row['percent_over_base']:>+8.2f} % "
            f"{seeds:>24} {row['link_bytes_per_step']:>12,.0f} {fewer:>6.2f}x "
            f"{1e3 * row['step_seconds']:>8.1f}"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: bytes per step on the link, and the losses of all seeds."""
    rows = document["rows"]
    labels = [row["method"].replace(", ", ",\n") for row in rows]
    colors = ["black", "#ff7f0e"]
    with _command.picture(file, 1, 2, figsize=(9, 4)) as (figure, axes):
        left, right = axes[0]
        heights = [row["link_bytes_per_step"] / 1e6 for row in rows]
        left.bar_label(left.bar(labels, heights, color=colors, alpha=0.85), fmt="%.2f")
        left.margins(y=0.1)
        left.set_ylabel("MB per step that leave a host")
        for number, row in enumerate(rows):
            losses = row["val_losses"]
            right.plot([number] * len(losses), losses, "o", color=colors[number])
        right.set_xticks(range(len(rows)), labels)
        right.set_xlim(-0.5, len(rows) - 0.5)
        right.set_ylabel("validation loss of each seed")
        right.grid(alpha=0.25)
        figure.suptitle(
            f"FSDP2, GPT of {document['parameters'] / 1e6:.2f} M parameters, "
            f"{document['hosts']} hosts x {document['ranks_per_host']} rank(s), "
            f"{document['steps']} steps"
        )


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    seeds = args.seeds or (1 if args.quick else 3)
    steps = args.steps or (10 if args.quick else 300)
    start = time.monotonic()
    facts = _ranks.print_link_facts(seeds=seeds, steps=steps)
    label = f"cgx, {args.codec} {args.gradients}-bit gradients, {args.weights}-bit weights"
    configs: dict[str, Any] = {BASE: {"gradients": None, "weights": None}}
    configs[label] = {
        "gradients": {"codec": args.codec, "bits": args.gradients},
        "weights": {"codec": "maxmin", "bits": args.weights},
    }
    size = {"layers": args.layers, "width": args.width}
    runs: list[dict[str, Any]] = []
    link: dict[str, float] = {}
    with hosts(args.hosts, args.rate) as bed:
        ranks = args.ranks_per_host
        for name, config in configs.items():
            sent = []
            for count in (1, _COUNTED_STEPS):
                job = {**config, **size, "seed": 0, "steps": count, "validate": False}
                _, traffic = bed.traffic_of(
                    lambda job=job: _ranks.on_hosts(bed, trained, job, ranks, _TIMEOUT)
                )
                sent.append(max(one.sent_bytes for one in traffic))
            link[name] = (sent[1] - sent[0]) / (_COUNTED_STEPS - 1)
        for seed in range(seeds):
            for name in list(configs) if seed % 2 == 0 else list(reversed(configs)):
                job = {**configs[name], **size, "seed": seed, "steps": steps, "validate": True}
                found = _ranks.on_hosts(bed, trained, job, ranks, _TIMEOUT)
                runs.append({"method": name, "seed": seed, **found})
                print(f"seed {seed}, {name}: val loss {found['val_loss']:.4f}", flush=True)
    bits = {BASE: [32, 32], label: [args.gradients, args.weights]}
    rows = [summary(name, bits[name], runs, link[name]) for name in configs]
    print(f"\n{runs[-1]['compressed'] or runs[-2]['compressed']}\n{table(rows)}\n", flush=True)
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "fsdp",
        "machine": facts,
        "hosts": args.hosts,
        "ranks_per_host": args.ranks_per_host,
        "rate": args.rate,
        "steps": steps,
        "parameters": runs[0]["parameters"],
        "rows": rows,
        "runs": runs,
    }
    return _command.finish(args, document, lambda file: draw(document, file))


if __name__ == "__main__":
    sys.exit(main())
