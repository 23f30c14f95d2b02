"""The documentation site that `make docs` has built: CGX_TEST_SITE names its folder.

make docs && CGX_TEST_SITE=build/site .venv/bin/python -m pytest tests/docs/test_site.py
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.documents import DOCUMENTS, ROOT
from tests.docs.site import CHROMIUM, HtmlPage, Server, posted_by

SITE = Path(os.environ.get("CGX_TEST_SITE", "")).resolve()
pytestmark = pytest.mark.skipif(
    not os.environ.get("CGX_TEST_SITE"), reason="CGX_TEST_SITE does not name a built site"
)
SOURCES = {
    "index.html": ROOT / "README.md",
    "changes.html": ROOT / "CHANGELOG.md",
    **{f"{path.stem}.html": path for path in DOCUMENTS if path.parent == ROOT / "docs"},
}
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def pages() -> dict[str, HtmlPage]:
    found = {str(path.relative_to(SITE)): HtmlPage(path) for path in sorted(SITE.rglob("*.html"))}
    assert found, f"no page in {SITE}: run make docs"
    return found


def test_all_documents_are_pages(pages):
    others = {"notebook.html", "404.html"}
    assert {name for name in pages if "/" not in name} == set(SOURCES) | others


def test_links_lead_to_pages_and_headings(pages):
    broken = []
    for name, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("https", "data") or name == "404.html":  # served from any depth
                continue
            target = (SITE / name).parent / unquote(parts.path) if parts.path else SITE / name
            known = pages.get(os.path.relpath(target.resolve(), SITE))
            if not target.resolve().is_file() or not target.resolve().is_relative_to(SITE):
                broken.append(f"{name}: {link}")
            elif parts.fragment and known and unquote(parts.fragment) not in known.ids:
                broken.append(f"{name}: {link} (no such heading)")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(pages):
    outside = re.compile(r"^(\w+:)?//")
    loaded = [load for page in pages.values() for load in page.loads if outside.match(load)]
    assert not loaded
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\s\"']*(https?:)?//", style.read_text()), style


def test_search_knows_every_page(pages):
    index = json.loads((SITE / "search" / "search_index.json").read_text())
    known = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert known == set(pages) - {"404.html"}
    assert (SITE / "search" / "search_index.js").is_file()  # for pages opened as files


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_of_a_document_is_lost(pages, name):
    """Its tables and lists are tables and lists, and no Markdown is left in the text."""
    page = pages[name]
    lines = re.sub(r"```.*?```", "", SOURCES[name].read_text(), flags=re.DOTALL).splitlines()
    assert page.tables == sum(bool(re.match(r" *\|[-:| ]+\|$", line)) for line in lines)
    assert page.items == sum(bool(re.match(r" {0,4}([-*]|\d\d?\.) ", line)) for line in lines)
    left = re.findall(r"```.*|^\|.*|\]\(.*|:::.*|<!--.*|\*\*\w.*", page.text, re.MULTILINE)
    assert not left


def arguments_of(path: str, name: str) -> list[str]:
    """The parameters of a function, from its source: the site is made without importing it."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
            return [arg for arg in found if arg != "self"]
    raise AssertionError(name)


@pytest.mark.parametrize(
    "page, source, name, unexplained",
    [
        ("calls", "torch_cgx/_collectives.py", "all_reduce", {"group", "async_op"}),
        ("calls", "torch_cgx/_simulate.py", "simulate", set()),
        ("training", "cgx_utils/fsdp.py", "compress", {"model", "min_size"}),
        ("codecs", "torch_cgx/codecs.py", "encode", set()),
    ],
)
def test_arguments_are_explained(pages, page, source, name, unexplained):
    """A docstring's "name: text" is an entry of a definition list."""
    terms = pages[f"api/{page}.html"].terms
    assert set(arguments_of(source, name)) - unexplained <= terms


