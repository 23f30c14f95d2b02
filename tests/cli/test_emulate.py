"""`cgx emulate compare`: its table and files, going on, and what is refused."""

from __future__ import annotations

import csv
import json
import textwrap

import pytest

from tests import warm
from tests.distributed import ROOT
from torch_cgx.cli import main as cli
from torch_cgx.cli.emulate import _names
from torch_cgx.emulate.comparison import ranks

MODULE = """
import dataclasses
import pathlib

from tests.emulate.comparison import toy

def make():
    task = toy.task()

    def validate(model):
        if pathlib.Path("stop").exists():
            raise KeyboardInterrupt
        return task.validate(model)

    return dataclasses.replace(task, validate=validate)

def sees(data):
    return toy.task(name=data.name)

def other():
    return 3

def fails():
    return dataclasses.replace(toy.task(), loss=lambda model, batch: {}["words\\nmore"])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"tasks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def run(module, *words, factory="make"):
    return cli(["emulate", "compare", "--model", f"{module}:{factory}", "--seeds", "2", *words])


def test_table_and_files(module, tmp_path, capsys):
    words = ["--recipes", "fp32,mxfp4,cpd(4,3)+aps", "--steps", "3"]
    assert run(module, *words) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"{module}:make: 2 seeds, 3 steps of 8 samples, torch 2.")
    assert [line.split()[0] for line in lines[3:6]] == ["fp32", "mxfp4", "cpd(4,3)+aps"]
    assert len(shown.err.splitlines()) == 6  # no terminal: a line for each training
    out = tmp_path / f"emulate-{module}.make"
    files = {path.name for path in out.iterdir()}
    assert files == {"runs.jsonl", "table.csv", "table.json", "curves.png"}
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert [row["recipe"] for row in rows] == ["fp32", "mxfp4", "cpd(4,3)+aps"]
    # Nothing is trained, and the table is the same.
    assert run(module, *words) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (shown.out, "")
    assert run(module, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "table.json").read_text())
    assert found["rows"][1]["loss"] == float(rows[1]["loss"])


def test_an_interrupt_says_how_to_go_on(module, tmp_path, capsys):
    words = ["--recipes", "bf16", "--out", "o"]
    (tmp_path / "stop").touch()
    assert run(module, *words) == 130
    err = capsys.readouterr().err
    told = "interrupted; finished trainings are in o, and the same command goes on"
    assert err == f"cgx emulate: {told}\n"
    (tmp_path / "stop").unlink()
    assert run(module, *words) == 0
    assert run(module, *words, "--steps", "5") == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("cgx emulate: o/runs.jsonl is of other settings: steps is 4 there and 5")


def test_data_goes_to_the_factory(module, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    words = ["--recipes", "fp32", "--steps", "1", "--data", "mine"]
    assert run(module, *words, factory="sees") == 0
    assert "fp32" in capsys.readouterr().out


def test_ranks(module, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(ranks, "_PYTHON", warm.python())
    assert run(module, "--recipes", "cpd43+aps", "--ranks", "2") == 0
    assert "4 steps of 8 samples, 2 ranks, torch" in capsys.readouterr().out


def test_names():
    assert _names("fp32, cpd(4, 3)+aps,cpd30") == ["fp32", "cpd(4, 3)+aps", "cpd30"]


def test_without_matplotlib_the_table_is_there(module, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert run(module, "--recipes", "fp32", "--steps", "1") == 0
    shown = capsys.readouterr()
    assert "fp32" in shown.out
    assert "no curves.png: a picture needs matplotlib: pip install matplotlib" in shown.err


@pytest.mark.parametrize(
    "words, text, status",
    [
        (["--recipes", "mxfp9"], "recipe='mxfp9'; allowed: bf16, ", 1),
        (["--recipes", "bf16,,"], "recipes has ''; allowed: names of recipes", 1),
        (["--recipes", "mxfp4+aps"], "+aps is for recipes that sum gradients", 1),
        (["--seeds", "0"], "'0'; allowed: integers from 1", 2),
        (["--emulate-node", "0x3"], "'0x3'; allowed: integers from 1, or as 8x32", 2),
        (["--emulate-node", "9"], "emulate_node=9 and ranks=1 with batch=8; allowed: a batch", 1),
        (["--emulate-node", "4", "--batch", "2"], "emulate_node=4 and ranks=1 with batch=2", 1),
        (["--data", "nowhere"], "data nowhere: there is no such folder", 1),
        (["--data", "."], "data .: the factory has no argument named data", 1),
        (["--out", "/proc/none"], "--out /proc/none: No such file", 1),
        (["--model", "gtp"], "model gtp: allowed: gpt, digits, MODULE:FACTORY", 1),
        (["--model", "MINE:other"], "returned an object of type int; allowed: a torch_cgx.", 1),
        (["--model", "MINE:fails"], "recipe fp32, seed 0: KeyError: 'words", 1),
        (["--model", "MINE:missing"], "AttributeError: ", 1),
    ],
)
def test_errors_are_one_line(module, capsys, words, text, status):
    assert run(module, *(word.replace("MINE", module) for word in words)) == status
    error = capsys.readouterr().err
    assert error.startswith("cgx emulate") and text in error and error.count("\n") == 1


def test_digits_without_scikit_learn(module, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    assert run(module, "--model", "digits") == 1
    assert capsys.readouterr().err == (
        "cgx emulate: the digits come with scikit-learn: pip install scikit-learn\n"
    )
