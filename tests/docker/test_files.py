"""The files of docker/ as linters and schemas see them. `make docker-test` brings these tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"
SCRIPTS = ["docker/limit-link", "tests/docker/container.sh"]
COMPOSE_FILES = ["docker/compose.yaml", "docker/compose.cuda.yaml"]


def tool(name: str) -> str:
    """A linter, beside the interpreter or on the PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        text = f"no {name}: make docker-test brings it"
        if os.environ.get("CGX_TEST_DOCKER") == "1":
            pytest.fail(text)
        pytest.skip(text)
    return found


def lint(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_hadolint_finds_nothing():
    done = lint(tool("hadolint"), DOCKERFILE)
    assert done.returncode == 0, done.stdout
    ignored = set(re.findall(r"ignore=(\w+)", DOCKERFILE.read_text()))
    # The base is an argument; Debian's archive drops old versions; a list of packages is split.
    assert ignored == {"DL3006", "DL3008", "SC2086"}


def test_hadolint_finds_an_unpinned_package(tmp_path):
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("-c /opt/constraints.txt ", ""))
    done = lint(tool("hadolint"), worse)
    assert done.returncode != 0 and "DL3013" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing(script):
    done = lint(tool("shellcheck"), script)
    assert done.returncode == 0, done.stdout


def parse(text: str):
    specification = pytest.importorskip("compose_spec", reason="make docker-test brings it")
    yaml = pytest.importorskip("yaml", reason="make docker-test brings it")
    # The parser does not know YAML's merge keys.
    return specification.PyCompose.from_json(json.dumps(yaml.safe_load(text)))


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_the_compose_specification_allows_the_file(file):
    assert len(parse((ROOT / file).read_text())) in (1, 2)
    with pytest.raises(Exception, match="shm_sizes"):
        parse((ROOT / file).read_text().replace("shm_size:", "shm_sizes:"))


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_docker_compose_takes_the_file(file):
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose (Debian: apt-get install docker-compose)")
    done = lint(program, "-f", file, "config", "--quiet")
    assert done.returncode == 0, done.stderr


def test_the_label_is_the_packages_version():
    label = re.search(r'image\.version="([^"]+)"', DOCKERFILE.read_text())
    package = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert label is not None and package is not None and label[1] == package[1]


def test_the_user_at_the_end_of_each_image_has_no_rights():
    for stage in re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)[2:]:
        assert re.findall(r"^USER (.*)$", stage, re.MULTILINE)[-1] == "10001:10001", stage


def test_the_context_has_all_that_the_build_copies_and_no_builds():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert {
        "csrc",
        "torch_cgx",
        "cgx_utils",
        "examples",
        "constraints.txt",
        "docker/limit-link",
    } <= taken
    for path in taken - {"dist/*.whl", "build_*.py"}:
        assert (ROOT / path).exists(), path
    assert {"**/*.so", "torch_cgx/_build_info.*.json"} <= set(lines)
