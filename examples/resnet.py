"""ResNet-18 for 32x32 images.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with the
stem that is usual for small images: one 3x3 convolution of stride 1, and no pooling.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a bypass: [n, inputs, h, w] -> [n, outputs, h/stride, w/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.bypass: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.bypass = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.bypass(x))


class ResNet18(nn.Module):
    """float32 [n, 3, 32, 32] -> logits [n, classes]. 11,173,962 parameters for 10 classes.

    `width` is the number of channels of the first stage, 64 in the paper.
    """

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv3x3(3, width), nn.BatchNorm2d(width), nn.ReLU())
        stages: list[nn.Module] = []
        inputs = width
        for i in range(4):
            outputs = width * 2**i
            stages.append(BasicBlock(inputs, outputs, stride=1 if i == 0 else 2))
            stages.append(BasicBlock(outputs, outputs, stride=1))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes] of normalised images."""
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
