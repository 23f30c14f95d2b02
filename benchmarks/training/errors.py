"""How far each codec carries values off, at how many bytes.

    python -m benchmarks.training.errors [--quick] [--json FILE] [--plot FILE]

One encoding of Gaussian values, and of real gradients: all weights from 1024 values on of the GPT
and the ResNet of benchmarks/training/gradients.py, at several steps of their training, in fp32 and
bf16. The error is the squared error over the squared norm (NMSE), in float64; bits are 8 bytes over
values, metadata included. Of gradients the table shows the error of a whole model (squared errors
and norms of its layers added up), its worst case over steps and dtypes, and the worst single layer.
The lower limit for Gaussian values is Shannon's, 2^(-2 bits).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from benchmarks import _command
from benchmarks.training.gradients import STEPS, record
from torch_cgx import codecs

LEAST_VALUES = 1024
CODECS = {
    "maxmin": range(1, 9),
    "rotated": range(1, 9),
    "rotated unbiased": range(1, 9),
    "trellis": range(1, 5),
}
Group = dict[str, torch.Tensor]  # by layer


def make(name: str, bits: int) -> codecs.Codec:
    base, _, scale = name.partition(" ")
    return codecs.make(base, bits=bits, **({"scale": scale} if scale else {}))


def coded(codec: codecs.Codec, x: torch.Tensor) -> tuple[float, float, int]:
    """Squared error and squared norm of one encoding, and its bytes."""
    payload = codec.encode(x)
    found = codec.decode(payload, numel=x.numel(), dtype=x.dtype)
    exact = x.double()
    error = (found.double() - exact).square().sum()
    return float(error), float(exact.square().sum()), payload.numel()


def row_of(data: str, name: str, bits: int, groups: dict[str, Group]) -> dict[str, Any]:
    """groups: layers that are added up, by model, step and dtype."""
    codec = make(name, bits)
    by_group, by_layer = [], []
    size = values = 0
    for layers in groups.values():
        parts = [(coded(codec, x), x.numel()) for x in layers.values()]
        by_layer += [error / norm for (error, norm, _), _ in parts if norm > 0]
        by_group.append(sum(p[0][0] for p in parts) / sum(p[0][1] for p in parts))
        size += sum(p[0][2] for p in parts)
        values += sum(p[1] for p in parts)
    return {
        "data": data,
        "codec": name,
        "bits": bits,
        "bits_per_value": round(8 * size / values, 4),
        "nmse": float(f"{sum(by_group) / len(by_group):.4g}"),
        "worst": float(f"{max(by_group):.4g}"),
        "worst_layer": float(f"{max(by_layer):.4g}"),
        "layers": len(by_layer),
        # Single layers of few blocks scatter: how many are more than a tenth above the whole.
        "layers_above": {
            f"{share:g}": sum(e > share * sum(by_group) / len(by_group) for e in by_layer)
            for share in (1.1, 1.25)
        },
    }


def gradients(quick: bool) -> dict[str, dict[str, Group]]:
    """Weights by model, then by step and dtype."""
    steps = STEPS[:1] if quick else STEPS
    found: dict[str, dict[str, Group]] = defaultdict(lambda: defaultdict(dict))
    for key, gradient in record(steps=steps).items():
        if gradient.dim() < 2 or gradient.numel() < LEAST_VALUES:
            continue
        group = f"step {key.step}, {str(key.dtype).removeprefix('torch.')}"
        found[key.model][group][key.layer] = gradient.reshape(-1)
    return found


def measure(quick: bool) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(1 << (18 if quick else 22), generator=generator)
    data: dict[str, dict[str, Group]] = {"Gaussian": {"": {"": gaussian}}, **gradients(quick)}
    return [
        row_of(where, name, bits, groups)
        for where, groups in data.items()
        for name, widths in CODECS.items()
        for bits in widths
    ]


def print_table(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'data':<10} {'codec':<17} {'bits':>7} {'NMSE':>10} {'worst':>10} {'worst layer':>12}"
        f" {'layers':>7}"
    )
    for row in rows:
        print(
            f"{row['data']:<10} {row['codec']:<17} {row['bits_per_value']:>7.3f} "
            f"{row['nmse']:>10.4g} {row['worst']:>10.4g} {row['worst_layer']:>12.4g} "
            f"{row['layers']:>7}"
        )


def plot(rows: list[dict[str, Any]], file: str) -> None:
    data = list(dict.fromkeys(row["data"] for row in rows))
    with _command.picture(file, 1, len(data), figsize=(4.2 * len(data), 4), sharey=True) as found:
        _, axes = found
        for axis, where in zip(axes[0], data, strict=True):
            for name in CODECS:
                mine = [row for row in rows if row["data"] == where and row["codec"] == name]
                x, y = [row["bits_per_value"] for row in mine], [row["nmse"] for row in mine]
                axis.plot(x, y, marker="o", markersize=4, label=name)
            x = [1, 8.2]
            axis.plot(x, [2 ** (-2 * b) for b in x], "--", color="grey", label="2^(-2 bits)")
            axis.set(title=where, xlabel="bits per value, metadata included", yscale="log")
            axis.grid(alpha=0.3)
        axes[0][0].set(ylabel="squared error / squared norm")
        axes[0][0].legend(fontsize=8)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.errors",
        description="Error of the codecs at their bytes.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer values, one step of training")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    facts = _command.print_facts(least_values=LEAST_VALUES)
    rows = measure(args.quick)
    print_table(rows)
    document = {"machine": facts, "rows": rows}
    return _command.finish(args, document, lambda file: plot(rows, file))


if __name__ == "__main__":
    sys.exit(main())
