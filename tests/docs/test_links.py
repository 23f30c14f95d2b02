"""Links and file names in the documents lead somewhere."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, anchors

FOLDERS = "csrc|torch_cgx|cgx_utils|tests|benchmarks|examples|docs"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_resolve(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(found.read_text()), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(path):
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", path.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
    modules = re.findall(r"python (?:-m )?((?:benchmarks|examples|docs)[\w./]+)", path.read_text())
    for module in modules:
        file = module if module.endswith(".py") else module.replace(".", "/") + ".py"
        assert (ROOT / file).exists(), module


def test_every_document_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    for path in DOCUMENTS[1:]:
        assert f"]({path.relative_to(ROOT)})" in readme, path.name


def test_lines_fit():
    for path in DOCUMENTS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 125 or line.startswith("|"), f"{path.name}:{number}: {len(line)}"


def test_picture_is_a_png():
    picture = (ROOT / "docs" / "pictures" / "how_it_works.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and len(picture) > 10_000
