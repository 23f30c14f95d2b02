"""What a wheel is called and requires, and which wheels are asked for."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

TORCH_FIRST, TORCH_LAST = (2, 11), (2, 14)  # as in setup.py
PYTHON_FIRST = (3, 10)
# glibc of RHEL 9, Amazon Linux 2023; Debian 12 and Ubuntu 22.04 have newer ones.
PLATFORM = f"manylinux_2_34_{platform.machine()}"


@dataclass(frozen=True)
class Target:
    python: str  # an interpreter
    tag: str  # of Python, as cp311
    torch: str  # the version that is built against, as 2.13.0

    @property
    def minor(self) -> str:
        return ".".join(self.torch.split(".")[:2])

    @property
    def name(self) -> str:
        return f"{self.tag}-torch{self.torch}"

    def wheel(self, version: str) -> str:
        """The file's name; `version` is the project's, without torch's."""
        return f"torch_cgx-{local(version, self.minor)}-{self.tag}-{self.tag}-{PLATFORM}.whl"


def local(version: str, minor: str) -> str:
    """The version of the wheels for one minor version of torch."""
    return f"{version}+torch{minor}"


def requirement(minor: str) -> str:
    """Which torch an extension fits that was built against 'minor'."""
    first, last = minor.split(".")
    return f"torch>={minor},<{first}.{int(last) + 1}"


def of_wheel(pyproject: str, minor: str) -> tuple[str, str]:
    """The text of pyproject.toml for wheels of one minor version of torch, and the project's own
    version.
    """
    versions = re.findall(r'^version = "([0-9.]+)"$', pyproject, re.MULTILINE)
    torches = re.findall(r'"(torch>=[^"]*)"', pyproject)
    if len(versions) != 1 or len(torches) != 1:
        sys.exit(
            f"make wheels: pyproject.toml has the versions {versions} and requires {torches}; "
            "needed: one of each"
        )
    text = pyproject.replace(f'version = "{versions[0]}"', f'version = "{local(*versions, minor)}"')
    return text.replace(f'"{torches[0]}"', f'"{requirement(minor)}"'), versions[0]


def check_torch(version: str) -> None:
    found = re.fullmatch(r"(\d+)\.(\d+)\.\d+", version)
    if found is None or not TORCH_FIRST <= (int(found[1]), int(found[2])) <= TORCH_LAST:
        first, last = (".".join(map(str, v)) for v in (TORCH_FIRST, TORCH_LAST))
        sys.exit(
            f"make wheels: TORCHES has {version!r}; allowed: versions of torch from {first} to "
            f"{last} with three numbers, as 2.13.0"
        )


def python_tag(python: str) -> str:
    """ "cp311" of an interpreter."""
    script = "import sys; print(sys.implementation.name, *sys.version_info[:2])"
    command = shutil.which(python)
    done = command and subprocess.run([command, "-c", script], capture_output=True, text=True)
    if not done or done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] if done else ["there is no such command"]
        sys.exit(f"make wheels: PYTHONS has {python!r}, which does not start: {''.join(said)}")
    kind, major, minor = done.stdout.split()
    if kind != "cpython" or (int(major), int(minor)) < PYTHON_FIRST:
        first = ".".join(map(str, PYTHON_FIRST))
        sys.exit(
            f"make wheels: PYTHONS has {python!r}, which is {kind} {major}.{minor}; allowed: "
            f"cpython from {first} on"
        )
    return f"cp{major}{minor}"


def targets(pythons: list[str], torches: list[str]) -> list[Target]:
    """Every Python with every torch. Two that would have the same name are an error."""
    for torch in torches:
        check_torch(torch)
    found: dict[tuple[str, str], Target] = {}
    for python in pythons:
        tag = python_tag(python)
        for torch in torches:
            one = Target(python, tag, torch)
            if (tag, one.minor) in found:
                sys.exit(
                    f"make wheels: two wheels for {tag} and torch {one.minor} are asked for; "
                    "allowed: one interpreter of each version, one torch of each minor version"
                )
            found[tag, one.minor] = one
    return [*found.values()]
