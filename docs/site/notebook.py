"""A Jupyter notebook, with the outputs that it was saved with, as a Markdown page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def markdown(path: Path) -> str:
    """The page. Code and printed text become blocks; pictures go into the page as data."""
    notebook = json.loads(path.read_text())
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        return [text]
    return [_block(text, "python"), *map(_output, cell["outputs"])]


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _block("".join(output["text"]), "text")
    if output["output_type"] == "error":
        raise ValueError(f"the notebook was saved with a failed cell: {output['evalue']}")
    data = output["data"]
    if "image/png" in data:
        return f"![Picture](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return _block("".join(data["text/plain"]), "text")


def _block(text: str, language: str) -> str:
    if "```" in text:
        raise ValueError(f"a cell has ``` in it: {text}")
    return f"```{language}\n{text.rstrip()}\n```"
