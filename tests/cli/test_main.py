"""How the command line finds commands and ends: statuses, one line for each error."""

import subprocess
import sys

import pytest

from tests.distributed import ROOT
from torch_cgx import __version__
from torch_cgx.cli import main as cli


def test_help_lists_every_command(capsys):
    assert cli(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("doctor", "bench", "advise", "simulate", "report"):
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
