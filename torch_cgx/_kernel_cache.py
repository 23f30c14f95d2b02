"""Compiled GPU kernels in a folder of the user's, so that each is compiled once."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

_TRAILER = hashlib.sha256().digest_size  # of a file: the hash of what precedes it


def cached(name: str, key: bytes, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, or gave before. `key`: all that it depends on. `name`: how the file's
    name begins. Warns where the folder cannot be written, or others may write there.
    """
    file = folder() / f"{name}-{hashlib.sha256(key).hexdigest()}"
    code = _read(file)
    if code is None:
        code = make()
        _write(file, code)
    return code


def folder() -> Path:
    """As the XDG Base Directory Specification has it, which lets only absolute paths count."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "torch_cgx"


def _check_folder(path: Path) -> None:
    """OSError: others may write there, and so choose what runs."""
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError("others may write there")


def _read(file: Path) -> bytes | None:
    """None where there is none, or what is there is not what was written."""
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
            "process compiles them anew; XDG_CACHE_HOME names another folder"
        )


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
