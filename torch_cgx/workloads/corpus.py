"""A byte-level text corpus that every Python has: the source code of its own standard library; or
the text files of a folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

VOCABULARY = 256
EXCLUDED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def library_files(folder: Path) -> list[Path]:
    """The .py files below `folder`, without tests and installed packages, in sorted order."""
    found = []
    for where, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in EXCLUDED]
        found += [Path(where, name) for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def text_files(folder: Path) -> list[Path]:
    """The files below `folder` whose first 8192 bytes hold no zero, in sorted order, without hidden
    files and folders.
    """
    found = []
    for where, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        paths = (Path(where, name) for name in files if not name.startswith("."))
        found += [path for path in paths if _is_text(path)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _is_text(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would wait for a writer
            return False
        with path.open("rb") as file:
            return b"\0" not in file.read(8192)
    except OSError:
        return False


def load(megabytes: float, folder: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation bytes, uint8 [n] each: about `megabytes` (1e6) in all.

    Files spread evenly over the sorted list, so that no package dominates; the last tenth of each
    is for validation. Depends on the Python version only. Unreadable files are left out. Raises
    ValueError where `folder` (default: the standard library) has too little to split.
    """
    folder = Path(os.__file__).parent if folder is None else folder
    return _split(folder, library_files(folder), megabytes, ".py files")


def load_texts(folder: Path, megabytes: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of the `text_files` of a folder of one's own."""
    return _split(folder, text_files(folder), megabytes, "text files")


def _split(
    folder: Path, paths: list[Path], megabytes: float, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the files only those that are chosen are read."""
    paths = [path for path in paths if os.access(path, os.R_OK)]
    total = sum(path.stat().st_size for path in paths)
    share = min(1.0, megabytes * 1e6 / max(total, 1))
    chosen = [
        path.read_bytes() for i, path in enumerate(paths) if int((i + 1) * share) > int(i * share)
    ]
    train = b"".join(text[: len(text) - len(text) // 10] for text in chosen)
    val = b"".join(text[len(text) - len(text) // 10 :] for text in chosen)
    if not train or not val:
        raise ValueError(
            f"{folder} has {len(paths)} readable {kind}, {total} bytes; {megabytes} MB of it "
            f"leave {len(train)} bytes to train on and {len(val)} to validate"
        )
    return (
        torch.frombuffer(bytearray(train), dtype=torch.uint8),
        torch.frombuffer(bytearray(val), dtype=torch.uint8),
    )


def windows(
    text: torch.Tensor, starts: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and targets one byte later: int64 [len(starts), length] each."""
    index = starts[:, None] + torch.arange(length + 1, dtype=torch.int64, device="cpu")
    window = text[index].long()
    return window[:, :-1], window[:, 1:]


def unigram_entropy(text: torch.Tensor) -> float:
    """Entropy in nats of a byte drawn from `text`: the loss of a model that ignores the context."""
    p = torch.bincount(text.long(), minlength=VOCABULARY).double() / text.numel()
    p = p[p > 0]
    return float(-(p * p.log()).sum())
