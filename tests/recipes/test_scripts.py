"""The shell scripts of examples/recipes: what shellcheck says of them, and what they say of wrong
arguments.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.recipes.running import RECIPES, needs_recipes, python

SCRIPTS = sorted(RECIPES.glob("*.sh"))


def _say(*command: str | Path, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=30
    )
    return done.returncode, done.stdout + done.stderr


@needs_recipes
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script):
    assert _say(Path(python()).parent / "shellcheck", script) == (0, "")


@needs_recipes
def test_shellcheck_finds_a_missing_quote(tmp_path):
    worse = tmp_path / "torchrun.sh"
    text = (RECIPES / "torchrun.sh").read_text()
    worse.write_text(text.replace('"$meeting"', "$meeting"))
    status, said = _say(Path(python()).parent / "shellcheck", worse)
    assert status == 1 and "SC2086" in said


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_started(script):
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["torchrun.sh"], "usage: "),
        (["torchrun.sh", "host1:29400"], "usage: "),
        (["torchrun.sh", "train.py", "--steps"], "HOST:PORT SCRIPT"),
        (["mpirun.sh"], "usage: "),
        (["mpirun.sh", "hostfile"], "HOSTFILE COMMAND"),
        (["mpirun.sh", "/nowhere", "true"], "cannot read the hostfile /nowhere; "),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(command, words):
    status, said = _say(RECIPES / command[0], *command[1:])
    assert status == 2 and words in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("HOSTS", "RANKS", "RESTARTS")
        for value in ("two", "0x2", "-1", "1 2")
    ]
    + [("HOSTS", "0"), ("RANKS", "0")],
)
def test_numbers_that_are_none_are_refused(name, value):
    status, said = _say(RECIPES / "torchrun.sh", "host1:29400", "train.py", **{name: value})
    assert status == 2 and f"{name}={value}; allowed: " in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "words"), [("", "no mpirun on the PATH"), ("echo HYDRA", "is not Open MPI's")]
)
def test_mpirun_of_another_kind_is_refused_in_one_line(tmp_path, program, words):
    for name in ("bash", "id"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    if program:
        (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "mpirun").chmod(0o755)
    hosts = RECIPES / "hostfile"
    status, said = _say(RECIPES / "mpirun.sh", hosts, "true", PATH=str(tmp_path))
    assert status == 2 and words in said and said.count("\n") == 1
