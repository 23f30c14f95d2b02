"""Shapes, sizes and properties of the models that the examples train."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from gpt import GPT, GPTConfig
from resnet import ResNet18
from torch import nn
from train_digits import DigitsNet


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("classes", "expected"), [(10, 11_173_962), (100, 11_220_132)])
def test_resnet18_size(classes: int, expected: int) -> None:
    assert parameters(ResNet18(classes)) == expected


def test_resnet18_stages_halve_the_image_and_double_the_channels() -> None:
    model = ResNet18(10, width=8).eval()
    shapes = []
    for stage in model.stages:
        stage.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape)))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    sizes = [(8, 32), (16, 16), (32, 8), (64, 4)]
    assert shapes == [(2, channels, s, s) for channels, s in sizes for _ in range(2)]


def test_digits_net_has_layers_worth_compressing() -> None:
    model = DigitsNet()
    assert parameters(model) == 151_306
    assert model(torch.rand(5, 1, 8, 8)).shape == (5, 10)
    large = sum(p.numel() for p in model.parameters() if p.numel() >= 1024)
    assert large > 0.99 * parameters(model)


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=50, context=16, layers=2, heads=2, width=32)).eval()


def test_gpt_size_and_first_loss() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(context=128))
    assert parameters(model) == 256 * 128 + 128 * 128 + 4 * (12 * 128**2 + 4 * 128) + 2 * 128
    tokens = torch.randint(0, 256, (4, 129))
    logits = model(tokens[:, :-1])
    assert logits.shape == (4, 128, 256)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(256), rel=0.02)


@pytest.mark.parametrize("changed", [0, 7, 15])
def test_gpt_is_causal(changed: int) -> None:
    model = small_gpt()
    tokens = torch.randint(0, 50, (3, 16))
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 50
    with torch.no_grad():
        difference = (model(tokens) - model(other)).abs().amax(dim=(0, 2))
    assert difference[:changed].eq(0).all()
    assert difference[changed:].gt(1e-6).all()


def test_gpt_knows_positions() -> None:
    model = small_gpt()
    with torch.no_grad():
        logits = model(torch.full((1, 16), 3))
    assert not torch.allclose(logits[0, 0], logits[0, 1])


def test_gpt_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="17 tokens exceed the context of 16"):
        small_gpt()(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="width 30 is no multiple of 4 heads"):
        GPTConfig(width=30)
