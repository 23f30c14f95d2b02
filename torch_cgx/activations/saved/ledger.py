"""Bytes and errors of what a context keeps."""

from __future__ import annotations

import threading

import torch


class Ledger:
    """Counts of one entry of a context, which several threads may settle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes_saved = self.bytes_kept = 0
        self.errors: dict[str, float] = {}

    def add(self, saved: int, kept: int) -> None:
        with self._lock:
            self.bytes_saved += saved
            self.bytes_kept += kept

    def measure(self, label: str, values: torch.Tensor, decoded: torch.Tensor | None) -> None:
        """Notes the relative L2 error of decoded values; 0 for zeros that came back, and where
        `decoded` is None: the values are kept exactly.
        """
        relative = 0.0 if decoded is None else _relative_error(values, decoded)
        with self._lock:
            self.errors[label] = relative


def _relative_error(values: torch.Tensor, decoded: torch.Tensor) -> float:
    exact = values.detach().double()
    error = float((decoded.double() - exact).norm())
    norm = float(exact.norm())
    return error / norm if norm else (0.0 if error == 0 else float("inf"))
