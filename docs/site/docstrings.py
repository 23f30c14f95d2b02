"""Turns the docstrings of torch_cgx into Markdown: an extension of griffe, which reads the sources.

A docstring names arguments as in "tensors: CPU, fp32. op, layers: as in `all_reduce`.", in a
paragraph of its own or with a line for each; or under "Args:", as in torch_cgx.codecs. Both become
definition lists. Only names that the signature (or the class) has count as arguments.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

NAMES = r"`?[a-z_]\w*`?(?:(?:, | and )`?[a-z_]\w*`?)*"
VARIABLE = re.compile(r"(?<![`\w])((?:CGX|TORCH)_\w+)(?!`)")
SECTION = re.compile(r"^(Args|Raises|Returns):\n((?:[ ]{4,}.*\n?|\n)+)", re.MULTILINE)
TITLES = {"Args": "", "Raises": "**Raises**\n\n", "Returns": "**Returns** "}


class Docstrings(griffe.Extension):
    """Rewrites all docstrings of a package when its sources and stubs have been read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        rewrite(pkg)


def rewrite(obj: griffe.Object) -> None:
    """Makes Markdown of the docstrings of an object and of its members."""
    if obj.docstring is not None:
        obj.docstring.value = to_markdown(obj.docstring.value, known_names(obj))
    for member in obj.members.values():
        if not member.is_alias:
            rewrite(member)


def known_names(obj: griffe.Object) -> set[str]:
    """Names that a docstring of this object may explain."""
    if isinstance(obj, griffe.Function):
        return {parameter.name for parameter in obj.parameters}
    if isinstance(obj, griffe.Class):
        names = {name for name, member in obj.members.items() if member.is_attribute}
        made = obj.members.get("__init__")
        return names | (known_names(made) if isinstance(made, griffe.Function) else set())
    return set()


def to_markdown(text: str, names: set[str]) -> str:
    """The docstring, cleaned of its indentation, as Markdown."""
    text = re.sub(r":(?:func|class|meth):`([^`]*)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"\(docs/(\w+)\.md(, [^)]*)?\)", r"([\1](../\1.md)\2)", text)
    text = re.sub(r"\bdocs/(\w+)\.md", r"[\1](../\1.md)", text)
    text = SECTION.sub(_section, text)
    return "\n\n".join(_paragraph(part, names) for part in _paragraphs(text))


def _section(match: re.Match[str]) -> str:
    title, body = match[1], textwrap.dedent(match[2]).strip()
    if title == "Returns":
        return f"{TITLES[title]}{body}\n\n"
    items = re.split(r"\n(?=\S)", body)
    rows = [(item.partition(":")[0], item.partition(":")[2]) for item in items]
    return TITLES[title] + _definitions(rows) + "\n\n"


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n{2,}", text.strip("\n")) if part.strip()]


def _paragraph(part: str, names: set[str]) -> str:
    """A paragraph with its explained names as a definition list."""
    if part.startswith(("    ", ":   ")) or "\n:   " in part:
        return part
    flat = " ".join(line.strip() for line in part.splitlines())
    found = [
        match
        for match in re.finditer(rf"(?:^|(?<=[.;] ))({NAMES}): ", flat)
        if set(re.findall(r"\w+", match[1].replace(" and ", " "))) <= names
    ]
    if not found:
        return VARIABLE.sub(r"`\1`", part)
    ends = [match.start() for match in found[1:]] + [len(flat)]
    rows = [(m[1], flat[m.end() : end].strip(" ;")) for m, end in zip(found, ends, strict=True)]
    before = flat[: found[0].start()].strip()
    # What is said of the others is not part of what is said of the last one.
    name, said = rows[-1]
    said, rest = re.match(r"(.*?)((?<=\. )Other arguments .*)?$", said).groups()
    rows[-1] = name, said
    return "\n\n".join(filter(None, (before, _definitions(rows), rest)))


def _definitions(rows: list[tuple[str, str]]) -> str:
    """A definition list of Markdown."""
    lines = []
    for names, said in rows:
        terms = re.sub(r"\w+", lambda match: f"`{match[0]}`", names.replace("`", ""))
        text = VARIABLE.sub(r"`\1`", " ".join(said.split()))
        lines.append(f"{terms.replace('`and`', 'and')}\n\n:   {text}")
    return "\n\n".join(lines)
