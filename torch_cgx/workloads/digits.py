"""A small convnet and 1797 real handwritten digits, which come with scikit-learn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

TEST_SAMPLES = 360
SPLIT_SEED = 1797  # the split is the same for every seed of a training


class DigitsNet(nn.Module):
    """Two convolutions, two linear layers: float32 [n, 1, 8, 8] -> [n, 10]; 151,306 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, 10] of the images `x`."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images float32 [n, 1, 8, 8] in 0..1 and labels int64 [n]: 1437 to train on, 360 to test.

    ImportError where scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError("the digits come with scikit-learn: pip install scikit-learn") from None

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32, device="cpu").unsqueeze(1) / 16.0
    labels = torch.as_tensor(digits.target, dtype=torch.int64, device="cpu")
    order = torch.randperm(
        len(labels),
        generator=torch.Generator("cpu").manual_seed(SPLIT_SEED),
        dtype=torch.int64,
        device="cpu",
    )
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return images[train], labels[train], images[test], labels[test]


def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Mean cross-entropy in nats, and accuracy in 0..1. The model is in eval mode afterwards."""
    model.eval()
    with torch.no_grad():
        logits = model(images)
    hits = (logits.argmax(1) == labels).float().mean()
    return float(F.cross_entropy(logits, labels)), float(hits)
