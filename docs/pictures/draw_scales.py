"""Draws docs/pictures/error_by_scale.png: the error of a sum against the number of ranks, with both
scales of the codec `rotated`.

    python docs/pictures/draw_scales.py [FILE]

Every point is a simulated all-reduce by the real reducers. The gradients of the ranks are a common
part plus noise of a rank's own: of equal norms, or with noise only. Needs matplotlib and torch_cgx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import torch

import torch_cgx

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

VALUES = 1 << 16
RANKS = (2, 4, 8, 16, 32, 64)
SCALES = {"mse": "o-", "unbiased": "s--"}


def error(ranks: int, bits: int, scale: str, algorithm: str, common: float) -> float:
    """||result - exact|| / ||exact||, of the sum."""
    generator = torch.Generator().manual_seed(ranks)
    shared = common * torch.randn(VALUES, generator=generator)
    tensors = [shared + torch.randn(VALUES, generator=generator) for _ in range(ranks)]
    config = {"codec": "rotated", "bits": bits, "scale": scale}
    found = torch_cgx.simulate(tensors, config, algorithm=algorithm)
    return found.error["relative_l2"]


def main() -> None:
    """Simulates, draws, writes the picture."""
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "error_by_scale.png"
    )
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 4), sharey=True)
    cases = (
        ("one-shot, common part and noise", "oneshot", 1.0),
        ("scatter-reduce-all-gather, the same", "sra", 1.0),
        ("scatter-reduce-all-gather, noise only", "sra", 0.0),
    )
    for axes, (title, algorithm, common) in zip(all_axes, cases, strict=True):
        for bits, color in ((1, "tab:red"), (2, "tab:orange"), (4, "tab:blue")):
            for scale, style in SCALES.items():
                errors = [error(n, bits, scale, algorithm, common) for n in RANKS]
                axes.plot(RANKS, errors, style, color=color, label=f"{bits} bits, {scale}")
                print(f"{title}, {bits} bits, {scale}:", " ".join(f"{e:.3f}" for e in errors))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(RANKS, [str(n) for n in RANKS])
        axes.set(xlabel="ranks", title=title)
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3, which="both")
    all_axes[0].set_ylabel("relative L2 error of the sum")
    all_axes[0].legend(fontsize=8)
    figure.suptitle("codec rotated, both scales (simulated)", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
