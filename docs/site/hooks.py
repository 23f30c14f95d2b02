"""What mkdocs does with the repository's documents on their way to pages.

README.md, CHANGELOG.md and the notebook become pages of the site; pictures that documents show from
outside of docs/ are added. Links between documents become links between pages, with the page's
title where a document says the file's name. Links to anything else in the repository lead to
`repo_url` of mkdocs.yml, or, without one, are plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import notebook  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
ASSETS = ("site.css", "iframe-worker.js")
# Of the repository -> of the site. Everything else in docs/ keeps its place.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "examples/tutorial.ipynb": "notebook.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
PICTURES = (".png", ".svg")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures whose sources are outside of docs/."""
    for source in PAGES:
        path = ROOT / source
        text = notebook.markdown(path) if path.suffix == ".ipynb" else path.read_text()
        files.append(File.generated(config, PAGES[source], content=text))
    for name in ASSETS:
        content = (ROOT / "docs" / "site" / name).read_text()
        files.append(File.generated(config, f"assets/{name}", content=content))
    shown = set()
    for file in files.documentation_pages():
        for _, _, target in LINK.findall(file.content_string):
            source = in_repository(file.src_uri, target)
            if source and source.endswith(PICTURES) and not source.startswith("docs/"):
                shown.add(source)
    for source in sorted(shown):
        content = (ROOT / source).read_bytes()
        files.append(File.generated(config, f"assets/{source}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes the document's links those of the site, and drops its marks for tests."""
    here = page.file.src_uri
    text = re.sub(r"^<!--.*?-->\n", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = "".join(deepened(text.splitlines(keepends=True)))
    return LINK.sub(lambda match: rewritten(match, here, config.repo_url), text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks cells with sentences in them, which site.css keeps from getting narrow on a phone."""
    return re.sub(r"<td>(.*?)</td>", marked, html)


def marked(cell: re.Match[str]) -> str:
    """A cell of a table, with a class if its text is long."""
    text = re.sub(r"<[^>]*>", "", cell[1])
    return f'<td class="long">{cell[1]}</td>' if len(text) > 45 else cell[0]


def deepened(lines: list[str]) -> Iterator[str]:
    """Lists as Python-Markdown wants them: contents indented by 4, where GitHub takes 2 or 3, and a
    blank line after an item of several paragraphs."""
    width = 0  # of the marker of the list that the line is in; 0: of none
    code = after_blank = paragraphs = False
    for line in lines:
        code ^= line.startswith("```")
        marker = re.match(r"([-*]|\d\d?\.) +", line)
        if marker and not code and (width or after_blank):
            if paragraphs and not after_blank:
                yield "\n"
            width, paragraphs = marker.end(), False
        elif after_blank and line.strip() and not line.startswith(" " * width):
            width, paragraphs = 0, False
        inside = width and not code and line.startswith(" " * width)
        paragraphs |= bool(inside and after_blank)
        yield " " * (4 - width) + line if inside else line
        after_blank = not line.strip()


def rewritten(match: re.Match[str], here: str, repository: str | None) -> str:
    """A link as it is on the site's page `here`."""
    mark, text, target = match.groups()
    path, hash_sign, anchor = target.partition("#")
    source = in_repository(here, path)
    if source is None:
        return match[0]  # elsewhere on the internet, or of this page; or wrong: mkdocs says so
    place = page_of(source)
    if place is None:
        return f"[{text}]({repository.rstrip('/')}/blob/main/{source})" if repository else text
    relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
    if text == path or text == posixpath.basename(path):
        text = title_of(source)
    return f"{mark}[{text}]({relative}{hash_sign}{anchor})"


def title_of(source: str) -> str:
    """The heading of a document; of other files the name."""
    found = source.endswith(".md") and re.match(r"# (.*)\n", (ROOT / source).read_text())
    return found[1] if found else posixpath.basename(source)


def in_repository(here: str, path: str) -> str | None:
    """The path in the repository of a link on a page; None if nothing is there."""
    if not path or ":" in path:
        return None
    start = posixpath.dirname(SOURCES.get(here, f"docs/{here}"))
    found = posixpath.normpath(posixpath.join(start, path))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def page_of(source: str) -> str | None:
    """The path in the site of a document or a picture of the repository; None for other files."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/") and (source.endswith((".md", *PICTURES))):
        return source.removeprefix("docs/")
    return f"assets/{source}" if source.endswith(PICTURES) else None
