"""Rows that must not move: with `exact_zeros`, rows whose gradients are zero on all ranks stay
where they are, under an optimizer that makes full steps of small gradients.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, cgx_hook
from tests.distributed import run_pooled

STEPS = 8
FROZEN = 7
USED = 40  # rows
STILL = [0, FROZEN, *range(USED, 50)]


class Words(nn.Module):
    """Row 0 is padding, row FROZEN has a gradient mask, rows from USED on are never looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 48, padding_idx=0)
        self.out = nn.Linear(48, 50)
        self.table.weight.register_hook(lambda g: g.index_fill(0, torch.tensor([FROZEN]), 0.0))

    def forward(self, words):
        return self.out(self.table(words))


def _train(rank, world_size, params, options=None, whole_group=False):
    """How far the rows that must not move have moved at most, and the trained rows at least."""
    group = dist.new_group(pg_options=torch_cgx.Options(**params) if whole_group else None)
    torch.manual_seed(0)
    model = DistributedDataParallel(Words(), process_group=group)
    if not whole_group:
        state = CGXState(None, 64, params, **(options or {}))
        model.register_comm_hook(state, cgx_hook)
    before = model.module.table.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        words = torch.randint(0, USED, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), words).backward()
        optimizer.step()
    moved = (model.module.table.weight.detach() - before).abs().amax(1)
    return moved[STILL].max().item(), moved[1:FROZEN].min().item()


@pytest.mark.parametrize("world_size", [2, 3])
def test_rows_of_zeros_stay(world_size):
    for params in (
        {"bits": 4, "bucket_size": 512},
        {"bits": 2, "bucket_size": 100, "rounding": "stochastic"},
        {"bits": 8},
    ):
        zeros = {**params, "exact_zeros": True}
        for still, trained in run_pooled(_train, world_size, zeros):
            assert still == 0 and trained > 0.01, params
    # The fault that it is for.
    for still, _ in run_pooled(_train, world_size, {"bits": 4}):
        assert still > 0.01


def test_rows_of_zeros_stay_with_residuals_chosen_bits_and_a_whole_group():
    params = {"bits": 3, "exact_zeros": True}
    adaptive = AdaptiveBits(average_bits=4, candidates=(2, 4, 8), every=2)
    for still, trained in (
        *run_pooled(_train, 2, params, {"error_feedback": True}),
        *run_pooled(_train, 2, {"exact_zeros": True}, {"adaptive": adaptive}),
        *run_pooled(_train, 2, {**params, "min_size": 64}, None, True),
    ):
        assert still == 0 and trained > 0.01


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"bits": 1, "exact_zeros": True}, "bits=1.*allowed: bits from 2 to 8"),
        (
            {"codec": "rotated", "bits": 4, "exact_zeros": True},
            "codec='rotated'.*allowed: .*maxmin",
        ),
        (
            {"codec": "trellis", "bits": 4, "exact_zeros": True},
            "codec='trellis'.*allowed: .*maxmin",
        ),
    ],
)
def test_what_cannot_keep_zeros_is_an_error(params, words):
    with pytest.raises(ValueError, match=f"exact_zeros.*{words}"):
        torch_cgx.simulate([torch.ones(3)] * 2, config=params)
