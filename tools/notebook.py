"""Runs examples/tutorial.ipynb and compares what it prints with the outputs that it was saved with.

    python tools/notebook.py            # into build/tutorial.ipynb; status 1 where outputs differ
    python tools/notebook.py --write    # saves the outputs in the notebook

Texts must be equal but for numbers, which may differ as those of another CPU do; pictures must be
where they were. Needs nbclient and ipykernel (docs/requirements.txt): `make notebook`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"
BUILT = ROOT / "build" / "tutorial.ipynb"
SECONDS = 600  # for a cell
MOST_PICTURES = 150_000  # bytes, as they are in the file
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run(notebook: nbformat.NotebookNode) -> None:
    """Runs all cells; their outputs take the place of the old ones."""
    with tempfile.TemporaryDirectory(prefix="cgx-") as scratch:
        _run_in(Path(scratch), notebook)


def _run_in(scratch: Path, notebook: nbformat.NotebookNode) -> None:
    # Nothing of the kernel goes to the home directory, and the tree comes before what is installed.
    # One thread: several that share a busy core wait for each other most of the time.
    os.environ.update(
        OMP_NUM_THREADS="1",
        IPYTHONDIR=str(scratch),
        JUPYTER_RUNTIME_DIR=str(scratch),
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    )
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, coalesce_streams=True)
    # Sockets of files: nothing listens on the network.
    kernel = client.create_kernel_manager()
    kernel.transport, kernel.ip = "ipc", str(scratch / "socket")
    try:
        client.execute(cwd=str(scratch))
    except CellExecutionError as error:
        sys.exit(f"{NOTEBOOK.relative_to(ROOT)}: {error}")


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell shows; a picture is the text "picture"."""
    found = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            found.append(output.text)
        else:
            data = output.data
            found.append("picture" if "image/png" in data else data["text/plain"])
    return found


def differences(saved: nbformat.NotebookNode, now: nbformat.NotebookNode) -> list[str]:
    """Lines about outputs that differ by more than numbers of two CPUs do."""
    found = []
    for old, new in zip(saved.cells, now.cells, strict=True):
        before, after = texts(old), texts(new)
        same = len(before) == len(after) and all(map(alike, before, after))
        if not same:
            found.append(f"cell {old.id}: saved {before}, now {after}")
    return found


def alike(before: str, after: str) -> bool:
    """Equal but for numbers, and these within 30 % or 0.05 of each other."""
    if re.sub(r"\s+", " ", NUMBER.sub("#", before)) != re.sub(r"\s+", " ", NUMBER.sub("#", after)):
        return False
    pairs = zip(map(float, NUMBER.findall(before)), map(float, NUMBER.findall(after)), strict=True)
    return all(abs(a - b) <= max(0.3 * max(a, b), 0.05) for a, b in pairs)


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Outputs that must not be committed."""
    found = []
    pictures = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"cell {cell.id} writes on stderr: {output.text}")
            pictures += len(output.get("data", {}).get("image/png", ""))
        found += [
            f"cell {cell.id} shows a path: {text}"
            for text in texts(cell)
            if re.search(r"(?<!\w)/(home|root|work|tmp|usr)/", text)
        ]
    if pictures > MOST_PICTURES:
        found.append(f"pictures of {pictures} bytes; allowed: {MOST_PICTURES}")
    return found


def save(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Without what differs from machine to machine."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data.pop("text/plain", None)
    nbformat.write(notebook, path)


def main() -> None:
    saved = nbformat.read(NOTEBOOK, as_version=4)
    now = nbformat.read(NOTEBOOK, as_version=4)
    start = time.monotonic()
    run(now)
    BUILT.parent.mkdir(exist_ok=True)
    save(now, BUILT)
    wrong = problems(now)
    if "--write" not in sys.argv[1:]:
        wrong += differences(saved, now)
    if wrong:
        sys.exit("\n".join([*wrong, f"see {BUILT.relative_to(ROOT)}"]))
    if "--write" in sys.argv[1:]:
        save(now, NOTEBOOK)
    print(f"{NOTEBOOK.relative_to(ROOT)}: all cells ran, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
