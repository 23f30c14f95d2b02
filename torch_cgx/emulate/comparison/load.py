"""Tasks by name: those of the package, and functions of the user's."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from torch_cgx.emulate.comparison import builtin
from torch_cgx.emulate.comparison.task import Task


def load(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """The task "gpt", "digits" or "MODULE:FACTORY", a function that returns a `Task`.

    Modules are looked for in the current folder first. data: a folder: text files for "gpt"; a
    factory gets it as a Path, if it has an argument `data`. ValueError: there is no such task or
    folder, or the factory fails or takes no folder. ImportError: "digits" without scikit-learn.
    """
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise ValueError(f"data {folder}: there is no such folder")
    if name == "gpt":
        return builtin.gpt(folder)
    if name == "digits":
        if folder is not None:
            raise ValueError(f"data {folder}: digits has its own; allowed: with gpt or a factory")
        return builtin.digits_task()
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        allowed = ", ".join(builtin.NAMES)
        raise ValueError(f"model {name}: allowed: {allowed}, MODULE:FACTORY, as in train:make_task")
    return _made(name, module, function, folder)


def _made(name: str, module: str, function: str, folder: Path | None) -> Task:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), function)
        given = {} if folder is None else {"data": folder}
        if given and not _takes_data(factory):
            raise ValueError(f"data {folder}: the factory has no argument named data")
        made = factory(**given)
    except Exception as error:  # of the user's code
        line = (str(error).splitlines() or [""])[0]
        kind = "" if line.startswith("data ") else f"{type(error).__name__}: "
        raise ValueError(f"model {name}: {kind}{line}") from error
    if not isinstance(made, Task):
        raise ValueError(
            f"model {name} returned an object of type {type(made).__name__}; allowed: a "
            "torch_cgx.emulate.Task"
        )
    return made


def _takes_data(factory: Any) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(one.name == "data" or one.kind is one.VAR_KEYWORD for one in parameters)
