"""All trainings of a comparison, one after the other, and those that a file holds already."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_cgx.emulate.comparison.comparison import Comparison
from torch_cgx.emulate.comparison.fingerprint import fingerprint
from torch_cgx.emulate.comparison.generators import kept
from torch_cgx.emulate.comparison.load import load
from torch_cgx.emulate.comparison.ranks import Ranks
from torch_cgx.emulate.comparison.recipes import Method, resolve
from torch_cgx.emulate.comparison.results import TRAINED, Results, differences
from torch_cgx.emulate.comparison.run import Size, applied, errors_of, made, train
from torch_cgx.emulate.comparison.task import Task
from torch_cgx.emulate.comparison.watch import Watch
from torch_cgx.emulate.comparison.wire import config_of

FILE = "runs.jsonl"
_Train = Callable[[Method, int, Callable[[], Any]], dict[str, Any]]


def compare(
    task: Task | str,
    recipes: Sequence[Any] | Mapping[str, Any],
    *,
    seeds: int | Sequence[int] = 5,
    steps: int | None = None,
    batch: int | None = None,
    ranks: int = 1,
    emulate_node: int | str = 1,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    threads: int = 1,
    progress: bool = True,
) -> Comparison:
    """Trains a model with each recipe and each seed. Recipes of one seed start from equal weights
    and see equal batches, so that their differences are paired; float32 is always among them.

    task: a `Task`, "gpt", "digits", or "MODULE:FACTORY" of a function that returns a `Task`.
    recipes: names, as `emulate.recipe` takes them; "nvfp4-hadamard" is without a part
    (`emulate.without`), "cpd43+aps" and "cpd43+kahan" sum gradients with APS and Kahan's summation.
    Or a dict from names to recipes: names, dicts, None for float32. Gradients whose entry in a
    recipe has "aps" are summed over nodes in their format, before they are clipped; others are cast
    by `emulate.apply`, before the optimizer's step.
    seeds: so many, from 0 on; or which. steps, batch: of a training; None: the task's own.
    emulate_node: K micro-batches of a step, whose gradients are computed by themselves and summed,
    by cpd recipes in their format, by the others in float32. "8x32": 256 of them, by 8 nodes, each
    of which sums 32 of its own first, as CPD emulates 256 nodes. ranks: processes of this host that
    share the batches and exchange gradients over the backend "cgx": exact, of cpd recipes by the
    codec `float` with their bits. With several, task is a name.
    data: a folder for a task that is named. out: a folder; the finished trainings in OUT/runs.jsonl
    are not repeated; a folder of another task is refused: of another model, optimizer, first batch,
    loss, gradient, rate or clip, while changes of `validate` are not seen. threads: of torch; equal
    results need equal numbers. progress: a bar on a terminal, else a line for each training, both
    on stderr.

    ValueError, TypeError: an argument is not allowed, or the folder is of other settings; nothing
    has been trained. RunError: a training failed; the finished ones are in the folder.
    """
    named = isinstance(task, str)
    if not named and data is not None:
        raise ValueError(f"data={data!r} with a Task; allowed: with a name, as 'gpt'")
    if not named and ranks != 1:
        raise ValueError(
            f"ranks={ranks} with a Task; allowed: with a name, as 'digits' or 'train:make_task', "
            "by which each rank makes its own"
        )
    chosen = resolve(recipes)
    numbers = _seeds(seeds)
    found = load(task, data) if isinstance(task, str) else task
    if not isinstance(found, Task):
        raise TypeError(f"task is of type {type(found).__name__}; allowed: a Task, a name")
    nodes, inner = nodes_of(emulate_node)
    size = Size(
        found.steps if steps is None else steps,
        found.batch if batch is None else batch,
        ranks,
        nodes,
        inner,
        threads,
    )
    with errors_of(chosen[0], 0):
        trained = fingerprint(found, size)
    settings = _settings(task if isinstance(task, str) else found.name, found, size, trained)
    path = None if out is None else Path(out, FILE)
    with Results(path, settings) as results:
        _check_definitions(results, chosen)
        # Seeds outside: the trainings that are compared lie close to each other in time.
        left = [
            (recipe, seed)
            for seed in numbers
            for recipe in chosen
            if results.find(recipe.name, seed) is None
        ]
        if left:
            _check(found, {recipe.name: recipe for recipe, _ in left}, size)
        with (
            _trainer(found, task, data, size, bool(left)) as one,
            Watch(len(left), size.steps, progress) as watch,
        ):
            for recipe, seed in left:
                watch.begin(recipe.name, seed)
                result = one(recipe, seed, watch.step)
                run = {"recipe": recipe.name, "seed": seed, "definition": recipe.definition}
                results.add({**run, **result})
                watch.end(result)
        runs = [results.find(recipe.name, seed) for recipe in chosen for seed in numbers]
    return Comparison(settings, [run for run in runs if run is not None])


def nodes_of(given: int | str) -> tuple[int, int]:
    """Micro-batches of a rank, and how many of them each node sums first. ValueError."""
    match = re.fullmatch(r"(\d+)x(\d+)", given) if isinstance(given, str) else None
    if match is not None and int(match[1]) > 0 and int(match[2]) > 0:
        return int(match[1]) * int(match[2]), int(match[2])
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"emulate_node={given!r}; allowed: integers from 1, or as '8x32'")
    return given, 1


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    given = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if isinstance(seeds, bool) or not given or len(set(given)) < len(given):
        raise ValueError(f"seeds={seeds!r}; allowed: integers from 1, or a list of different ones")
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seeds={seeds!r}: {seed!r}; allowed: integers from 0")
    return given


def _settings(name: str, task: Task, size: Size, trained: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": name,
        "steps": size.steps,
        "batch": size.batch,
        "ranks": size.ranks,
        "emulate_node": size.nodes
        if size.inner == 1
        else f"{size.nodes // size.inner}x{size.inner}",
        "threads": size.threads,
        "torch": torch.__version__.partition("+")[0],
        "facts": dict(task.facts),
        TRAINED: trained,
    }


def _check_definitions(results: Results, recipes: Sequence[Method]) -> None:
    """ValueError: the file has trainings of recipes that had other formats."""
    for recipe in recipes:
        for run in results.runs:
            if run["recipe"] == recipe.name and run["definition"] != recipe.definition:
                told = differences(run["definition"], recipe.definition, recipe.name)
                raise ValueError(
                    f"{results.path} has another recipe of that name: {'; '.join(told)}; allowed: "
                    "the same, or another folder"
                )


def _check(task: Task, recipes: Mapping[str, Method], size: Size) -> None:
    """Errors of recipes that do not fit the model, before anything is trained."""
    if size.ranks > 1:
        for recipe in recipes.values():
            if recipe.sums is not None:
                config_of(recipe)
    for recipe in recipes.values():
        with errors_of(recipe, 0), kept():
            handle = applied(*made(task, 0), recipe, 0)
            if handle is not None:
                handle.remove()


@contextlib.contextmanager
def _trainer(task: Task, name: Any, data: Any, size: Size, needed: bool) -> Iterator[_Train]:
    """What trains once: this process, or ranks."""
    if size.ranks == 1 or not needed:
        yield lambda recipe, seed, on_step: train(task, recipe, seed, size, on_step)
        return
    with Ranks(name, None if data is None else os.fspath(data), size) as ranks:
        yield ranks.train
