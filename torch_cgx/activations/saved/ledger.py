"""Bytes and errors of what a context keeps."""

from __future__ import annotations

import threading

import torch


class Ledger:
    """Counts of the last entry of a context. Threads that are in it together add to one sum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        self.bytes_saved = self.bytes_kept = 0
        self.errors: dict[str, float] = {}
        self._tensors: dict[str, int] = {}  # of each module

    def add(self, saved: int, kept: int) -> None:
        with self._lock:
            self.bytes_saved += saved
            self.bytes_kept += kept

    def measure(self, name: str, values: torch.Tensor, decoded: torch.Tensor) -> None:
        """Notes the relative L2 error of decoded values; 0 of zeros that came back. The second
        tensor of a module is called NAME#2, and so on.
        """
        exact = values.detach().double()
        error = float((decoded.double() - exact).norm())
        norm = float(exact.norm())
        relative = error / norm if norm else (0.0 if error == 0 else float("inf"))
        with self._lock:
            number = self._tensors[name] = self._tensors.get(name, 0) + 1
            self.errors[name if number == 1 else f"{name}#{number}"] = relative
