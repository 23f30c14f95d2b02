"""DiLoCo and models whose gradients somebody averages already."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cgx_utils import DiLoCo
from tests.distributed import run_pooled


def _diloco(model, **options):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return DiLoCo(model, inner, every=1, config={"bits": 4}, **options)


def _wrapped(rank, world_size):
    model = DistributedDataParallel(nn.Linear(64, 64))
    cases = {
        "DDP": (model, "is"),
        "in a module": (nn.Sequential(model), "holds"),
        "compiled": (torch.compile(model, backend="eager"), "holds"),
        "compiled in a module": (nn.Sequential(torch.compile(model, backend="eager")), "holds"),
    }
    for given, word in cases.values():
        with pytest.raises(
            ValueError, match=rf"the model {word} a DistributedDataParallel"
        ) as info:
            _diloco(given)
        for text in ("every step over ranks [0, 1]", "model.module"):
            assert text in str(info.value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _diloco(model.module)
        texts = [str(one.message) for one in caught]
        assert len(texts) == 1 and "sends every gradient to ranks [0, 1]" in texts[0], texts
        caught.clear()
        module = model.module
        del model, cases, given, info
        gc.collect()
        _diloco(module)
        assert caught == []
    return True


def test_a_model_in_ddp_is_refused():
    assert run_pooled(_wrapped, 2) == [True, True]


def _hybrid(rank, world_size):
    """DDP inside of a site, DiLoCo between sites."""
    inside = [dist.new_group([first, first + 1], backend="cgx") for first in (0, 2)][rank // 2]
    across = [dist.new_group([first, first + 2], backend="cgx") for first in (0, 1)][rank % 2]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64), process_group=inside)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        diloco = _diloco(model, group=across)
    assert not any("DiLoCo" in str(one.message) for one in caught)
    model(torch.full((1, 64), float(rank))).sum().backward()
    diloco.inner.step()
    diloco.step()
    values = model.module.weight.detach().clone()
    parts = [torch.empty_like(values) for _ in range(world_size)]
    dist.all_gather(parts, values)
    return all(torch.equal(part, parts[0]) for part in parts)


def test_ddp_over_other_ranks_is_allowed():
    assert run_pooled(_hybrid, 4) == [True] * 4


def _sharded(rank, world_size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(64, 64), device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match="sharded by FullyShardedDataParallel"):
        _diloco(model)
    return True


def test_a_sharded_model_is_refused():
    assert run_pooled(_sharded, 2) == [True, True]
