"""Files that are replaced at once, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_MOST_NAME = 255  # bytes of a name: no common file system takes more


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it becomes `path`, with the bits of the mode of a former one, when the body
    has ended and the bytes are on the disk. Until then the former file stays. OSError, before
    anything is written: `path` is a folder, a pipe, a device.

    After an exception nothing is left of it. A process that is killed leaves a file
    `.NAME.PID-XXXXXXXX.part` in the folder of `path`, which nobody reads.
    """
    target = os.path.realpath(os.fsdecode(path))  # a symbolic link stays one
    mode = _mode(path)
    folder, name = os.path.split(target)
    part = os.path.join(folder, _name_of_part(name))
    # Not by tempfile: its files are for their owner only, this one is as open() makes them.
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    _sync_folder(folder)


def _mode(path: Path) -> int | None:
    """The bits of the file's mode; None: there is no file. OSError: it is no regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
    return stat.S_IMODE(mode)


def _name_of_part(name: str) -> str:
    """A name beside `name`, which is cut to what fits: between letters, as some file systems refuse
    parts of one.
    """
    end = f".{os.getpid()}-{os.urandom(4).hex()}.part"
    kept = os.fsencode(name)[: _MOST_NAME - len(end) - 1]
    return f".{kept.decode(sys.getfilesystemencoding(), errors='ignore')}{end}"


def _sync_folder(folder: str) -> None:
    """The new name survives a power cut, too, where the file system can promise it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
