"""The image: what is in it, and what a container of it does."""

from __future__ import annotations

import re

import pytest

from tests.distributed import ROOT
from tests.docker.image import Image

pytestmark = pytest.mark.slow


def test_it_runs_as_a_user_without_rights(demo: Image):
    done = demo.run(["id", "-u"])
    assert done.stdout == "10001\n"
    assert demo.run(["touch", "/opt/cgx/mine"]).returncode != 0


def test_the_default_command_finds_no_problem(demo: Image):
    done = demo.run(demo.config["Cmd"])
    assert done.returncode == 0, done.stdout
    assert re.search(r"torch_cgx +0\.1\.0\S*, /opt/cgx/lib/", done.stdout)
    assert re.search(r"shared memory +64 MiB free of 64 MiB", done.stdout)


def test_the_health_check_passes_also_with_a_launchers_variables(demo: Image):
    kind, *command = demo.config["Healthcheck"]["Test"]
    assert kind == "CMD" and command[-2:] == ["cgx", "doctor"]
    assert demo.run(command, env={"RANK": "1", "WORLD_SIZE": "2"}).returncode == 0


def test_the_health_check_fails_where_a_setting_cannot_work(demo: Image):
    command = demo.config["Healthcheck"]["Test"][1:]
    done = demo.run(command, env={"CGX_COMPRESSION_QUANTIZATION_BITS": "many"})
    assert done.returncode == 1 and "PROBLEM" in done.stdout


def test_there_is_neither_a_compiler_nor_what_the_build_left(demo: Image):
    present = {
        path.name
        for folder in ("bin", "local/bin")
        for path in (demo.root / "usr" / folder).iterdir()
    }
    assert {"python3", "setpriv", "limit-link"} <= present
    compilers = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|ld|as|make|ninja)(-\d+)?")
    assert not [name for name in present if compilers.fullmatch(name)]
    assert not (demo.root / "opt/cgx/bin/ninja").exists()
    for folder in ("var/lib/apt/lists", "root/.cache", "src", "opt/tools"):
        path = demo.root / folder
        assert not path.exists() or not list(path.iterdir()), folder
    for file in ("etc/pip.conf", "run/certificates.pem"):
        path = demo.root / file
        assert not path.exists() or not path.stat().st_size, file


def test_two_ranks_run_the_sample_of_the_readme(demo: Image):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    script = demo.root / "tmp/train.py"
    script.write_text(code[1])
    line = ["torchrun", "--standalone", "--nproc-per-node=2", "/tmp/train.py"]
    done = demo.run(line, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout
    assert "cgx: compressing 1 of 2 parameters" in done.stdout and "; shm" in done.stdout


@pytest.mark.parametrize(
    "env, user, command, said",
    [
        ({}, "0:0", [], "limit-link: no command"),
        ({}, None, ["true"], "limit-link: needs root"),
        ({"LINK_RATE": "fast"}, "0:0", ["true"], "LINK_RATE=fast; allowed: rates of tc"),
        ({"LINK_INTERFACE": "eth7"}, "0:0", ["true"], "limit-link: cannot limit eth7"),
    ],
)
def test_limit_link_refuses_what_cannot_work(demo: Image, env, user, command, said):
    done = demo.run(["limit-link", *command], env=env, user=user)
    assert done.returncode == 1 and said in done.stdout


def test_limit_link_limits_and_gives_up_its_rights(demo: Image):
    env = {"LINK_INTERFACE": "lo", "LINK_RATE": "3mbit"}
    script = (
        "id -u; echo $HOME; grep -E 'Cap(Eff|Bnd)|NoNewPrivs' /proc/self/status; "
        "tc qdisc show dev lo"
    )
    done = demo.run(["limit-link", "sh", "-c", script], env=env, user="0:0")
    uid, home, *status, shaped = done.stdout.splitlines()
    assert (uid, home) == ("10001", "/home/cgx")
    assert {line.split(":")[0]: int(line.split()[1], 16) for line in status} == {
        "CapEff": 0,
        "CapBnd": 0,
        "NoNewPrivs": 1,
    }
    assert "tbf" in shaped and "rate 3Mbit" in shaped
