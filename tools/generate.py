"""Writes what follows from the engine's declarations: the stub of torch_cgx.codecs, and in
torch_cgx/_C.pyi the errors and Options. Docstrings go along, for editors and for `make docs`,
which read stubs only.

    python tools/generate.py           # after a change of csrc/codec/families or of a setting
    python tools/generate.py --check   # fails where a file is not as it would be written

Needs the built extension.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from torch_cgx import _C, codecs  # noqa: E402

BEGIN, END = "# begin: made by tools/generate.py\n", "# end\n"
ERRORS = (
    "CgxError TimeoutError PeerLostError AbortedError MismatchError NonFiniteError ResourceError"
)
WIDTH = 96  # of a class's docstring
# By Setting::kind: what the constructor takes.
TYPES = {
    "integer": "int",
    "boolean": "bool",
    "switch": "bool | str",
    "choice": "str",
    "list": "str | Sequence[str]",
    "text": "str",
    "real": "float",
}
ATTRIBUTES = TYPES | {"list": "str"}


def codecs_stub() -> str:
    """torch_cgx/codecs.pyi: a class for each family."""
    text = """# Made by tools/generate.py from the engine's declarations.
from typing import Any

import torch

from torch_cgx import _C

class Codec:
    _engine: _C.Codec
"""
    text += "".join(_method_stub(name) for name in vars(codecs.Codec) if name[0] != "_") + "\n"
    for family in _C.families():
        if family["python"]:
            text += _class_stub(family)
    return text + (
        "def names() -> tuple[str, ...]: ...\ndef make(name: str, **params: Any) -> Codec: ...\n"
    )


def _method_stub(name: str) -> str:
    """As torch_cgx/codecs.py declares it: a stub beside a module hides the module's own types."""
    signature = inspect.signature(getattr(codecs.Codec, name))
    line = f"    def {name}{signature}: ...\n".replace("'", "")
    if len(line) <= 100:
        return line
    rows, star = "", False
    for row in signature.parameters.values():
        if row.kind is row.KEYWORD_ONLY and not star:
            rows, star = rows + "        *,\n", True
        rows += f"        {row},\n".replace("'", "")
    return f"    def {name}(\n{rows}    ) -> {signature.return_annotation}: ...\n"


def _class_stub(family: dict[str, Any]) -> str:
    rows = [p for p in family["parameters"] if p["kind"] != "integer" or p["low"] != p["high"]]
    text = f"class {family['python']}(Codec):\n"
    text += _docstring(getattr(codecs, family["python"]).__doc__)
    text += "    def __init__(\n        self,\n"
    for row in rows:
        default = '"' + row["value"] + '"' if row["type"] == "str" else repr(row["value"])
        text += f"        {row['name']}: {row['type']} = {default},\n"
    text += "    ) -> None: ...\n"
    for row in rows:
        text += f"    @property\n    def {row['name']}(self) -> {row['type']}: ...\n"
    return text + "\n"


def options_lines() -> str:
    """The keyword arguments of Options."""
    return "".join(
        f"        {row['name']}: {TYPES[row['kind']]} | None = None,\n" for row in _C.settings()
    )


def options_attributes() -> str:
    """The attributes of Options: None for a setting that was not given."""
    return "".join(
        f"    @property\n    def {row['name']}(self) -> {ATTRIBUTES[row['kind']]} | None: ...\n"
        for row in _C.settings()
    )


def options_docstring() -> str:
    """What `help(Options)` says first, then the settings."""
    lines = [_C.Options.__doc__.split("\n\nbits: ")[0], "", "Args:"]
    for row in _C.settings():
        when = "at each call" if row["per_call"] else "when the group is made"
        default = row["value"] if row["value"] != "" else "empty"
        said = f"{row['name']}: {row['meaning']}. Allowed: {row['allowed']}; default {default}. "
        said += f"{row['variable']}, read {when}."
        lines += textwrap.wrap(
            said.replace(",", ", ").replace(",  ", ", "),
            WIDTH,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
        )
    return _docstring("\n".join(lines))


def _docstring(text: str) -> str:
    """A docstring in a class; paragraphs with too long a line are filled anew."""
    parts = text.split("\n\n")
    long = [max(map(len, part.splitlines())) > WIDTH for part in parts]
    text = "\n\n".join(
        textwrap.fill(p, WIDTH) if too_long else p for p, too_long in zip(parts, long, strict=True)
    )
    return textwrap.indent(f'"""{text}\n"""\n', " " * 4)


def errors() -> str:
    """The classes of errors."""
    text = ""
    for name in ERRORS.split():
        made = getattr(_C, name)
        bases = ", ".join(base.__name__ for base in made.__bases__)
        ignored = "  # type: ignore[misc]" if name in bases else ""
        text += f'class {name}({bases}):{ignored}\n    """{made.__doc__}"""\n\n'
    return text


def between_marks(text: str, parts: list[str]) -> str:
    """The text with these parts, in their order, between its marks."""
    between = re.compile(f"({re.escape(BEGIN)}).*?( *{re.escape(END)})", re.DOTALL)
    if len(between.findall(text)) != len(parts):
        sys.exit(f"torch_cgx/_C.pyi: {len(parts)} pairs of marks are needed: {BEGIN}{END}")
    given = iter(parts)
    return between.sub(lambda found: found[1] + next(given) + found[2], text)


def files() -> dict[Path, str]:
    stub = ROOT / "torch_cgx" / "_C.pyi"
    made = [errors(), options_docstring(), options_lines(), options_attributes()]
    return {
        ROOT / "torch_cgx" / "codecs.pyi": codecs_stub(),
        stub: between_marks(stub.read_text(), made),
    }


def main() -> None:
    stale = [
        path for path, text in files().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"{names}: not as tools/generate.py writes it; run make generate")
        return
    for path in stale:
        path.write_text(files()[path])
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
