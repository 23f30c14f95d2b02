"""Small models, a step of their training, and everything of them that `remove` must restore."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.emulate.gemm.operands import draw


def mlp(layers: int = 4, width: int = 24, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Linear layers of one width, with GELUs between them: 0, 2, 4, ..."""
    made: list[nn.Module] = []
    for i in range(layers):
        layer = nn.Linear(width, width, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(draw(width, width, seed=i) / width)
            layer.bias.copy_(draw(width, seed=100 + i))
        made += [layer, nn.GELU()]
    return nn.Sequential(*made[:-1])


class Net(nn.Module):
    """Convolutions, norms, an in-place ReLU, a residual sum and a head: outputs of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Identity())
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn(self.conv(x)))
        x = x + self.block(x)
        return self.head(self.drop(x.mean((2, 3))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(5))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of one forward and backward pass."""
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(one: Any, other: Any) -> bool:
    """Whether lists of tensors have equal bits."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Classes, attributes, hooks, tensors and their objects of a model and an optimizer."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"class of {name}"] = type(module)
        for key, value in module.__dict__.items():
            if isinstance(value, dict):
                value = {k: id(v) if not isinstance(v, bool) else v for k, v in value.items()}
            elif isinstance(value, torch.Tensor):
                value = id(value)
            found[f"{name}.{key}"] = value
        found[f"keys of {name}"] = list(module.__dict__)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"values of {name}"] = (id(tensor), tensor.detach().clone().numpy().tobytes())
        found[f"grad of {name}"] = None if tensor.grad is None else tensor.grad.numpy().tobytes()
    if optimizer is not None:
        for key, value in optimizer.__dict__.items():
            if "hooks" in key:
                found[f"optimizer {key}"] = dict(value)
        for number, state in enumerate(optimizer.state.values()):
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    value = (id(value), value.clone().numpy().tobytes())
                found[f"optimizer {number} {key}"] = value
        found["optimizer class"] = type(optimizer)
        found["step"] = optimizer.step.__func__  # type: ignore[attr-defined]
    found["global hooks"] = dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks)
    return found
