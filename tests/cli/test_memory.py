"""`cgx memory`: what it prints, and how it fails."""

import json
import textwrap

import pytest

from torch_cgx.cli import main as cli

MODULE = """
import torch

class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(2, 8)
        self.first, self.act = torch.nn.Linear(8, 64), torch.nn.GELU()
        self.last = torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.last(self.act(self.first(self.words(x))))

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))

def with_batch():
    return make(), (torch.ones(3, 8),)

def embeds():
    return Gated()

def other():
    return 3

def fails():
    raise ZeroDivisionError("no data\\nmore")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"kept_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("words", [["make", "--batch", "3x8"], ["with_batch"]])
def test_json(module, capsys, words):
    function, *rest = words
    assert cli(["memory", "--model", f"{module}:{function}", *rest, "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert (found["total"], found["parameters"], found["gradients"]) == (144, 164, 164)
    assert found["by_kind"] == {"input of linear": 144}
    assert [row["module"] for row in found["rows"]] == ["0", "1"]
    assert found["peak"] >= 144 and output.err == ""


def test_text(module, capsys):
    assert cli(["memory", "--model", f"{module}:embeds", "--batch", "2x100:int64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == [
        "module",
        "words",
        "first",
        "act",
        "last",
        "total",
    ]
    # 200 indices of 8 bytes; inputs of 200 x 8 and 200 x 64 values, and as many for gelu.
    sizes = {line.split("  ")[0]: line for line in lines}
    assert sizes["input of linear"].split() == ["input", "of", "linear", "56.2", "KiB", "52.2", "%"]
    assert sizes["index"].split() == ["index", "1.56", "KiB", "1.4", "%"]
    assert lines[-3].endswith("activations.convert(model, activations=3)")
    assert lines[-2].endswith("activations.convert(model, linear=0.2)")
    assert lines[-1].split("  ")[-1].startswith("with activations.compress_saved(config=")
    assert any(line.startswith("peak of a step: ") for line in lines)


def test_depth_and_plot(module, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    words = ["--model", f"{module}:with_batch", "--depth", "0", "--plot", "out.png"]
    assert cli(["memory", *words]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("(model)")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["MODULE:make"], "returns no batch; allowed: --batch SHAPE, or a function"),
        (["MODULE:make", "--batch", "3x7"], "the model: RuntimeError: mat1 and mat2"),
        (["MODULE:make", "--batch", "3x"], "'3x'; allowed: SHAPE or SHAPE:DTYPE, as 8x128x768"),
        (["MODULE:make", "--batch", "3:complex64"], "'3:complex64'; allowed: SHAPE"),
        (["MODULE:make", "--batch", "3x8", "--depth", "-1"], "'-1'; allowed: integers from 0"),
        (["MODULE:other", "--batch", "3"], "returned an object of type int; allowed: a torch"),
        (["MODULE:fails", "--batch", "3"], "ZeroDivisionError: no data\n"),
        (["MODULE:missing", "--batch", "3"], "AttributeError: "),
        (["MODULE", "--batch", "3"], "allowed: MODULE:FACTORY, as in train:make_model"),
        (["MODULE:with_batch", "--plot", "missing/out.png"], "--plot missing/out.png: "),
    ],
)
def test_errors_are_one_line(module, capsys, words, text):
    words = [word.replace("MODULE", module) for word in words]
    assert cli(["memory", "--model", *words]) != 0
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
