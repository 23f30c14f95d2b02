"""The tree that wheels are built from: the files of the source archive, and objects of former
builds.
"""

from __future__ import annotations

import fcntl
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
    """Copies the files of `source` to `tree` and removes all others there, except those in build/.

    A file that is as it was keeps its time, or gets that of `source` if that is newer; a new one
    has that of `source`. So an object of either tree that is older than its source stays older.
    """
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in tree.rglob("*") if tree.exists() else ():
        name = path.relative_to(tree)
        if path.is_file() and name.parts[0] != "build" and name not in wanted:
            path.unlink()
    for name in wanted:
        file, target = source / name, tree / name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        elif target.read_bytes() != file.read_bytes():
            target.write_bytes(file.read_bytes())
        elif target.stat().st_mtime < file.stat().st_mtime:
            shutil.copystat(file, target)


def take_objects(tree: Path, root: Path) -> None:
    """Copies what `make build` has compiled in `root`, so that `tree` compiles the rest only."""
    for made in (root / "build").glob("temp-*"):
        with open(made / "lock", "a") as lock:  # as build_engine does
            fcntl.flock(lock, fcntl.LOCK_SH)
            copied = _take(tree / "build" / made.name, made)
            _take_log(tree / "build" / made.name / LOG, made / LOG, copied)


def _take(target: Path, made: Path) -> set[str]:
    """Copies files that are newer than those of `target`: their names, as ninja has them."""
    copied = set()
    for path in made.rglob("*"):
        copy = target / path.relative_to(made)
        if path.is_dir() or path.name in ("lock", LOG) or path.suffix == ".ninja":
            continue
        if not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
            copied.add(f"build/{made.name}/{path.relative_to(made)}")
    return copied


def _take_log(target: Path, log: Path, copied: set[str]) -> None:
    """Adds the lines of what was copied: of two lines for a file ninja takes the last."""
    if not log.exists():
        return
    head, *lines = log.read_text().splitlines()
    wanted = [line for line in lines if "\t" in line and line.split("\t")[3] in copied]
    older = target.read_text().splitlines() if target.exists() else [head]
    target.write_text("\n".join([*older, *wanted, ""]))


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
