"""Draws docs/pictures/activation_table.png and activation_memory.png.

    python docs/pictures/draw_activations.py [FOLDER]

The first shows the table of 3 bits that stands for the derivative of GELU, the second what an
encoder layer keeps for backward, before and after `convert` and `compress_saved`. Needs matplotlib
and torch_cgx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from measure_activations import CONVERTED, report

from torch_cgx.activations import Table
from torch_cgx.activations.tables.plot import plot


def main() -> None:
    """Fits, measures, writes both pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    plot(folder / "activation_table.png", Table.fit("gelu", 3), "gelu")
    before = report(torch.float32, {})
    after = report(torch.float32, CONVERTED, {"codec": "maxmin", "bits": 4})
    after.plot(folder / "activation_memory.png", before=before)


if __name__ == "__main__":
    main()
