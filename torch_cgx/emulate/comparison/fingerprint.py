"""What a task trains, as a few words: results of another one are not resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torch_cgx.emulate.comparison.batches import split
from torch_cgx.emulate.comparison.generators import kept, seed_all
from torch_cgx.emulate.comparison.run import Size, made, threads
from torch_cgx.emulate.comparison.task import Task

_LETTERS = 16
_TOLERANCE = 1e-4  # of numbers that are computed: other machines, and GPUs, round otherwise


def fingerprint(task: Task, size: Size) -> dict[str, Any]:
    """Digests of seed 0's initial model and first batch; the loss and the norm of its gradient, of
    the batch's first micro-batch; the optimizer's class and settings; and the schedule. Equal in
    each process. Changes of code that none of these shows, as of `validate`, are not seen.
    """
    with kept(), threads(1):
        model, optimizer = made(task, 0)
        initial = _digest(model.state_dict())  # the loss may change buffers
        groups = [
            {key: _word(value) for key, value in group.items() if key != "params"}
            | {"parameters": len(group["params"])}
            for group in optimizer.param_groups
        ]
        model.train()
        seed_all(0, 0, 0)
        batch = task.batch_of(0, 0, size.batch)
        digest = _digest(batch)
        loss = task.loss(model, split(batch, size.ranks * size.nodes)[0])
        loss.backward()
    steps = sorted({size.steps * part // 4 for part in range(4)} | {size.steps - 1})
    return {
        "model": initial,
        "optimizer": {"class": type(optimizer).__qualname__, "groups": groups},
        "first batch": digest,
        "loss": _number(loss.detach()),
        "gradient": _number(_norm(model)),
        "rate": [_number(task.rate(step, size.steps)) for step in steps],
        "clip": None if task.clip is None else float(task.clip),
    }


def changed(there: Any, here: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two fingerprints; `there` may be of any form."""
    there = there if isinstance(there, Mapping) else {}
    return [
        name
        for name in dict.fromkeys([*here, *there])
        if name not in there or name not in here or not _same(there[name], here[name], name)
    ]


def _same(there: Any, here: Any, name: str) -> bool:
    if there == here:
        return True
    if name not in ("loss", "gradient"):
        return False
    try:
        return math.isclose(float(there), float(here), rel_tol=_TOLERANCE)
    except (TypeError, ValueError):
        return False


def _norm(model: nn.Module) -> float:
    gradients = [p.grad.detach() for p in model.parameters() if p.grad is not None]
    return math.hypot(*(float(_dense(one).norm()) for one in gradients))


def _number(value: Any) -> str:
    """JSON has no numbers that are not finite."""
    return f"{float(value):.9g}"


def _word(value: Any) -> Any:
    """A setting as JSON has it, equal in all processes: numbers in full, no addresses."""
    if isinstance(value, float):
        return repr(value)  # nan is equal to itself
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_word(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _word(one) for key, one in value.items()}
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return repr(value.item())
    return _digest(value)


def _digest(value: Any) -> str:
    """Of all that it holds: places, shapes, types and bytes of tensors, and plain values."""
    found = hashlib.sha256()
    _update(found, value)
    return found.hexdigest()[:_LETTERS]


def _update(found: Any, value: Any) -> None:
    found.update(f"<{type(value).__qualname__}".encode())
    if isinstance(value, torch.Tensor):
        if not is_lazy(value):
            found.update(f" {tuple(value.shape)} {value.dtype} ".encode())
            flat = _dense(value.detach()).cpu().resolve_conj().contiguous().view(-1)
            found.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _update(found, key)
            _update(found, one)
    elif isinstance(value, (str, bytes, bool, int, float, complex, type(None))):
        found.update(f" {value!r}".encode())
    elif isinstance(value, Sequence):
        for one in value:
            _update(found, one)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        found.update(f" {value.shape} {value.dtype} ".encode() + value.tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _update(found, getattr(value, field.name))
    elif callable(value) and hasattr(value, "__qualname__"):
        found.update(f" {value.__module__}.{value.__qualname__}".encode())
    found.update(b">")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()
