"""What bounded.save leaves of the file that was there: its owner, its mode, or all of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_cgx import bounded

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of other users")
USER, OTHER = 65534, 65533


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users may reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    save(path / "first", 0)  # what saving imports is imported as root
    (path / "first").unlink()
    yield path
    shutil.rmtree(path)


def save(path: Path | str, number: int) -> None:
    bounded.save({"a": number}, path, max_error=0)


def number(path: Path) -> int:
    return bounded.load(path)["a"]


@contextlib.contextmanager
def user(uid: int, gid: int) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def owner(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@ROOT_ONLY
def test_a_folder_that_may_not_be_listed(folder):
    inner = folder / "inner"
    inner.mkdir()
    os.chown(inner, USER, USER)
    save(inner / "a", 1)
    os.chown(inner / "a", USER, USER)
    inner.chmod(0o300)
    with user(USER, USER):
        with pytest.raises(PermissionError):
            os.listdir(inner)
        save(inner / "a", 2)
        save(inner / "b", 3)
        assert number(inner / "a") == 2
    assert number(inner / "b") == 3 and sorted(os.listdir(inner)) == ["a", "b"]


def test_an_error_of_the_folders_sync_is_a_warning(tmp_path, monkeypatch):
    """The new file has its place by then, and is on the disk."""
    whole = os.fsync

    def fails(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        whole(fd)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.warns(RuntimeWarning, match="/a is written, but its folder is not synced"):
        save(tmp_path / "a", 1)
    assert number(tmp_path / "a") == 1


@pytest.mark.parametrize("call", ["open", "fsync", "replace", "fchmod"])
def test_an_error_of_any_call_leaves_the_old_file(tmp_path, monkeypatch, call):
    save(tmp_path / "a", 1)

    def fails(*arguments, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            save(tmp_path / "a", 2)
    assert number(tmp_path / "a") == 1 and os.listdir(tmp_path) == ["a"]


@ROOT_ONLY
def test_a_file_stays_its_owners(folder):
    save(folder / "a", 1)
    os.chown(folder / "a", USER, OTHER)
    (folder / "a").chmod(0o600)
    save(folder / "a", 2)
    assert owner(folder / "a") == (USER, OTHER, 0o600)
    with user(USER, OTHER):
        assert number(folder / "a") == 2
        save(folder / "a", 3)
    assert owner(folder / "a") == (USER, OTHER, 0o600)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("group", "mode", "left"),
    [
        (OTHER, 0o660, (OTHER, OTHER, 0o660)),  # the saving user is of the file's group
        (0, 0o646, (OTHER, OTHER, 0o666)),  # of another, which gets the rights of all others
        (0, 0o664, (OTHER, OTHER, 0o644)),
    ],
)
def test_a_file_that_cannot_be_given_away_is_readable_for_its_owner(folder, group, mode, left):
    save(folder / "a", 1)
    os.chown(folder / "a", USER, group)
    (folder / "a").chmod(mode)
    with user(OTHER, OTHER):
        save(folder / "a", 2)
    assert owner(folder / "a") == left and number(folder / "a") == 2


@ROOT_ONLY
@pytest.mark.parametrize(("group", "mode"), [(0, 0o600), (0, 0o660), (OTHER, 0o606)])
def test_a_file_whose_owner_would_be_locked_out_is_not_replaced(folder, group, mode):
    save(folder / "a", 1)
    os.chown(folder / "a", USER, group)
    (folder / "a").chmod(mode)
    words = f"belongs to user {USER}, and its mode .* of a new file of user {OTHER}"
    with user(OTHER, OTHER), pytest.raises(PermissionError, match=words):
        save(folder / "a", 2)
    assert owner(folder / "a") == (USER, group, mode) and os.listdir(folder) == ["a"]
    assert number(folder / "a") == 1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", FileNotFoundError),
        ("new/", IsADirectoryError),
        ("new/.", FileNotFoundError),
        ("new/..", FileNotFoundError),
        ("there/", IsADirectoryError),
        ("there/.", IsADirectoryError),
        ("there/..", IsADirectoryError),
        (".", IsADirectoryError),
        ("none/../a", FileNotFoundError),
        ("none/a/", FileNotFoundError),
        ("/", IsADirectoryError),
        ("file/", IsADirectoryError),
        ("file/a", NotADirectoryError),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True], ids=["str", "bytes"])
def test_paths_that_name_no_file(tmp_path, monkeypatch, path, kind, as_bytes):
    """As open() has it."""
    (tmp_path / "work" / "there").mkdir(parents=True)
    (tmp_path / "work" / "file").touch()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(kind):
        open(path, "wb")
    with pytest.raises(kind):
        save(os.fsencode(path) if as_bytes else path, 1)
    assert sorted(os.listdir()) == ["file", "there"] and os.listdir(tmp_path) == ["work"]