def test_every_public_name_is_in_the_api(pages):
    import cgx_utils
    import torch_cgx
    from torch_cgx import _C, codecs

    ids = set().union(*(page.ids for name, page in pages.items() if name.startswith("api/")))
    # Of the old torch_cgx, in compatibility.md.
    old = {
        name for name in torch_cgx.__all__ if name.startswith(("set_quant", "register_", "clear"))
    }
    # The names that torch had first; the page of each function has both.
    old |= {"all_gather_into_tensor", "reduce_scatter_tensor"}
    for name in {*torch_cgx.__all__, "launch.setup"} - old - {"__version__"}:
        assert f"torch_cgx.{name}" in ids or f"torch_cgx.{name}.make" in ids, name
    for name in codecs.__all__:
        assert f"torch_cgx.codecs.{name}" in ids, name
    for name in (
        *cgx_utils.__all__,
        "CGXState.report",
        "DiLoCo.sync",
        "fsdp.compress",
        "pipelining.compress",
    ):
        assert f"cgx_utils.{name}" in ids, name
    assert {row["name"] for row in _C.settings()} <= pages["api/options.html"].terms


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium (Debian: apt-get install chromium)"
)

LOOK = """<!doctype html><body><script>
const rest = () => new Promise((resolve) => setTimeout(resolve, 100));
async function look(page) {
  const frame = document.createElement("iframe");
  frame.width = WIDTHS[0]; frame.height = 800; frame.src = page;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; });
  // What moves to its place after a change of the width would still be on its way.
  const still = frame.contentDocument.createElement("style");
  still.textContent = "* { transition: none !important; animation: none !important; }";
  frame.contentDocument.head.append(still);
  const results = [];
  for (const width of WIDTHS) {
    frame.width = width;
    await rest();
    results.push(seen(page, frame.contentWindow, width));
  }
  frame.remove();
  return results;
}
function seen(page, inside, width) {
  const found = [];
  for (const part of inside.document.querySelectorAll("article *, header *")) {
    const box = part.getBoundingClientRect();
    if (box.width === 0 || box.right <= width + 1) continue;
    let scrolls = false;
    for (let up = part.parentElement; up && up.tagName !== "BODY"; up = up.parentElement)
      scrolls ||= ["auto", "scroll", "hidden"].includes(inside.getComputedStyle(up).overflowX);
    if (!scrolls) found.push(`${part.tagName} "${part.textContent.trim().slice(0, 40)}"`);
  }
  const loads = inside.performance.getEntriesByType("resource").map((entry) => entry.name);
  const wide = inside.document.documentElement.scrollWidth;
  return { page, width, wide, found: found.slice(0, 5), loads };
}
(async () => {
  const results = [];
  for (const page of PAGES) results.push(...await look(page));
  await fetch("/results", { method: "POST", body: JSON.stringify(results) });
})();
</script>"""


@needs_chromium
def test_pages_fit_a_phone_and_a_desk(pages, tmp_path):
    """No page scrolls sideways: what is wider than the screen scrolls in itself."""
    site = shutil.copytree(SITE, tmp_path / "site")
    script = LOOK.replace("PAGES", json.dumps(sorted(pages))).replace(
        "WIDTHS", json.dumps([PHONE, DESK])
    )
    (site / "look.html").write_text(script)
    with Server(site) as server:
        results = posted_by(f"{server.url}/look.html", server, 90)
        assert len(results) == 2 * len(pages)
        for seen in results:
            assert seen["wide"] <= seen["width"] and not seen["found"], seen
            assert all(load.startswith(server.url) for load in seen["loads"]), seen


SEARCH = """<script>
addEventListener("load", () => setTimeout(async () => {
  document.querySelector("#__search").click();
  const input = document.querySelector(".md-search__input");
  input.focus();
  input.value = "trellis";
  input.dispatchEvent(new Event("keyup", { bubbles: true }));
  const results = () => [...document.querySelectorAll(".md-search-result__item h1")];
  for (let tries = 0; tries < 100 && !results().length; ++tries)
    await new Promise((resolve) => setTimeout(resolve, 100));
  const body = JSON.stringify(results().map((result) => result.textContent));
  fetch("URL/results", { method: "POST", mode: "no-cors", body });
}, 500));
</script></body>"""


@needs_chromium
@pytest.mark.parametrize("way", ["server", "file"])
def test_search_finds_pages(tmp_path, way):
    """Also without a server, in a page that is opened as a file."""
    site = shutil.copytree(SITE, tmp_path / "site")
    home = (site / "index.html").read_text()
    with Server(site) as server:
        script = SEARCH.replace("URL", server.url)
        (site / "search.html").write_text(home.replace("</body>", script))
        start = server.url if way == "server" else site.as_uri()
        titles = posted_by(f"{start}/search.html", server, 60)
    assert {"Numerics", "Choosing bits"} <= set(titles)
