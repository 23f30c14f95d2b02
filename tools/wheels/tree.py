"""The tree that wheels are built from: the files of the source archive, and objects of former
builds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/wheels"
TREE = WORK / "tree"
LOG = ".ninja_log"  # the commands by which files were made


def archive(folder: Path) -> Path:
    """The source archive, made in `folder`."""
    command = ["setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    command += ["sdist", "--dist-dir", str(folder)]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"make wheels: the source archive fails:\n{done.stderr or done.stdout}")
    (found,) = folder.glob("*.tar.gz")
    return found


def update(tree: Path, source: Path) -> None:
    """Makes the files of `tree` those of `source`. A new one has the time that it has there, a file
    that is as it was keeps its time, so that neither is compiled without need; what builds have
    left in build/ stays.
    """
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in tree.rglob("*") if tree.exists() else ():
        name = path.relative_to(tree)
        if path.is_file() and name.parts[0] != "build" and name not in wanted:
            path.unlink()
    for name in wanted:
        text, target = (source / name).read_bytes(), tree / name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target)
        elif target.read_bytes() != text:
            target.write_bytes(text)


def take_objects(tree: Path, root: Path) -> None:
    """Copies what `make build` has compiled in `root`, so that `tree` compiles the rest only."""
    for made in (root / "build").glob("temp-*"):
        target = tree / "build" / made.name
        for path in made.rglob("*"):
            copy = target / path.relative_to(made)
            if path.is_dir() or path.name == "lock" or path.suffix == ".ninja":
                continue
            if path.name == LOG:
                copy.parent.mkdir(parents=True, exist_ok=True)
                older = copy.read_text() if copy.exists() else ""
                copy.write_text(older + path.read_text())  # of two lines for a file the last counts
            elif not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)


def make() -> str:
    """TREE as the sources are now. Returns pyproject.toml."""
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK, prefix="archive-") as scratch:
        with tarfile.open(archive(Path(scratch))) as packed:
            packed.extractall(Path(scratch) / "source", filter="data")
        (source,) = (Path(scratch) / "source").iterdir()
        text = (source / "pyproject.toml").read_text()
        update(TREE, source)
    take_objects(TREE, ROOT)
    return text


def prepare(pyproject: str) -> None:
    """For the next wheel: nothing of the one before is packed."""
    (TREE / "pyproject.toml").write_text(pyproject)
    for path in [*(TREE / "build").glob("lib*"), *(TREE / "build").glob("bdist*")]:
        shutil.rmtree(path)
    for path in TREE.glob("*.egg-info"):
        shutil.rmtree(path)
