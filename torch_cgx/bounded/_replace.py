"""Files that are replaced at once, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write; it becomes `path`, with the bits of the mode of a former one, when the body
    has ended and the bytes are on the disk. Until then the former file stays.

    After an exception nothing is left of it. A process that is killed leaves a file
    `.NAME.PID-XXXXXXXX.part` in the folder of `path`, which nobody reads.
    """
    target = os.path.realpath(path)  # a symbolic link stays one
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    folder, name = os.path.split(target)
    # A long name is cut, as file systems have a limit.
    part = os.path.join(folder, f".{name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.part")
    # Not by tempfile: its files are for their owner only, this one is as open() makes them.
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    _sync_folder(folder)


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
