"""What the recipes train, so that each shows only the lines that matter: a small classifier, its
data, and a line at the end that says how it went.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import nn

import torch_cgx


def make_model() -> nn.Module:
    """64 numbers to 10 classes; 19,722 parameters, the same on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 10))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """32 samples of a rank and step, float32 [32, 64], and their classes, int64 [32]."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x @ torch.randn(64, 10, generator=torch.Generator().manual_seed(2))).argmax(1)


def weights_of(model: nn.Module) -> str:
    """The beginning of the SHA-256 of all parameters, sharded ones gathered: equal on all ranks."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def summary(
    model: nn.Module,
    first_step: int,
    losses: list[float],
    group: dist.ProcessGroup | None = None,
) -> str:
    """As in "rank 0 of 2: steps 0 to 39, loss 2.441 to 0.935, weights 1e0c..., sent 93660 of 640000
    bytes": what this rank has sent over `group` (None: the default one), by what exact
    gradients of it would have been.
    """
    weights = weights_of(model)  # a collective where the model is sharded
    counters = torch_cgx.stats(group)
    ends = f"loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "no loss"
    return (
        f"rank {dist.get_rank()} of {dist.get_world_size()}: steps {first_step} to "
        f"{first_step + len(losses) - 1}, {ends}, weights {weights}, "
        f"sent {counters['bytes_sent']} of {counters['bytes_raw']} bytes"
    )
