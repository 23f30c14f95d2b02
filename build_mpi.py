"""Builds the modules of MPI libraries for setup.py: torch_cgx._mpi_openmpi, torch_cgx._mpi_mpich.

Each is one C++ file, compiled by an mpicc of its library. CGX_MPICC names one or several, with ':'
between them; else it is MPICC, or mpicc beside the interpreter or on the PATH. CGX_MPI=0 builds
none.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent
KINDS = {"openmpi": "Open MPI", "mpich": "MPICH"}
SOURCE = "csrc/comm/mpi/module/module.cc"
# It calls no function of the C++ library, which mpicc would not link.
FLAGS = [
    *("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-Wall"),
]
PROBE = """
#include <mpi.h>
#if defined(OPEN_MPI)
cgx_kind openmpi
#elif defined(MPICH_VERSION) || defined(MPICH_NUMVERSION) || defined(I_MPI_VERSION)
cgx_kind mpich
#else
cgx_kind unknown
#endif
"""


class MpiError(Exception):
    """An mpicc that cannot be used, with its output."""


def run(command: list[str], text: str | None = None) -> str:
    """Its standard output."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except OSError as error:
        raise MpiError(f"{command[0]!r} does not start: {error}") from error
    if done.returncode != 0:
        raise MpiError(f"{shlex.join(command)!r} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def compilers() -> tuple[list[list[str]], bool]:
    """Commands to try, and whether CGX_MPICC names them, so that each has to work."""
    wanted = os.environ.get("CGX_MPI", "")
    if wanted not in ("", "0", "1"):
        sys.exit(f"CGX_MPI is {wanted!r}, allowed: 0 (no MPI modules), 1 (what mpicc allows)")
    if wanted == "0":
        return [], False
    named = [shlex.split(one) for one in os.environ.get("CGX_MPICC", "").split(":") if one.strip()]
    if named:
        return named, True
    if os.environ.get("MPICC", "").strip():
        return [shlex.split(os.environ["MPICC"])], False
    beside = Path(sysconfig.get_path("scripts")) / "mpicc"
    found = str(beside) if beside.exists() else shutil.which("mpicc")
    return ([[found]] if found else []), False


def kind_of(mpicc: list[str]) -> str:
    """Of KINDS."""
    text = run([*mpicc, "-E", "-P", "-x", "c", "-"], PROBE)
    found = re.search(r"^cgx_kind (\w+)", text, re.MULTILINE)
    if found is None or found[1] not in KINDS:
        allowed = ", ".join(KINDS.values())
        raise MpiError(f"{shlex.join(mpicc)!r} compiles for an unknown MPI; allowed: {allowed}")
    return found[1]


def command_of(mpicc: list[str], kind: str) -> list[str]:
    """The command that builds the module of this kind, without the name of the output."""
    # The library is found at run time where it is now (wrappers of both kinds know -show; others
    # see to it themselves), or, in another environment, beside the packages.
    try:
        words = shlex.split(run([*mpicc, "-show"]))
    except MpiError:
        words = []
    folders = [word[2:] for word in words if word.startswith("-L")]
    folders = [folder for folder in folders if list(Path(folder).glob("libmpi*.so*"))]
    includes = map(sysconfig.get_path, ("include", "platinclude"))
    return [
        *mpicc,
        *FLAGS,
        f"-DCGX_MPI_MODULE=_mpi_{kind}",
        f'-DCGX_MPI_KIND="{kind}"',
        *(f"-I{path}" for path in dict.fromkeys(includes)),
        f"-I{ROOT / 'csrc'}",
        str(ROOT / SOURCE),
        *(f"-Wl,-rpath,{folder}" for folder in [*folders, "$ORIGIN/../../.."]),
    ]


def build_module(mpicc: list[str], kind: str, work: Path) -> Path:
    """The module, in the folder `work`; made again only if something it depends on has changed."""
    command = command_of(mpicc, kind)
    module = work / f"_mpi_{kind}.so"
    stamp = work / f"_mpi_{kind}.txt"
    inputs = [ROOT / SOURCE, ROOT / "csrc/comm/mpi/api.h", Path(shutil.which(mpicc[0]) or "")]
    stamped = shlex.join(command)
    if module.exists() and stamp.exists() and stamp.read_text() == stamped:
        if all(path.stat().st_mtime < module.stat().st_mtime for path in inputs):
            return module
    work.mkdir(parents=True, exist_ok=True)
    run([*command, "-o", str(module)])
    stamp.write_text(stamped)
    return module


def build(work: Path) -> dict[str, Path]:
    """The modules that can be built, in the folder `work`, by kind. An mpicc that cannot build one
    is a warning; one that CGX_MPICC names ends the build.
    """
    wanted, named = compilers()
    built: dict[str, Path] = {}
    used: dict[str, str] = {}
    for mpicc in wanted:
        try:
            kind = kind_of(mpicc)
            if kind in built:
                raise MpiError(
                    f"{shlex.join(mpicc)!r} is a second mpicc of {KINDS[kind]}, after "
                    f"{used[kind]!r}; allowed: one of each kind"
                )
            built[kind] = build_module(mpicc, kind, work)
            used[kind] = shlex.join(mpicc)
        except MpiError as error:
            if named:
                sys.exit(f"CGX_MPICC: {error}")
            print(f"warning: torch_cgx is built without this MPI: {error}", file=sys.stderr)
    if built:
        found = ", ".join(f"{KINDS[kind]} ({used[kind]})" for kind in built)
        print(f"torch_cgx: MPI communicator for {found}")
    else:
        why = "CGX_MPI=0" if os.environ.get("CGX_MPI") == "0" else "no usable mpicc found"
        print(f"torch_cgx: built without the MPI communicator ({why})")
    return built
