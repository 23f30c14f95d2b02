"""Data of the workloads beside what tests/examples has: folders of one's own, what is missing."""

from __future__ import annotations

import os
import sys

import pytest

from torch_cgx.workloads import corpus, digits


def test_texts_of_a_folder(tmp_path):
    (tmp_path / "b").mkdir()
    for name, content in {
        "b/two.txt": b"a" * 18 + b"bb",
        "one.md": b"c" * 9 + b"d",
        "picture.png": b"\x89PNG\0\0",
        ".hidden": b"x" * 100,
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "log").write_text("x" * 100)
    os.mkfifo(tmp_path / "pipe")
    assert [p.name for p in corpus.text_files(tmp_path)] == ["two.txt", "one.md"]
    train, val = corpus.load_texts(tmp_path, 1.0)
    assert bytes(train.tolist()) == b"a" * 18 + b"c" * 9
    assert bytes(val.tolist()) == b"bbd"


def test_a_folder_without_text_is_named(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=f"{tmp_path} has 0 readable text files, 0 bytes"):
        corpus.load_texts(tmp_path, 1.0)


def test_digits_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        digits.load()
