"""docs/configuration.md against the code: settings, limits, names, variables."""

from __future__ import annotations

import re

import pytest

import torch_cgx
from tests.docs import settings_table
from tests.docs.documents import DOCUMENTS, ROOT, marked, table
from torch_cgx import _C
from torch_cgx._environment import BUILD as BUILD_VARIABLES
from torch_cgx._environment import GONE, OTHERS

BUILD = set(BUILD_VARIABLES)

PAGE = (ROOT / "docs" / "configuration.md").read_text()
SETTINGS = {row["option"]: row for row in table(marked(PAGE, "settings"))}
TESTS = {
    f"CGX_TEST_{name}"
    for name in (
        "DOCKER",
        "DOCKER_WHEEL",
        "GPU",
        "HOSTS",
        "MPICH",
        "OPENMPI",
        "PENDING",
        "RECIPES",
        "SITE",
        "WARM",
        "WHEELS",
        "WRITE_GOLDEN",
    )
}


def test_the_table_is_the_extensions_list():
    command = "python -m tests.docs.settings_table --write"
    assert marked(PAGE, "settings") == settings_table.table(), f"run {command}"
    assert list(SETTINGS) == [row["name"] for row in _C.settings()]
    assert [row["name"] for row in _C.settings() if not row["compared"]] == ["log", "host_id"]


def test_allowed_integers_are_those_of_the_code():
    checked = 0
    for name, row in SETTINGS.items():
        limits = re.fullmatch(r"(\d+) to (\d+)(?:\^(\d+) - 1)?", row["allowed"])
        if limits is None:
            continue
        low, high = int(limits[1]), int(limits[2])
        if limits[3]:
            high = high ** int(limits[3]) - 1
        for value in (low, high):
            assert getattr(torch_cgx.Options(**{name: value}), name) == value
        for value in (low - 1, high + 1):
            with pytest.raises(ValueError, match=name):
                torch_cgx.Options(**{name: value})
        checked += 1
    assert checked == 10


def test_allowed_names_are_those_of_the_code():
    kinds = ("half", "codec", "rounding", "nonfinite", "collectives", "inner_communicator", "log")
    kinds += ("cross_communicator", "inner_reduction", "cross_reduction", "cuda_backend")
    for name in kinds:
        with pytest.raises(ValueError) as refused:
            torch_cgx.Options(**{name: "something else"})
        allowed = re.search(r"of ([\w, ]+)$", str(refused.value))
        assert allowed is not None, str(refused.value)
        words = re.findall(r"\w+", SETTINGS[name]["allowed"])
        assert set(re.findall(r"\w+", allowed[1])) == set(words) - {"list", "of", "or", "none"}


def test_every_variable_is_documented_and_exists():
    known = {row["variable"] for row in _C.settings()} | set(OTHERS) - BUILD
    gone = set(GONE)
    sources = [p for d in ("csrc", "torch_cgx", "cgx_utils") for p in (ROOT / d).rglob("*")]
    used = set()
    for path in sources:
        if path.suffix in {".cc", ".h", ".py"}:
            used |= set(re.findall(r'"(CGX_[A-Z_]*[A-Z])"', path.read_text()))
    assert used <= known | BUILD | gone, used - known
    for path in DOCUMENTS:
        named = set(re.findall(r"\bCGX_[A-Z_]+\b", path.read_text())) - {"CGX_HD"}  # a macro
        allowed = known | gone | BUILD | TESTS
        assert named <= allowed, (path.name, named - allowed)
    assert known | gone | BUILD <= set(re.findall(r"\bCGX_[A-Z_]+\b", PAGE))


def test_cpu_levels_are_those_of_the_code():
    (row,) = re.findall(r"^\| `CGX_CPU_LEVEL` \|.*$", PAGE, re.MULTILINE)
    documented = set(re.findall(r"`(\w+)`", row)) - {"CGX_CPU_LEVEL"}
    source = (ROOT / "csrc" / "codec" / "ops" / "level.cc").read_text()
    (listed,) = re.findall(r"kNames\[\] = \{(.*?)\};", source)
    names = set(re.findall(r'"(\w+)"', listed))
    assert documented == names >= set(_C.cpu_levels().split(","))
