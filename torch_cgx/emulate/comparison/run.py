"""One training of a comparison: a recipe and a seed."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_cgx.emulate.comparison.batches import split
from torch_cgx.emulate.comparison.generators import kept, seed_all
from torch_cgx.emulate.comparison.gradients import Exchange, Gradients
from torch_cgx.emulate.comparison.recipes import Method
from torch_cgx.emulate.comparison.task import Task

_POINTS = 50  # of a curve


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a training is. batch: samples of a step, of all ranks and nodes. nodes:
    micro-batches emulated on each rank. inner: of them, whose gradients each node sums first.
    threads: of torch. ValueError: the batch cannot be shared out.
    """

    steps: int
    batch: int
    ranks: int = 1
    nodes: int = 1
    inner: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            name = "emulate_node" if field.name in ("nodes", "inner") else field.name
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}; allowed: integers from 1")
        if self.batch % (self.ranks * self.nodes):
            raise ValueError(
                f"emulate_node={self.nodes} and ranks={self.ranks} with batch={self.batch}; "
                "allowed: a batch that is a multiple of emulate_node * ranks"
            )


@dataclasses.dataclass(frozen=True)
class Rank:
    """Which share of the batches a process takes, and how it meets the others. exchange: makes what
    exchanges gradients. agree: raises an error unless all have the same weights.
    """

    number: int = 0
    exchange: Callable[[Method], Exchange] | None = None
    agree: Callable[[nn.Module], None] = lambda model: None


class RunError(RuntimeError):
    """A training failed: which, and why, in a line. Its cause is the error."""


@contextmanager
def errors_of(recipe: Method, seed: int) -> Iterator[None]:
    """Errors of models, recipes and optimizers name the training."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        kind = type(error).__name__
        raise RunError(f"recipe {recipe.name}, seed {seed}: {kind}: {line}") from error


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Of torch; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    task: Task,
    recipe: Method,
    seed: int,
    size: Size,
    on_step: Callable[[], Any] = lambda: None,
    rank: Rank | None = None,
) -> dict[str, Any]:
    """Trains once. The result: "loss" and "accuracy" of the validation (None where the training
    diverged, or the task has none), "diverged", the step of the first loss that is not finite, or
    None; "bits" of a value; "seconds", the median of a step; "curve" of the training's losses,
    means over "every" steps.

    The program's generators and number of threads are as before afterwards. RunError: the task or
    the recipe failed.
    """
    with errors_of(recipe, seed), kept(), threads(size.threads):
        return _train(task, recipe, seed, size, on_step, rank or Rank())


def _train(
    task: Task, recipe: Method, seed: int, size: Size, on_step: Callable[[], Any], rank: Rank
) -> dict[str, Any]:
    model, optimizer = made(task, seed)
    handle = applied(model, optimizer, recipe, seed)
    exchange = None if rank.exchange is None else rank.exchange(recipe)
    sums = recipe.sums and dataclasses.replace(recipe.sums, node=size.inner)
    gradients = Gradients(model, size.nodes, sums, exchange)
    rates = [group["lr"] for group in optimizer.param_groups]
    losses: list[float] = []
    times: list[float] = []
    try:
        model.train()
        for step in range(size.steps):
            begin = time.perf_counter()
            factor = task.rate(step, size.steps)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            losses.append(_step(task, model, optimizer, gradients, seed, step, size, rank.number))
            times.append(time.perf_counter() - begin)
            on_step()
            if not math.isfinite(losses[-1]):
                break
        bits = _bits(handle, recipe, model)  # of training, not of validation
        diverged = None if math.isfinite(losses[-1]) else len(losses) - 1
        found = {}
        if diverged is None:
            rank.agree(model)
            found = _validated(task, model) if rank.number == 0 else {}
        if found and not math.isfinite(found["loss"]):
            diverged, found = size.steps, {}
        return {
            "loss": found.get("loss"),
            "accuracy": found.get("accuracy"),
            "diverged": diverged,
            "bits": bits,
            "seconds": statistics.median(times),
            **_curve(losses, size.steps),
        }
    finally:
        if handle is not None:
            handle.remove()


def made(task: Task, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer of a seed."""
    seed_all(seed, "model")
    model = task.model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"the task's model is of type {type(model).__name__}; allowed: nn.Module")
    return model, task.optimizer(model)


def applied(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Method, seed: int
) -> Any | None:
    """The handle of `emulate.apply`, or None where the recipe needs none."""
    if recipe.given is None:
        return None
    from torch_cgx import emulate

    return emulate.apply(model, optimizer, recipe.given, seed=seed)


def _step(
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    gradients: Gradients,
    seed: int,
    step: int,
    size: Size,
    rank: int,
) -> float:
    """The loss, a mean over nodes and ranks."""
    seed_all(seed, step, rank)
    parts = split(task.batch_of(seed, step, size.batch), size.ranks * size.nodes)
    for part in parts[rank * size.nodes : (rank + 1) * size.nodes]:
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model, part)
        loss.backward()
        gradients.add(loss)
    mean = gradients.finish(step)
    if task.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), task.clip)
    optimizer.step()
    return mean


def _validated(task: Task, model: nn.Module) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        found = dict(task.validate(model))
    if "loss" not in found:
        raise ValueError(f"validate returned {sorted(found)}; allowed: loss, and accuracy or not")
    return {name: float(value) for name, value in found.items()}


def _bits(handle: Any | None, recipe: Method, model: nn.Module) -> float:
    """The mean of all values that are cast, or summed in a format; 32 where none is."""
    values, bits = 0, 0.0
    if handle is not None:
        ledger = handle.ledger()
        values, bits = ledger.values, ledger.after
    if recipe.sums is not None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        summed = sum(p.numel() for p in parameters)
        values, bits = values + summed, bits + summed * recipe.sum_bits(parameters)
    return bits / values if values else 32.0


def _curve(losses: list[float], steps: int) -> dict[str, Any]:
    """Means over so many steps that all make about 50; None where one is not finite."""
    every = max(1, steps // _POINTS)
    means = [statistics.fmean(losses[i : i + every]) for i in range(0, len(losses), every)]
    return {
        "every": every,
        "curve": [float(f"{mean:.6g}") if math.isfinite(mean) else None for mean in means],
    }
