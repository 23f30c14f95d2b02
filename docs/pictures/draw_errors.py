"""Draws docs/pictures/error_by_ranks.png: relative L2 error against the number of ranks.

    python docs/pictures/draw_errors.py [FILE]

Every point is a simulated all-reduce of Gaussian data at 4 bits in buckets of 512 values, by the
real reducers. Needs matplotlib and torch_cgx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import torch

import torch_cgx

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

CONFIG = {"bits": 4, "bucket_size": 512}
VALUES = 1 << 16
RANKS = (2, 4, 8, 16, 32, 64)
RANKS_PER_HOST = 8


def error(ranks: int, algorithm: str, hosts: list[int] | None = None) -> float:
    """||result - exact|| / ||exact||."""
    generator = torch.Generator().manual_seed(ranks)
    tensors = [torch.randn(VALUES, generator=generator) for _ in range(ranks)]
    found = torch_cgx.simulate(tensors, CONFIG, algorithm=algorithm, hosts=hosts)
    return found.error["relative_l2"]


def main() -> None:
    """Simulates, draws, writes the picture."""
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "error_by_ranks.png"
    )
    figure, axes = plt.subplots(figsize=(7, 4))
    for algorithm, label, style in (
        ("ring", "ring: a rounding per rank", "o-"),
        ("sra", "scatter-reduce-all-gather: 2 roundings", "s-"),
        ("oneshot", "one-shot: 1 rounding", "^-"),
    ):
        axes.plot(RANKS, [error(n, algorithm) for n in RANKS], style, label=label)
    several = [n for n in RANKS if n > RANKS_PER_HOST]
    levels = [error(n, "sra", [rank // RANKS_PER_HOST for rank in range(n)]) for n in several]
    axes.plot(
        several, levels, "d--", label=f"two levels, {RANKS_PER_HOST} ranks a host: 2 roundings"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(RANKS, [str(n) for n in RANKS])
    axes.set(xlabel="ranks", ylabel="relative L2 error of the sum", ylim=(0, None))
    axes.set_title("4 bits, buckets of 512, Gaussian data (simulated)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
