"""A byte-level text corpus that every Python has: the source code of its own standard library."""

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


def load(megabytes: float, folder: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation bytes, uint8 [n] each: about `megabytes` (1e6) in all.

    Files spread evenly over the sorted list, so that no package dominates; the last tenth of each
    is for validation. Depends on the Python version only. Unreadable files are left out. Raises
    ValueError where `folder` (default: the standard library) has too little to split.
    """
    folder = Path(os.__file__).parent if folder is None else folder
    texts = []
    for path in library_files(folder):
        try:
            texts.append(path.read_bytes())
        except OSError:
            continue
    total = sum(map(len, texts))
    share = min(1.0, megabytes * 1e6 / max(total, 1))
    chosen = [t for i, t in enumerate(texts) if int((i + 1) * share) > int(i * share)]
    train = b"".join(text[: len(text) - len(text) // 10] for text in chosen)
    val = b"".join(text[len(text) - len(text) // 10 :] for text in chosen)
    if not train or not val:
        raise ValueError(
            f"{folder} has {len(texts)} readable .py files, {total} bytes; {megabytes} MB of it "
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
    index = starts[:, None] + torch.arange(length + 1)
    window = text[index].long()
    return window[:, :-1], window[:, 1:]


def unigram_entropy(text: torch.Tensor) -> float:
    """Entropy in nats of a byte drawn from `text`: the loss of a model that ignores the context."""
    p = torch.bincount(text.long(), minlength=VOCABULARY).double() / text.numel()
    p = p[p > 0]
    return float(-(p * p.log()).sum())
