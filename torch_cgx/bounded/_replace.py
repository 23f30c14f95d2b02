"""Files that are replaced as a whole, or not at all."""

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
_MOST_NAME = 255  # bytes of a file's name: the limit of common file systems


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write. When the body has ended and the bytes are on the disk, it becomes `path`,
    with the owner and the mode of a former file. Until then the former file stays.

    OSError, before anything is written: `path` is a folder, a pipe or a device, or its folder does
    not exist. PermissionError: this process may not give the file to the owner of the former one,
    who could not read it then. After an exception, the new file is removed. A process that is
    killed leaves an unused file `.NAME.PID-XXXXXXXX.part` in the folder of `path`.
    """
    _check_name(os.fsdecode(path))
    target = os.path.realpath(os.fsdecode(path))  # a symbolic link is not replaced
    former = _former(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, _temporary_name(name))
    with _opened(folder) as folder_fd:
        # Not by tempfile, whose files only their owner can read: the mode is as of open().
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(fd, "wb") as file:
                if former is not None:
                    _take_over(fd, former, target)
                yield file
                file.flush()
                os.fsync(fd)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync(folder_fd, target)


def _check_name(path: str) -> None:
    """OSError, as of open(): the path is empty or a folder's, or its folder does not exist.
    (realpath() accepts all of these.)
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    name = os.path.basename(path)
    os.stat(os.path.dirname(path if name else path.rstrip(os.sep)) or os.curdir)
    if name in ("", os.curdir, os.pardir):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def _former(path: Path) -> os.stat_result | None:
    """stat() of the file at `path`, or None if none exists. OSError: it is not a regular file."""
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
    """Gives the new file the owner and the mode of the former one. Where this process may not
    change the owner, the caller keeps the file, provided that the former owner can read it.
    """
    mode = stat.S_IMODE(former.st_mode)
    if not _give(fd, former.st_uid, former.st_gid):
        same_group = _give(fd, -1, former.st_gid)
        if not same_group:  # the new file's group gets the rights that it had as one of "others"
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


def _temporary_name(name: str) -> str:
    """The name of the temporary file for `name`, cut to what fits: between characters, as some file
    systems refuse incomplete ones.
    """
    end = f".{os.getpid()}-{os.urandom(4).hex()}.part"
    kept = os.fsencode(name)[: _MOST_NAME - len(end) - 1]
    return f".{kept.decode(sys.getfilesystemencoding(), errors='ignore')}{end}"


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int | None]:
    """The open folder, to be synced; None if this process may not read it. It is opened before the
    file is replaced, as an error after that would come too late.
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
    """Makes the new name survive a power cut, where the file system supports that. The file has
    been replaced already, so an error becomes a warning.
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
