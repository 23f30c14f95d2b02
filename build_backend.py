"""The build backend: setuptools', which here finds the torch that is installed.

An extension module fits the torch that it was built against, so torch cannot be a requirement of
the build: pip would install the newest one beside the build, not the one that the module will run
with. By default pip builds in an isolated environment: a folder with the build's requirements, and
the packages of the target environment hidden. This backend appends the target's folders to the
import path, behind those requirements, so that setup.py finds torch with and without isolation.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from typing import Any

from setuptools import build_meta as _setuptools


def _show_installed_torch() -> None:
    if importlib.util.find_spec("torch") is not None:
        return
    for name in ("purelib", "platlib"):
        folder = sysconfig.get_path(name)
        if folder not in sys.path:
            sys.path.append(folder)
    importlib.invalidate_caches()


_show_installed_torch()

# The hooks that pip calls, by their names in PEP 517 and PEP 660.
build_sdist = _setuptools.build_sdist
get_requires_for_build_sdist = _setuptools.get_requires_for_build_sdist
build_wheel: Any = _setuptools.build_wheel
build_editable: Any = _setuptools.build_editable
get_requires_for_build_wheel: Any = _setuptools.get_requires_for_build_wheel
get_requires_for_build_editable: Any = _setuptools.get_requires_for_build_editable
prepare_metadata_for_build_wheel: Any = _setuptools.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable: Any = _setuptools.prepare_metadata_for_build_editable
