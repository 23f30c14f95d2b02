"""Trains a small convnet on handwritten digits in a format of a few bits.

    python examples/compare_formats.py            # mxfp4
    python examples/compare_formats.py nvfp4      # or another name of emulate.recipes()

The data comes with scikit-learn. `cgx emulate compare --model digits` compares many recipes, with
several seeds.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from torch_cgx import emulate
from torch_cgx.workloads import digits


def train(recipe: str, steps: int = 200) -> float:
    """The accuracy on the test images; "fp32": nothing is emulated."""
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits.load()
    model = digits.DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    emulation = None if recipe == "fp32" else emulate.apply(model, optimizer, recipe)
    for _ in range(steps):
        index = torch.randint(len(labels), (64,))
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        hits = model.eval()(test_images).argmax(1) == test_labels
    if emulation is not None:
        print(emulation.ledger())
    return float(hits.float().mean())


if __name__ == "__main__":
    for name in ("fp32", *(sys.argv[1:] or ["mxfp4"])):
        print(f"{name}: {100 * train(name):.1f} % of the test images")
