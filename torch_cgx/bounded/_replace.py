"""Files that are replaced at once, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

from torch_cgx._warnings import warn

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_MOST_NAME = 255  # bytes of a name: no common file system takes more


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it becomes `path`, with the owner and the mode of a former one, when the
    body has ended and the bytes are on the disk. Until then the former file stays.

    OSError, before anything is written: `path` is a folder, a pipe, a device, or names none.
    PermissionError: this process may not give the file to the owner of the former one, who could
    not read it then. After an exception nothing is left of it. A process that is killed leaves a
    file `.NAME.PID-XXXXXXXX.part` in the folder of `path`, which nobody reads.
    """
    _check_name(os.fsdecode(path))
    target = os.path.realpath(os.fsdecode(path))  # a symbolic link stays one
    former = _former(path)
    folder, name = os.path.split(target)
    part = os.path.join(folder, _name_of_part(name))
    with _opened(folder) as folder_fd:
        # Not by tempfile: its files are for their owner only, this one is as open() makes them.
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(fd, "wb") as file:
                if former is not None:
                    _take_over(fd, former, target)
                yield file
                file.flush()
                os.fsync(fd)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
        _sync(folder_fd, target)


def _check_name(path: str) -> None:
    """OSError, as of open(): no path, or one of a folder. realpath() would take its name."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    name = os.path.basename(path)
    os.stat(os.path.dirname(path if name else path.rstrip(os.sep)) or os.curdir)
    if name in ("", os.curdir, os.pardir):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _former(path: Path) -> os.stat_result | None:
    """Of the file that is there; None: there is none. OSError: it is no regular file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
    return found


def _take_over(fd: int, former: os.stat_result, path: str) -> None:
    """Owner and mode of the former file. Where only root may give a file away, it stays the
    caller's, if the former owner can read it all the same.
    """
    mode = stat.S_IMODE(former.st_mode)
    if not _give(fd, former.st_uid, former.st_gid):
        same_group = _give(fd, -1, former.st_gid)
        if not same_group:  # another group has the rights of all others, as before
            mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
        reads = mode & (stat.S_IRGRP if same_group else stat.S_IROTH)
        own = os.fstat(fd).st_uid
        if own != former.st_uid and mode & stat.S_IRUSR and not reads:
            raise PermissionError(
                errno.EPERM,
                f"the file belongs to user {former.st_uid}, and its mode {mode:04o} would lock "
                f"that user out of a new file of user {own}, who may not give it away",
                path,
            )
    os.fchmod(fd, mode)


def _give(fd: int, owner: int, group: int) -> bool:
    now = os.fstat(fd)
    if owner in (-1, now.st_uid) and group == now.st_gid:
        return True
    try:
        os.fchown(fd, owner, group)
    except OSError:  # not permitted, or no user of this namespace
        return False
    return True


def _name_of_part(name: str) -> str:
    """A name beside `name`, which is cut to what fits: between letters, as some file systems refuse
    parts of one.
    """
    end = f".{os.getpid()}-{os.urandom(4).hex()}.part"
    kept = os.fsencode(name)[: _MOST_NAME - len(end) - 1]
    return f".{kept.decode(sys.getfilesystemencoding(), errors='ignore')}{end}"


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int | None]:
    """The folder, to be synced; None: it may be written, not read. Before the file is replaced, as
    errors come too late after that.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _sync(folder: int | None, path: str) -> None:
    """The new name survives a power cut, too, where the file system can promise it. The new file
    has its place by now, so an error is a warning.
    """
    if folder is None:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            warn(
                f"{path} is written, but its folder is not synced ({error}): after a power cut the "
                "old file may be back",
                RuntimeWarning,
            )
