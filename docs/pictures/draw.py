"""Draws docs/pictures/how_it_works.png: one bucket through the codec, one message, one all-reduce.

    python docs/pictures/draw.py [FILE]

The levels, codes and sizes in it come from the codec itself. Needs matplotlib and torch_cgx.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch

from torch_cgx.codecs import MaxMin

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402

BITS, COUNT = 3, 24
HEADER_BYTES, ALIGNMENT = 56, 16
RANK_COLOURS = ("tab:blue", "tab:orange", "tab:green")
GREY, RED = "0.45", "tab:red"


def draw_bucket(axes: Any) -> None:
    """One bucket: values, levels between the extremes, the codes that are sent."""
    x = 0.01 * torch.randn(COUNT, generator=torch.Generator().manual_seed(7))
    codec = MaxMin(bits=BITS, bucket_size=COUNT)
    decoded = codec.roundtrip(x)
    low, high = float(x.min()), float(x.max())
    unit = (high - low) / (2**BITS - 1)
    for code in range(2**BITS):
        axes.axhline(low + unit * code, color="0.85", linewidth=0.8, zorder=0)
        axes.text(COUNT + 0.2, low + unit * code, f"{code:0{BITS}b}", va="center", fontsize=7)
    places = range(COUNT)
    axes.vlines(places, x, decoded, color=RED, linewidth=1.2, label="error")
    axes.plot(places, x, "o", color="tab:blue", markersize=4, label="gradient")
    axes.plot(places, decoded, "_", color="black", markersize=9, label="what is sent")
    axes.set(xlim=(-0.8, COUNT + 1.6), ylim=(low - 1.4 * unit, high + 0.4 * unit), xticks=[])
    axes.set_yticks([low, high], ["min", "max"])
    axes.set_title(f"1  A bucket of {COUNT} values becomes {2**BITS} levels", loc="left")
    axes.set_xlabel(
        f"{4 * COUNT} bytes of float32 → {codec.encoded_bytes(COUNT)} bytes: "
        f"unit, min, and {COUNT} codes of {BITS} bits"
    )
    axes.legend(loc="lower right", fontsize=7, framealpha=0.9, ncols=3)


def draw_message(axes: Any) -> None:
    """The bytes of one message of a layer at 4 bits and an exact one, to scale."""
    n, exact = 512, 12
    coded = MaxMin(bits=4, bucket_size=128).encoded_bytes(n)
    meta = 8 * n // 128
    start = -(-coded // ALIGNMENT) * ALIGNMENT
    parts = [
        ("header", HEADER_BYTES, "0.8"),
        ("unit\nmin", meta, "#f4c28f"),
        ("codes", coded - meta, "#9fc5e8"),
        ("exact", start - coded + 4 * exact, "#b6d7a8"),
    ]
    at = 0
    for name, size, colour in parts:
        axes.add_patch(Rectangle((at, 0), size, 1, facecolor=colour, edgecolor="0.3"))
        axes.text(at + size / 2, 0.5, f"{name}\n{size} B", ha="center", va="center", fontsize=7)
        at += size
    raw = HEADER_BYTES + 4 * (n + exact)
    axes.set(xlim=(-4, at + 4), ylim=(-0.1, 1.6), xticks=[], yticks=[])
    axes.set_title("2  Layers of a gradient bucket share one message", loc="left")
    axes.set_xlabel(
        f"a weight of {n} values at 4 bits (buckets of 128) and a bias of {exact}, exact:\n"
        f"{at} bytes instead of {raw}"
    )
    axes.spines[:].set_visible(False)


def chunks(axes: Any, left: float, fills: list[list[str]], captions: list[list[str]]) -> None:
    """A column of three ranks (rows), each with the three chunks of its tensor."""
    for rank in range(3):
        for chunk in range(3):
            corner = (left + chunk * 0.62, 2.3 - rank * 1.1)
            axes.add_patch(
                Rectangle(corner, 0.56, 0.72, facecolor=fills[rank][chunk], edgecolor="0.3")
            )
            axes.text(
                corner[0] + 0.28,
                corner[1] + 0.36,
                captions[rank][chunk],
                ha="center",
                va="center",
                fontsize=8,
            )


def draw_reduction(axes: Any) -> None:
    """Scatter-reduce-all-gather among three ranks."""
    names = "ABC"
    pale = ["#cfe2f3", "#fce5cd", "#d9ead3"]
    lefts = (0.9, 5.1, 9.3)
    own = [[f"{names[c]}$_{r}$" for c in range(3)] for r in range(3)]
    chunks(axes, lefts[0], [[pale[r]] * 3 for r in range(3)], own)
    sums = [[f"Σ{names[c]}" if c == r else "" for c in range(3)] for r in range(3)]
    fills = [[pale[c] if c == r else "white" for c in range(3)] for r in range(3)]
    chunks(axes, lefts[1], fills, sums)
    chunks(axes, lefts[2], [pale] * 3, [[f"Σ{n}" for n in names]] * 3)
    for begin, end in ((lefts[0], lefts[1]), (lefts[1], lefts[2])):
        for source in range(3):
            for target in range(3):
                same = source == target
                axes.add_patch(
                    FancyArrowPatch(
                        (begin + 1.9, 2.66 - source * 1.1),
                        (end - 0.1, 2.66 - target * 1.1),
                        arrowstyle="-|>",
                        mutation_scale=9,
                        color=GREY if same else RANK_COLOURS[source],
                        linestyle=":" if same else "-",
                        linewidth=1.2,
                    )
                )
    for rank in range(3):
        axes.text(0.75, 2.66 - rank * 1.1, f"rank {rank}", ha="right", va="center", fontsize=9)
    y = -0.35
    axes.text(3.9, y, "encode, send chunk p to rank p\n(first rounding)", ha="center", va="top")
    axes.text(6.0, y, "decode, sum in fp32\nin rank order", ha="center", va="top")
    axes.text(8.2, y, "encode the sum, send to all\n(second rounding)", ha="center", va="top")
    axes.text(10.3, y, "decode: equal bits\non every rank", ha="center", va="top")
    axes.text(1.8, y, "the tensor of each rank,\nin one chunk per rank", ha="center", va="top")
    axes.set(xlim=(-0.2, 11.4), ylim=(-1.15, 3.2), xticks=[], yticks=[])
    axes.set_title(
        "3  The sum: two roundings whatever the number of ranks "
        "(two ranks, or small tensors: everybody sends to everybody, one rounding)",
        loc="left",
    )
    axes.spines[:].set_visible(False)


def main(path: Path) -> None:
    """Writes the picture to `path`."""
    plt.rcParams.update({"font.size": 8.5, "axes.titlesize": 9.5, "axes.titleweight": "bold"})
    figure = plt.figure(figsize=(10.5, 6.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 1.35], hspace=0.08)
    draw_bucket(figure.add_subplot(grid[0, 0]))
    draw_message(figure.add_subplot(grid[0, 1]))
    draw_reduction(figure.add_subplot(grid[1, :]))
    # No software version in the file: the same picture is the same bytes for longer.
    figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).with_name("how_it_works.png")))
