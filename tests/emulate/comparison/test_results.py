"""The file of a sweep: what is kept, cut lines, and files of other settings."""

from __future__ import annotations

import json

import pytest

from torch_cgx.emulate.comparison.results import Results, differences

SETTINGS = {"model": "toy", "steps": 4, "facts": {"train": 24}}


def run(recipe="fp32", seed=0, **more):
    return {"recipe": recipe, "seed": seed, "definition": recipe, "loss": 1 / 3, **more}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "new" / "runs.jsonl"
    with Results(path, SETTINGS) as results:
        for seed in range(3):
            results.add(run(seed=seed))
    return path


def test_runs_are_found_again(path):
    with Results(path, SETTINGS) as results:
        assert results.find("fp32", 1) == run(seed=1)
        assert results.find("fp32", 3) is None and results.find("bf16", 1) is None
        results.add(run("bf16", 1))
        assert results.find("bf16", 1) == run("bf16", 1)
    assert len(path.read_text().splitlines()) == 5


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_cut_line_is_removed(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Results(path, SETTINGS) as results:
        assert [one["seed"] for one in results.runs] == [0, 1]
        results.add(run(seed=2))
    assert path.read_bytes() == whole


def test_a_cut_first_line_begins_anew(path):
    path.write_bytes(path.read_bytes()[:20])
    with Results(path, SETTINGS) as results:
        assert results.runs == []
    assert json.loads(path.read_text()) == {"settings": SETTINGS}


def test_other_settings_are_named(path):
    before = path.read_bytes()
    other = {"model": "toy", "steps": 8, "facts": {"train": 25}, "ranks": 2}
    with pytest.raises(ValueError) as error:
        Results(path, other)
    assert (
        "is of other settings: steps is 4 there and 8 here; facts.train is 24 there and 25 here; "
        "ranks is null there and 2 here; allowed: the same, or another folder"
    ) in str(error.value)
    assert path.read_bytes() == before


def test_other_settings_without_runs_are_replaced(tmp_path):
    path = tmp_path / "runs.jsonl"
    Results(path, SETTINGS).close()
    with Results(path, {"steps": 8}) as results:
        results.add(run())
    assert json.loads(path.read_text().splitlines()[0]) == {"settings": {"steps": 8}}


@pytest.mark.parametrize(
    "text, line", [("words\n", 1), ('{"settings": {}}\n[1]\n', 2), ('{"a": 1}\n', 1)]
)
def test_another_file_is_refused(tmp_path, text, line):
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"runs.jsonl, line {line}: not of a comparison"):
        Results(path, {})
    assert path.read_text() == text


def test_two_processes_do_not_write_one_file(path):
    with Results(path, SETTINGS):
        with pytest.raises(ValueError, match="another process writes .*; allowed: another folder"):
            Results(path, SETTINGS)
    Results(path, SETTINGS).close()


def test_without_a_path_runs_are_in_memory():
    with Results(None, SETTINGS) as results:
        results.add(run())
        assert results.find("fp32", 0) == run()


def test_differences():
    assert differences({"a": [1], "b": {"c": 1}}, {"a": [1], "b": {"c": 1}}) == []
    assert differences({"a": 1}, "fp32", "mine") == ['mine is {"a": 1} there and "fp32" here']
