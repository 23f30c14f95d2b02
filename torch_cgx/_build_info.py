"""What the installed extension was built with, and what to say where it does not load.

The build (setup.py) writes `_build_info.TAG.json` beside the extension, TAG as in cpython-311:
"version" of torch_cgx, "wheel" (what follows the version in the names of wheels, as torch2.13;
empty for a build from the source), "torch" (the whole version), "cxx11_abi", "compiler", "mpi" and
"kernels" (lists).
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).with_name(f"_build_info.{sys.implementation.cache_tag}.json")


def read(file: Path = FILE) -> dict[str, Any]:
    """The record; empty if there is none, as in a source tree that was not built."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(re.findall(r"\d+", version)[:2])


def misfit(built: dict[str, Any], torch_version: str) -> str:
    """Why an extension with this record does not fit an installed torch, and what to do; empty if
    it fits, or if nothing is recorded.
    """
    if not built.get("torch") or minor(built["torch"]) == minor(torch_version):
        return ""
    wanted, fits = minor(torch_version), minor(built["torch"])
    if built.get("wheel"):
        version = built.get("version", "")
        return (
            f"this wheel of torch_cgx is for torch {fits}, and torch {torch_version} is installed: "
            f"`pip install torch_cgx-{version}+torch{wanted}-...whl`, a wheel that `make wheels "
            f'TORCHES=...` makes, or `pip install "torch=={fits}.*"`'
        )
    return (
        f"this torch_cgx was built for torch {minor(built['torch'])}, and torch {torch_version} is "
        f"installed: install the wheel torch_cgx-{built.get('version', '')}+torch{wanted}, or from "
        f"its source `pip install --force-reinstall --no-deps .`, or `pip install "
        f'"torch=={minor(built["torch"])}.*"`'
    )


def load_engine() -> ModuleType:
    """`torch_cgx._C`. ImportError, which says what to install, if it does not fit."""
    import torch

    unfit = misfit(read(), torch.__version__)
    if unfit:
        raise ImportError(unfit)
    try:
        return importlib.import_module("torch_cgx._C")
    except ModuleNotFoundError as error:
        if error.name != "torch_cgx._C":
            raise
        raise ImportError(
            "torch_cgx is here without its extension (torch_cgx/_C), so it was not built for this "
            "Python: in a source tree `make build`, elsewhere install it again"
        ) from error
    except ImportError as error:
        raise ImportError(
            f"the extension of torch_cgx does not load ({error}); it has to be built for the torch "
            f"that is installed, {torch.__version__}: install it again"
        ) from error
