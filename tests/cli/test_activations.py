"""`cgx activations table`: what it prints, writes and refuses."""

import argparse
import json
import sys

import numpy as np
import pytest

from torch_cgx.activations.tables.files import shipped
from torch_cgx.activations.tables.table import Table
from torch_cgx.cli import activations
from torch_cgx.cli.errors import CliError


def _run(*words):
    parser = argparse.ArgumentParser()
    activations.add_arguments(parser)
    return activations.run(parser.parse_args(["table", *map(str, words)]))


def test_text(capsys):
    assert _run("gelu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["code", "x", "above", "up", "to", "level"]
    table = shipped("gelu", 3)
    rows = [line.split() for line in lines[1:9]]
    assert [row[0] for row in rows] == [str(code) for code in range(8)]
    assert [row[1] for row in rows] == ["-inf", *(row[2] for row in rows[:-1])]
    assert [float(row[2]) for row in rows] == pytest.approx([*table.borders, np.inf], rel=1e-6)
    assert [float(row[3]) for row in rows] == pytest.approx(table.levels, rel=1e-6)
    assert lines[10:] == [
        "squared error, integrated over [-10, 10], weight uniform: 0.011898",
        "kept for backward: 0.375 bytes per value",
    ]


def test_json_and_parity(capsys):
    assert _run("tanh", "--bits", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    table = shipped("tanh", 2)
    assert found["borders"] == pytest.approx(table.borders)
    assert found["levels"] == pytest.approx(table.levels)
    assert (found["name"], found["bits"], found["parity"]) == ("tanh", 2, True)
    assert (found["weight"], found["domain"]) == ("uniform", [-10, 10])
    assert (found["error"], found["bytes_per_value"]) == (pytest.approx(0.03191, abs=1e-5), 0.25)
    assert _run("tanh", "--bits", 2, "--no-parity", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["parity"] and found["error"] == pytest.approx(0.11357, abs=1e-5)
    assert _run("tanh", "--bits", 1) == 0
    assert "code  |x| above" in capsys.readouterr().out


def test_weights_and_domains(capsys, tmp_path):
    x = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    found = []
    for weight in ("normal", tmp_path / "x.npy"):
        assert _run("silu", "--weight", weight, "--domain", -6, 6, "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["borders"] == list(
        Table.fit("silu", 3, weight="normal", domain=(-6, 6)).borders
    )
    assert found[1]["error"] == pytest.approx(found[0]["error"], rel=0.1)
    assert found[1]["domain"] == [-6, 6]


def test_a_function_of_a_module_here(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine_with_a_table.py").write_text("def square(x):\n    return x * x / 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert _run("mine_with_a_table:square", "--bits", 1, "--domain", 0, 1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["borders"]) == ("square", [0.5])
    assert found["levels"] == pytest.approx([0.25, 0.75])


def test_files(capsys, tmp_path):
    path, picture = tmp_path / "tables.npz", tmp_path / "gelu.png"
    assert _run("gelu", "--save", path, "--plot", picture) == 0
    assert _run("tanh", "--bits", 1, "--save", path, "--plot", tmp_path / "tanh.svg") == 0
    assert Table.load(path, "gelu", 3) == Table.fit("gelu", 3)
    assert Table.load(path, "tanh", 1).parity
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000
    assert "<svg" in (tmp_path / "tanh.svg").read_text()


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CliError, match="needs matplotlib: pip install matplotlib"):
        _run("gelu", "--plot", tmp_path / "a.png")


@pytest.mark.parametrize(
    "words, text",
    [
        (["gelux"], "function 'gelux'; allowed: celu, elu, .*, or MODULE:FUNCTION"),
        (["torch:none_such"], "^torch:none_such: AttributeError: module 'torch' has no"),
        (["no_such_module:f"], "ModuleNotFoundError: No module named 'no_such_module'"),
        (["torch:ones_like"], "^torch:ones_like: function: its result has no gradient"),
        (["torch:bmm"], "^torch:bmm: TypeError: "),
        (["gelu", "--parity"], "^gelu: parity=True with a derivative that is not even"),
        (["gelu", "--domain", "3", "-3"], r"domain=\(3.0, -3.0\); allowed: two finite numbers"),
        (["gelu", "--weight", "cauchy"], "--weight cauchy; allowed: uniform, normal, a .npy"),
        (["gelu", "--weight", "/none.npy"], "cannot read /none.npy: No such file"),
        (["gelu", "--save", "/none/a.npz"], "cannot write /none/a.npz: No such file"),
        (["gelu", "--plot", "/none/a.png"], "cannot write /none/a.png: No such file"),
        (["gelu", "--plot", "a.none"], "Format 'none' is not supported"),
    ],
)
def test_errors_are_one_line(words, text):
    with pytest.raises(CliError, match=text) as error:
        _run(*words)
    assert "\n" not in str(error.value)


def test_a_file_of_others_stays(tmp_path):
    path = tmp_path / "others.npz"
    np.savez(path, weights=np.ones(3))
    before = path.read_bytes()
    with pytest.raises(CliError, match="array 'weights'; allowed: names as gelu03-borders"):
        _run("gelu", "--save", path)
    assert path.read_bytes() == before
    path.with_suffix(".npy").write_bytes(b"text")
    with pytest.raises(CliError, match="others.npy: not an array of numbers"):
        _run("gelu", "--weight", path.with_suffix(".npy"))


@pytest.mark.parametrize("words", [["gelu", "--bits", "0"], ["gelu", "--bits", "x"], []])
def test_wrong_arguments(words, capsys):
    with pytest.raises(SystemExit) as end:
        _run(*words)
    assert end.value.code == 2
    capsys.readouterr()
