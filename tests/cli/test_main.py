"""How the command line finds commands and ends: statuses, one line for each error."""

import os
import subprocess
import sys

import pytest

from tests import warm
from tests.distributed import ROOT
from torch_cgx import __version__, _build_info
from torch_cgx.cli import main as cli
from torch_cgx.cli.main import COMMANDS


def test_help_lists_every_command(capsys):
    assert cli(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("doctor", "bench", "advise", "simulate", "report", "link"):
        assert f"\n  {name} " in shown


def test_without_a_command_the_list_is_shown_and_the_status_is_2(capsys):
    assert cli([]) == 2
    assert capsys.readouterr().out.startswith("usage: cgx COMMAND")


def test_version(capsys):
    assert cli(["--version"]) == 0
    assert capsys.readouterr().out == f"torch_cgx {__version__}\n"


@pytest.mark.parametrize(
    "word, hint", [("docter", "; did you mean 'doctor'?"), ("nothing-like-it", "")]
)
def test_an_unknown_command_is_one_line(capsys, word, hint):
    assert cli([word]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"cgx: unknown command {word!r}{hint} (commands: doctor,")
    assert err.count("\n") == 1


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "torch_cgx", "nope"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cgx: unknown command 'nope'")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_examples_and_says_what_each_argument_is_for(capsys, name):
    assert cli([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  cgx {name}" in shown
    assert cli(["help", name]) == 0
    assert capsys.readouterr().out == shown


def test_help_of_all_has_examples_and_keeps_names(capsys):
    assert cli(["--help"]) == 0
    assert "examples:\n  cgx doctor" in capsys.readouterr().out
    assert cli(["bench", "--help"]) == 0
    assert "against gloo and NCCL." in capsys.readouterr().out


@pytest.mark.parametrize("words", [["bench"], ["simulate", "FILE"]])
def test_an_extension_that_does_not_load_is_one_line(monkeypatch, capsys, tmp_path, words):
    import torch

    import torch_cgx

    def fails():
        raise ImportError("this torch_cgx was built for\ntorch 2.12")

    file = tmp_path / "g.pt"
    torch.save({"w": torch.ones(4, 4)}, file)
    monkeypatch.setattr(_build_info, "load_engine", fails)
    monkeypatch.delitem(vars(torch_cgx), "_C", raising=False)
    monkeypatch.setattr(torch_cgx, "__getattr__", lambda name: fails())
    assert cli([str(file) if word == "FILE" else word for word in words]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"cgx {words[0]}: this torch_cgx was built for torch 2.12 (`cgx doctor`")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["doctor"], ["bench", "--help"]])
def test_a_reader_that_has_gone_and_a_full_disk(words):
    # The interpreter flushes at its end, which one command shows on a process of its own.
    python = [sys.executable] if words == ["--version"] else warm.python()
    command = [*python, "-m", "torch_cgx", *words]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith(b": cannot write the output: No space left on device\n")
    assert done.stderr.count(b"\n") == 1
