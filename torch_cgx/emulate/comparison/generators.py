"""Random numbers of a training: the generators of Python, NumPy and torch, seeded by a key."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_all(*key: int | str) -> None:
    """Seeds all three by the key: equal keys, equal numbers."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    torch.manual_seed(number)


def generator(*key: int | str) -> torch.Generator:
    """A generator of the CPU for the key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The program's own generators go on afterwards as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
