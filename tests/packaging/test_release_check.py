"""tools/release_check.py, on a tree of its own: which parts run, and what the stamp says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import release_check as check


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a make that fails for the part that the file `bad` names."""
    for name in (".ci", "docker", "tools/wheels", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("docker/Dockerfile", "tools/wheels/names.py", "setup.py"):
        (tmp_path / name).write_text("1\n")
    make = tmp_path / "bin/make"
    make.write_text(f'#!/bin/sh\n[ "$2" != "$(cat {tmp_path}/bad 2>/dev/null)" ]\n')
    make.chmod(0o755)
    for name in set(check.NEEDS.values()):
        (tmp_path / "bin" / name).symlink_to(make)
    (tmp_path / ".gitignore").write_text("bad\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "STAMP", tmp_path / ".ci/released")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return tmp_path


def decided() -> dict[str, int]:
    return {part: check.main(["changed", part]) for part in check.PARTS}


def test_without_a_stamp_all_parts_run(tree: Path) -> None:
    assert set(decided().values()) == {0}


def test_a_part_runs_again_where_a_file_of_its_own_has_changed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["run"]) == 0
    head = git(tree, "rev-parse", "HEAD")
    lines = (tree / ".ci/released").read_text().splitlines()
    assert lines[1:] == [f"{part} {head}" for part in check.PARTS]
    assert set(decided().values()) == {3}
    assert f"has changed since {head[:12]}" in capsys.readouterr().out
    (tree / "docker/Dockerfile").write_text("2\n")  # not committed
    assert [part for part, status in decided().items() if status == 0] == ["docker-test"]
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "second")
    assert [part for part, status in decided().items() if status == 0] == ["docker-test"]
    assert check.main(["run", "docker-test"]) == 0
    second = git(tree, "rev-parse", "HEAD")
    commits = {**dict.fromkeys(check.PARTS, head), "docker-test": second}
    assert check.stamped() == commits
    assert set(decided().values()) == {3}
    assert check.main(["run", "no-part"]) == 2
    (tree / "docker/Dockerfile").write_text("3\n")
    (tree / "tools/wheels/new.py").write_text("3\n")  # not known to git
    assert {part for part, status in decided().items() if status == 0} == {
        "docker-test",
        "wheels-test",
    }


def test_a_part_that_fails_and_a_changed_tree_get_no_stamp(tree: Path) -> None:
    (tree / "bad").write_text("notebook")
    assert check.main(["run"]) == 1
    assert "notebook" not in (tree / ".ci/released").read_text()
    assert decided()["notebook"] == 0 and decided()["wheels-test"] == 3
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "stamp")
    stamp = (tree / ".ci/released").read_text()
    (tree / "bad").unlink()
    (tree / "setup.py").write_text("2\n")
    assert check.main(["run"]) == 0
    assert (tree / ".ci/released").read_text() == stamp


def test_a_commit_that_is_not_here_and_no_git_at_all(tree: Path) -> None:
    (tree / ".ci/released").write_text("notebook 0123456789012345678901234567890123456789\n")
    assert decided()["notebook"] == 0
    (tree / ".git").rename(tree / "elsewhere")
    assert set(decided().values()) == {0}


def test_every_path_exists_and_every_part_is_a_target() -> None:
    root = Path(__file__).resolve().parents[2]
    for part, paths in check.PARTS.items():
        for path in paths.split():
            assert (root / path).exists(), (part, path)
    makefile = (root / "Makefile").read_text()
    for part in check.PARTS:
        assert f"\n{part}:" in makefile
    assert check.main(["changed", "nothing"]) == 2
