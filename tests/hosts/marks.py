"""What tests on hosts need, and where it is found: `@needs_hosts`, `mpi_installation`.

Without it they are skipped, with the reason. CGX_TEST_HOSTS=1 makes a missing bed an error instead.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import warm
from torch_cgx.testbed import mpi
from torch_cgx.testbed.bed import BedError, Hosts, hosts_available

Hosts.python = staticmethod(warm.python)  # type: ignore[method-assign]

_reason = hosts_available()
if _reason is not None and os.environ.get("CGX_TEST_HOSTS") == "1":
    raise RuntimeError(f"CGX_TEST_HOSTS=1, but the test bed does not work here: {_reason}")

needs_hosts = pytest.mark.skipif(_reason is not None, reason=f"no test bed of hosts: {_reason}")

_VARIABLES = {"openmpi": "CGX_TEST_OPENMPI", "mpich": "CGX_TEST_MPICH"}


@cache
def _find(kind: str) -> Path | str:
    variable = _VARIABLES[kind]
    named = os.environ.get(variable)
    prefix = Path(named) if named else Path(sys.executable).parent.parent
    mpirun = prefix / "bin" / "mpirun"
    if not mpirun.exists():
        return f"no {kind}: {mpirun} does not exist; {variable} may name a venv that has it"
    try:
        found = mpi.kind(str(mpirun))
    except BedError as error:
        return str(error)
    return prefix if found == kind else f"{mpirun} is {found}'s; {variable} may name a venv"


def mpi_installation(kind: str) -> Path:
    """The prefix that has bin/mpirun of `kind` ("openmpi" or "mpich") and a bin/python with mpi4py:
    CGX_TEST_OPENMPI or CGX_TEST_MPICH, else that of this interpreter. Skips the test without one.
    """
    found = _find(kind)
    if isinstance(found, str):
        pytest.skip(found)
    return found
