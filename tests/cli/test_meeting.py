"""Where the ranks of a command meet: what is wrong is said in one line, and soon."""

import os
import socket
import subprocess
import time

import pytest

from tests import warm
from tests.distributed import ROOT
from torch_cgx.cli import meeting
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.meeting import collect, meet

PLACE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"RANK": "x"}, "RANK=x: must be a whole number"),
        ({"RANK": "2"}, "RANK=2: must be below WORLD_SIZE=2"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: must be"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999: must be 0 to 65535"),
        ({"MASTER_PORT": ""}, "MASTER_PORT not set, and no launcher found"),
    ],
)
def test_wrong_variables_are_named_at_once(monkeypatch, changed, text):
    for name, value in {**PLACE, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CliError, match=text):
        meet(60)


@pytest.mark.parametrize(
    "changed, advised",
    [
        ({"MASTER_ADDR": "localhost", "GROUP_WORLD_SIZE": "2"}, True),
        ({"MASTER_ADDR": "127.0.1.1", "GROUP_WORLD_SIZE": "2"}, True),
        ({"MASTER_ADDR": "localhost", "GROUP_WORLD_SIZE": "1"}, False),
        ({"MASTER_ADDR": "localhost"}, False),
        ({"MASTER_ADDR": "10.1.2.3", "GROUP_WORLD_SIZE": "2"}, False),
        ({"MASTER_ADDR": "nowhere.invalid", "GROUP_WORLD_SIZE": "2"}, False),
    ],
)
def test_a_loopback_address_for_several_hosts_gets_advice(changed, advised):
    assert ("--local-addr ADDRESS" in meeting.loopback_advice(changed)) is advised


def test_a_name_may_get_its_address_later(monkeypatch):
    answers = [socket.gaierror(-2, "Name or service not known"), OSError(11, "again"), []]
    slept = []

    def ask(name, port):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(meeting.socket, "getaddrinfo", ask)
    monkeypatch.setattr(meeting.time, "sleep", slept.append)
    meeting._resolve("master-0", "rank 1 on b", 60)
    assert slept == [0.5, 0.5] and not answers
    for wrong in (socket.gaierror(-2, "unknown"), UnicodeError("label too long")):
        answers.append(wrong)
        with pytest.raises(CliError, match="rank 1 on b cannot resolve MASTER_ADDR=x"):
            meeting._resolve("x", "rank 1 on b", 60 if isinstance(wrong, UnicodeError) else 0)


def test_a_port_that_is_taken(monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for name, value in {**PLACE, "MASTER_PORT": f"{port}"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(CliError, match=f"MASTER_PORT={port} is in use there: set another one"):
            meet(60)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", ["bench", "doctor"])
def test_a_program_at_the_port_that_never_answers(command):
    with socket.create_server(("127.0.0.1", 0)) as other:
        env = {**os.environ, **PLACE, "RANK": "1", "MASTER_PORT": f"{other.getsockname()[1]}"}
        begin = time.monotonic()
        done = subprocess.run(
            [*warm.python(), "-m", "torch_cgx", command, "--timeout", "2"],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "within 2 s: no store of a rank 0 answers there; start all 2 ranks" in done.stderr
    assert time.monotonic() - begin < 30


def test_a_store_that_has_ended_is_one_line():
    class Ended:
        def wait(self, keys, limit):
            raise RuntimeError("Connection reset by peer")

        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(CliError, match="of 2 ranks, some did not answer within 1 s"):
        collect(Ended(), "x", 2, 1)
