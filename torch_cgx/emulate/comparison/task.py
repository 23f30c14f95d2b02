"""What `compare` trains: a model, its batches, loss and validation, as functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx.emulate.comparison.batches import Shuffled, count, take

_EVALUATED = 256  # samples of a validation batch


def warm_cosine(step: int, steps: int) -> float:
    """A factor of the learning rate: rises to 1 over a tenth of the steps, then falls as a cosine
    to 0.
    """
    warm = steps // 10
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with a learning rate of 1e-3, and torch's defaults."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@dataclasses.dataclass(frozen=True)
class Task:
    """A training that `compare` repeats with each recipe and each seed.

        def make():  # cgx emulate compare --model mine:make
            return emulate.Task.supervised(MyNet, train=(x, y), validation=(vx, vy))

    name: in tables and pictures.
    model: makes the model, with float32 parameters. It is called after the generators of Python,
        NumPy and torch were seeded: recipes start from equal weights.
    batch_of: (seed, step, size) -> the batch of a step, with `size` samples in dimension 0: a
        tensor, or tuples, lists or dicts of tensors. It depends on its arguments alone.
    loss: (model, batch) -> the mean loss of the samples, a scalar tensor to differentiate. torch's
        generators are seeded for each step, so that dropout leaves out the same.
    validate: (model) -> {"loss": ..., "accuracy": ...} of data that are not trained on; accuracy,
        of 0 to 1, may be missing. The model is in eval mode, under `torch.no_grad`.
    optimizer: makes the optimizer of a model.
    rate: (step, steps) -> the factor of the optimizer's learning rates at a step.
    clip: the norm to which gradients are clipped; None: they are not.
    batch, steps: samples of a step, and steps of a training, where the caller names none.
    facts: what else the results depend on, as JSON has it: a sweep goes on where they are equal.

    TypeError, ValueError: an argument is not allowed.
    """

    name: str
    model: Callable[[], nn.Module]
    batch_of: Callable[[int, int, int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    validate: Callable[[nn.Module], Mapping[str, float]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw
    rate: Callable[[int, int], float] = warm_cosine
    clip: float | None = None
    batch: int = 32
    steps: int = 300
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r}; allowed: a str that is not empty")
        if isinstance(self.model, nn.Module):
            raise TypeError(
                f"model is a Module ({type(self.model).__name__}); allowed: a function that makes "
                "one, as its class, so that each training starts anew"
            )
        for name in ("model", "batch_of", "loss", "validate", "optimizer", "rate"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name}={getattr(self, name)!r}; allowed: a function")
        for name in ("batch", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}; allowed: integers from 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip!r}; allowed: positive numbers, None")

    @classmethod
    def supervised(
        cls,
        model: Callable[[], nn.Module],
        train: Any,
        validation: Any,
        *,
        name: str = "model",
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
        **others: Any,
    ) -> Task:
        """The task of a model that maps inputs to outputs, which `loss` compares with targets.

        train, validation: (inputs, targets), tensors of n samples each, or a dataset with a length
        and numbered samples of (input, target). loss: (outputs, targets) -> the mean of the
        samples. others: fields of `Task`. Accuracy is known where targets are integers, one for
        each row of outputs [n, classes, ...].
        """
        for what, samples in (("train", train), ("validation", validation)):
            _check_samples(what, samples)
        facts = {"train": count(train), "validation": count(validation)}
        return cls(
            name,
            model,
            Shuffled(train),
            _Compared(loss),
            _Validation(validation, loss),
            **{"facts": facts, **others},
        )


def _type(samples: Any) -> str:
    """With those inside a tuple."""
    name = type(samples).__name__
    if not isinstance(samples, tuple):
        return name
    return f"{name} of {', '.join(type(one).__name__ for one in samples) or 'nothing'}"


def _check_samples(what: str, samples: Any) -> None:
    """TypeError, ValueError: see `Task.supervised`."""
    tensors = isinstance(samples, (tuple, list)) and all(
        isinstance(one, torch.Tensor) and one.dim() > 0 for one in samples
    )
    if isinstance(samples, tuple):
        ok = tensors and len(samples) > 0
    else:
        ok = hasattr(samples, "__len__") and hasattr(samples, "__getitem__")
        ok &= not isinstance(samples, (torch.Tensor, Mapping, str))
        ok &= not (tensors and len(samples) > 0)  # a list of tensors
    if not ok:
        hint = ", as loader.dataset" if hasattr(samples, "dataset") else ""
        raise TypeError(
            f"{what} is of type {_type(samples)}; allowed: a tuple of tensors, (inputs, "
            f"targets), or a dataset with a length and numbered samples{hint}"
        )
    if isinstance(samples, tuple):
        counts = [len(one) for one in samples]
        if len(set(counts)) > 1:
            raise ValueError(f"{what} has tensors of {counts} samples; allowed: equally many")
    if count(samples) == 0:
        raise ValueError(f"{what} has no samples")


@dataclasses.dataclass(frozen=True)
class _Compared:
    """The loss of a model that maps inputs to outputs."""

    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return self.loss(model(inputs), targets)


@dataclasses.dataclass(frozen=True)
class _Validation:
    """Means over all samples of a set."""

    samples: Any
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def __call__(self, model: nn.Module) -> dict[str, float]:
        total, hits, targets_seen, samples = 0.0, 0, 0, count(self.samples)
        for index in torch.arange(samples, dtype=torch.int64, device="cpu").split(_EVALUATED):
            inputs, targets = take(self.samples, index)
            outputs = model(inputs)
            total += float(self.loss(outputs, targets).detach()) * len(index)
            if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
                hits += int((outputs.argmax(1) == targets).sum())
                targets_seen += targets.numel()
        found = {"loss": total / samples}
        return {**found, "accuracy": hits / targets_seen} if targets_seen else found
