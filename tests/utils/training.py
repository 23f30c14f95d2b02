"""A small model, its data, and the exact mean of its gradients: what the tests of the hook compare
with.
"""

from __future__ import annotations

import copy
import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cgx_utils import CGXState, cgx_hook

LEVELS = 15  # of 4 bits


class Net(nn.Module):
    """Two matrices that are compressed (8192 and 2048 values), one that is too small (640), norms
    and biases.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)
        self.second = nn.Linear(128, 16, bias=False)
        self.small = nn.Linear(16, 40)

    def forward(self, x):
        return self.small(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))


COMPRESSED = {"first.weight", "second.weight"}


class Branches(nn.Module):
    """Uses one of two branches; the other gets no gradient."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(64, 40)
        self.right = nn.Linear(64, 40)
        self.use_left = True

    def forward(self, x):
        return (self.left if self.use_left else self.right)(x)


def make_model(seed=0):
    torch.manual_seed(seed)
    return Net()


def batch(rank, step, size=16):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randn(size, 40, generator=generator)


def loss_of(model, data):
    x, y = data
    return nn.functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def wrap(model, state=None, hook=cgx_hook, **ddp):
    wrapped = DistributedDataParallel(model, **ddp)
    if state is None:
        state = CGXState(None, config={"bits": 4, "bucket_size": 64})
    wrapped.register_comm_hook(state, hook)
    return wrapped


def gradients(model):
    module = model.module if isinstance(model, DistributedDataParallel) else model
    return {n: p.grad.detach().clone() for n, p in module.named_parameters() if p.grad is not None}


def local_gradients(model, data):
    """Of a copy, on this rank's data alone."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    twin = copy.deepcopy(module)
    twin.zero_grad()
    loss_of(twin, data).backward()
    return gradients(twin)


def gather(tensor, group):
    """Every rank's tensor, in rank order, over an exact group."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def exact_mean(parts):
    """As the engine is to do it: fp32 sums in rank order, divided before rounding to the tensor's
    type.
    """
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return (total / len(parts)).to(parts[0].dtype)


def bound(parts, levels=LEVELS, bucket=64):
    """Per value: half a step of each rank's bucket in the mean, and half a step of the sum's where
    it is encoded again.
    """
    ranges = []
    for part in [*parts, torch.stack([p.double() for p in parts]).sum(0)]:
        flat = nn.functional.pad(part.double().flatten(), (0, -part.numel() % bucket), value=0.0)
        flat = flat.view(-1, bucket)
        low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
        step = (high - low) / levels
        ranges.append(step.expand(-1, bucket).flatten()[: part.numel()].view(part.shape))
    first = sum(ranges[:-1]) / 2
    # The sum of decoded values has a range that is wider by up to a step of each rank.
    second = 0.0 if len(parts) == 2 else (ranges[-1] + 2 * first / levels) / 2
    return (first + second) / len(parts) * 1.001 + 1e-7


def digest(tensors):
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def check_gradients(found, local, group, compressed=COMPRESSED, **bounds):
    """Exact layers have the exact mean's bits, compressed ones are off by at most the bound, and
    really are off.
    """
    for name, value in found.items():
        parts = gather(local[name], group)
        mean = exact_mean(parts)
        if name in compressed:
            error = (value.double() - mean.double()).abs()
            limit = bound(parts, **bounds)
            assert (error <= limit).all(), (name, (error - limit).max().item())
            assert error.max() > 0, f"{name} was not compressed"
        else:
            assert torch.equal(value, mean), (name, (value - mean).abs().max().item())
