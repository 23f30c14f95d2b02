"""`cgx memory`: what a model keeps for backward, and what each way to keep less would save."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_cgx.cli.arguments import at_least
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import size_text, table

EXAMPLES = """\
examples:
  cgx memory --model train:make_model --batch 8x128x768
  cgx memory --model train:make_model --batch 8x128:int64 --depth 2 --plot memory.png
  cgx memory --model train:make_model_and_batch --json

MODULE:FACTORY names a function without arguments that returns a module, or (module, batch) with a
tuple of the module's arguments. --batch makes them: a SHAPE is sizes with x between; values are
normal random numbers, of integer types zeros and ones. The loss is the sum of the output."""

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODULE:FACTORY",
        help="a function that returns the model (see below)",
    )
    parser.add_argument(
        "--batch",
        type=_shapes,
        metavar="SHAPE[:DTYPE],...",
        help="the model's arguments, as 8x128x768 or 8x128:int64",
    )
    parser.add_argument(
        "--depth", type=at_least(0), metavar="N", help="parts of modules' names that are told apart"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a bar of kinds")
    parser.add_argument("--json", action="store_true", help="write JSON")


def _shapes(text: str) -> list[tuple[tuple[int, ...], str]]:
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+(?:x\d+)*)(?::(\w+))?", word.strip())
        if match is None or (match[2] or _DTYPES[0]) not in _DTYPES:
            raise argparse.ArgumentTypeError(
                f"{word!r}; allowed: SHAPE or SHAPE:DTYPE, as 8x128x768, 8x128:int64, of "
                f"{', '.join(_DTYPES)}"
            )
        found.append((tuple(int(size) for size in match[1].split("x")), match[2] or _DTYPES[0]))
    return found


def run(args: argparse.Namespace) -> int:
    from torch_cgx.activations.report.memory import memory

    model, batch = _load(args.model, os.getcwd())
    if args.batch is not None:
        batch = _made(args.batch, model)
    if not batch:
        raise CliError(
            f"--model {args.model} returns no batch; allowed: --batch SHAPE, or a function that "
            "returns (module, batch)"
        )
    with _errors("the model"):
        report = memory(model, *batch)
    if args.plot is not None:
        try:
            report.plot(args.plot)
        except (ImportError, OSError, ValueError) as error:
            raise CliError(f"--plot {args.plot}: {error}") from None
    if args.json:
        names = ("total", "peak", "peak_source", "parameters", "gradients", "rows", "savings")
        found = {name: getattr(report, name) for name in names} | {"by_kind": report.by_kind}
        print(json.dumps(found, indent=1))
    else:
        print(text_of(report, args.depth))
    return 0


def _load(name: str, folder: str) -> tuple[Any, tuple[Any, ...]]:
    """The module, and a batch if the factory returns one. folder: where modules are looked for."""
    import torch

    module_name, colon, function = name.partition(":")
    if not (module_name and colon and function):
        raise CliError(f"--model {name}: allowed: MODULE:FACTORY, as in train:make_model")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _errors(f"--model {name}"):
        made = getattr(importlib.import_module(module_name), function)()
    model, batch = made if isinstance(made, tuple) and len(made) == 2 else (made, ())
    if not isinstance(model, torch.nn.Module):
        raise CliError(
            f"--model {name} returned an object of type {type(made).__name__}; allowed: a "
            "torch.nn.Module, or (module, batch)"
        )
    return model, tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    """Errors of the user's code become a line."""
    try:
        yield
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        raise CliError(f"{what}: {type(error).__name__}: {line}") from None


def _made(shapes: list[tuple[tuple[int, ...], str]], model: Any) -> tuple[Any, ...]:
    """On the device of the model's first parameter."""
    import torch

    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    batch = []
    for shape, name in shapes:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            batch.append(torch.randn(shape, dtype=dtype, device=device))
        else:
            batch.append(torch.randint(0, 2, shape, dtype=torch.int64, device=device).to(dtype))
    return tuple(batch)


def text_of(report: Any, depth: int | None) -> str:
    """What the command prints."""
    kinds = [
        [kind, size_text(n), f"{100 * n / report.total:.1f} %"]
        for kind, n in report.by_kind.items()
    ]
    parts = [
        report.table(depth),
        table(["kind", "bytes", "share"], kinds),
        f"peak of a step: {size_text(report.peak)}, by {report.peak_source}\n"
        f"parameters: {size_text(report.parameters)}, gradients: {size_text(report.gradients)}",
    ]
    if report.savings:
        measures = [
            [one["measure"], size_text(one["bytes"]), f"{100 * one['share']:.1f} %", one["line"]]
            for one in report.savings
        ]
        parts.append(table(["what would be saved", "bytes", "share", "type"], measures, (0, 3)))
    return "\n\n".join(parts)
