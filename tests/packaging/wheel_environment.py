"""Environments for the tests of wheels: empty ones, into which packages of this one are linked."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

COMPILERS = ("gcc", "cc", "g++", "c++", "clang", "clang++", "make", "ninja", "nvcc", "mpicc")


def closure(names: list[str]) -> list[metadata.Distribution]:
    """Packages that are installed here, with all that they require."""
    found: dict[str, metadata.Distribution] = {}
    left = [*names]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another system or Python
        for line in found[name].requires or []:
            if "extra ==" not in line:
                left.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return [*found.values()]


class Environment:
    """A new environment with pip, the packages `names`, and no command but its own."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True, symlinks=True)
        self.python = folder / "bin/python"
        self.site = Path(
            sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        )
        for package in closure(names):
            for name in {path.parts[0] for path in package.files or []}:
                source, target = Path(str(package.locate_file(name))), self.site / name
                if not name.startswith((".", "_")) and not target.exists():
                    target.symlink_to(source)

    def copy_from(self, prefix: Path, name: str) -> None:
        """A package of another environment, with its commands and libraries."""
        (record,) = prefix.glob(f"lib/python*/site-packages/{name}-*.dist-info/RECORD")
        site = record.parents[1]
        for line in record.read_text().splitlines():
            path = (site / line.split(",")[0]).resolve()
            target = self.folder / path.relative_to(prefix.resolve())
            if path.is_file() and "__pycache__" not in path.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
                text = target.read_bytes()
                if text.startswith(b"#!" + str(prefix).encode()):  # a command's interpreter
                    target.write_bytes(
                        text.replace(str(prefix).encode(), str(self.folder).encode())
                    )

    def run(
        self, command: list[str], timeout: float = 180, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """With the environment's commands alone on the PATH."""
        path = str(self.folder / "bin")
        for name in COMPILERS:
            assert shutil.which(name, path=path) is None, name
        kept = ("HOME", "LANG", "TMPDIR", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        program = shutil.which(command[0], path=path) or command[0]
        return subprocess.run(
            [program, *command[1:]],
            env={**env, "PATH": path, **variables},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def pip(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = ["--isolated", "--no-index", "--disable-pip-version-check"]
        # Without what the machine adds to pip's settings, its folders of packages among them.
        command = [str(self.python), "-m", "pip", *words, *options]
        return self.run(command, PIP_CONFIG_FILE=os.devnull)
