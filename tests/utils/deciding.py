"""A state that decides the bits of two layers, a model that gives these very different gradients,
and what was decided: for the tests of decisions.
"""

from __future__ import annotations

import torch

from cgx_utils import AdaptiveBits, CGXState
from tests.utils.training import batch, loss_of, make_model

BUCKET = 64
NUMEL = {"first.weight": 8192, "second.weight": 2048}


def make_state(adaptive=None, params=None, **options):
    adaptive = AdaptiveBits(3) if adaptive is None else adaptive
    params = {"bucket_size": BUCKET, **(params or {})}
    return CGXState(None, config=params, adaptive=adaptive, **options)


def uneven_model():
    """A model whose second matrix has much larger gradients than its first."""
    model = make_model()
    with torch.no_grad():
        model.second.weight.mul_(0.1)
    return model


def take_step(model, rank, step):
    model.zero_grad()
    loss_of(model, batch(rank, step)).backward()


def spied(state):
    """A list to which every call of `state.plan` adds its result."""
    plans, inner = [], state.plan

    def plan(parameters, backend):
        plans.append(inner(parameters, backend))
        return plans[-1]

    state.plan = plan
    return plans


def shown_bits(plan):
    """The bits of each compressed layer, by its number of values."""
    return {numel: codec.bits for numel, codec in plan if codec is not None}
