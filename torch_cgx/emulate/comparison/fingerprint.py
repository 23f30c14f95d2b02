"""What a task trains, as a few words: results of another one are not resumed."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils import _pytree

from torch_cgx.emulate.comparison.generators import kept, seed_all
from torch_cgx.emulate.comparison.run import Size, made
from torch_cgx.emulate.comparison.task import Task

_LETTERS = 16


def fingerprint(task: Task, size: Size) -> dict[str, Any]:
    """Digests of seed 0's initial model and first batch, its loss to four digits, the optimizer's
    class and settings, and the schedule: equal in each process, on each machine. Changes of code
    that none of these shows, as of `validate`, are not seen.
    """
    loss = None  # where ranks compute it, an error is theirs
    with kept():
        model, optimizer = made(task, 0)
        seed_all(0, 0, 0)
        batch = task.batch_of(0, 0, size.batch)
        if size.ranks == 1:
            loss = f"{float(task.loss(model, batch).detach()):.4g}"
    groups = [
        {key: repr(value) for key, value in group.items() if key != "params"}
        | {"parameters": len(group["params"])}
        for group in optimizer.param_groups
    ]
    steps = sorted({0, size.steps // 2, size.steps - 1})
    return {
        "model": _digest(model.state_dict()),
        "optimizer": {"class": type(optimizer).__qualname__, "groups": groups},
        "batch": _digest(batch),
        "loss": loss,
        "rate": [f"{task.rate(step, size.steps):.6g}" for step in steps],
        "clip": task.clip,
    }


def _digest(value: Any) -> str:
    """Of the tensors in it, by their places, shapes, types and bytes."""
    found = hashlib.sha256()
    for path, one in _pytree.tree_flatten_with_path(value)[0]:
        found.update(_pytree.keystr(path).encode())
        if isinstance(one, torch.Tensor):
            found.update(f"{tuple(one.shape)} {one.dtype}".encode())
            found.update(one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            found.update(repr(type(one)).encode())
    return found.hexdigest()[:_LETTERS]
