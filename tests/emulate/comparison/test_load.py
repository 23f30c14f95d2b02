"""Tasks by name: factories of the user's, folders of data, and what is refused."""

from __future__ import annotations

import textwrap

import pytest

from torch_cgx.emulate.comparison import load

MODULE = """
from tests.emulate.comparison import toy

def make():
    return toy.task()

def with_data(data=None):
    return toy.task(name=f"toy {data.name if data else None}")

def with_any(**given):
    return toy.task(name=f"toy {sorted(given)}")

def other():
    return 3

def fails():
    raise ZeroDivisionError("no data\\nmore")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"tasks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_factories(module, tmp_path):
    assert load(f"{module}:make").name == "toy"
    assert load(f"{module}:with_data").name == "toy None"
    (tmp_path / "texts").mkdir()
    assert load(f"{module}:with_data", "texts").name == "toy texts"
    assert load(f"{module}:with_any", tmp_path / "texts").name == "toy ['data']"


@pytest.mark.parametrize(
    "name, data, text",
    [
        ("gtp", None, "model gtp: allowed: gpt, digits, MODULE:FACTORY, as in train:make_task"),
        ("MINE:", None, "model MINE:: allowed: gpt"),
        ("gpt", "missing", "data missing: there is no such folder"),
        ("digits", ".", r"data \.: digits has its own; allowed: with gpt or a factory"),
        ("MINE:make", ".", r"model MINE:make: data \.: the factory has no argument named"),
        ("MINE:other", None, "MINE:other returned an object of type int; allowed: a torch_cgx"),
        ("MINE:fails", None, "model MINE:fails: ZeroDivisionError: no data$"),
        ("MINE:missing", None, "model MINE:missing: AttributeError: module"),
        ("nowhere_at_all:make", None, "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_what_is_refused(module, name, data, text):
    with pytest.raises(ValueError, match=text.replace("MINE", module)) as error:
        load(name.replace("MINE", module), data)
    assert "\n" not in str(error.value)
