"""Keeps compiled GPU kernels in a folder of the user, so that each is compiled once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from torch_cgx._warnings import warn

_TRAILER = hashlib.sha256().digest_size  # of a file: the hash of what precedes it


def cached(name: str, key: bytes, make: Callable[[], bytes]) -> bytes:
    """The result of `make`, from the folder if it is there. `key`: everything that the result
    depends on. `name`: the start of the file's name. Warns if the folder is not writable, or if
    other users may write to it.
    """
    file = folder() / f"{name}-{hashlib.sha256(key).hexdigest()}"
    code = _read(file)
    if code is None:
        code = make()
        _write(file, code)
    return code


def folder() -> Path:
    """The folder by the XDG Base Directory Specification, which ignores relative paths."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "torch_cgx"


def _check_folder(path: Path) -> None:
    """OSError if other users may write to the folder, and so choose the code that runs."""
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError("others may write there")


def _read(file: Path) -> bytes | None:
    """The content of a file; None if it is missing or damaged."""
    try:
        _check_folder(file.parent)
        code = file.read_bytes()
    except OSError:
        return None
    code, hashed = code[:-_TRAILER], code[-_TRAILER:]
    return code if hashlib.sha256(code).digest() == hashed else None


def _write(file: Path, code: bytes) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(file.parent)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(code + hashlib.sha256(code).digest())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        _warn_once(
            f"torch_cgx cannot keep its compiled GPU kernels in {file.parent} ({error}), so every "
            "process compiles them again; XDG_CACHE_HOME names another folder"
        )


@cache
def _warn_once(text: str) -> None:
    warn(text, RuntimeWarning)
