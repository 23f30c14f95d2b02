"""Bytes and errors of what a context keeps."""

from __future__ import annotations

import threading

import torch


class Ledger:
    """Counts of one entry of a context; those of threads that are in it together are added up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        self.bytes_saved = self.bytes_kept = 0
        self.errors: dict[str, float] = {}

    def add(self, saved: int, kept: int) -> None:
        with self._lock:
            self.bytes_saved += saved
            self.bytes_kept += kept

    def measure(self, name: str, values: torch.Tensor, decoded: torch.Tensor) -> None:
        """Notes the relative L2 error of decoded values; 0 of zeros that came back."""
        exact = values.detach().double()
        error = float((decoded.double() - exact).norm())
        norm = float(exact.norm())
        relative = error / norm if norm else (0.0 if error == 0 else float("inf"))
        with self._lock:
            self.errors[name] = max(relative, self.errors.get(name, 0.0))
