"""Bits before and after, by layer and by kind of tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_cgx.emulate.training.notes import Entry

SAVED = "saved for backward"


class Ledger:
    """rows: an Entry for each tensor that was cast. saved: what compresses saved tensors, or None.
    str() is the table by kind; table(layers=True) has a line for each tensor.
    """

    def __init__(self, rows: Iterable[Entry], saved: Any = None):
        self.rows = list(rows)
        if saved is not None and not hasattr(saved, "bytes_kept"):
            raise TypeError(
                f"saved is of type {type(saved).__name__}; allowed: compress_saved, the result of "
                "torch_cgx.activations.compress, None"
            )
        self._saved = saved

    @property
    def values(self) -> int:
        """Of all tensors that were cast, without saved ones."""
        return sum(row.values for row in self.rows)

    @property
    def before(self) -> float:
        """Bits of these."""
        return sum(row.before for row in self.rows)

    @property
    def after(self) -> float:
        """Bits in their formats, scales included."""
        return sum(row.after for row in self.rows)

    @property
    def bits(self) -> float:
        """Bits per value in the formats, scales included; 0 if nothing was cast."""
        return self.after / self.values if self.values else 0.0

    @property
    def ratio(self) -> float:
        """Bits before over bits after; 1 if nothing was cast."""
        return self.before / self.after if self.after else 1.0

    def kinds(self) -> dict[str, Entry]:
        """Sums by kind of tensor; those of saved tensors, in "saved for backward", have no values:
        bytes are counted there. "before" is what they would take without compression.
        """
        found: dict[str, Entry] = {}
        for row in self.rows:
            one = found.setdefault(row.tensor, Entry("", row.tensor, 0, 0.0, 0.0))
            one.values += row.values
            one.before += row.before
            one.after += row.after
        if self._saved is not None:
            before, after = 8.0 * self._saved.bytes_saved, 8.0 * self._saved.bytes_kept
            found[SAVED] = Entry("", SAVED, 0, before, after)
        return found

    def table(self, layers: bool = False) -> str:
        """Text: mebibytes before and after, and bits per value, by kind or by tensor."""
        from torch_cgx.cli.output import table

        head = [*(["layer"] if layers else []), "tensor", "values", "MiB before", "MiB after"]
        head += ["bits", "ratio"]
        kinds = self.kinds()
        rows = list(kinds.values())
        if layers:
            rows = [*self.rows, *(kinds[name] for name in (SAVED,) if name in kinds)]
        left = (0, 1) if layers else (0,)
        lines = [self._line(row, layers) for row in rows]
        before, after = (sum(getattr(row, key) for row in rows) for key in ("before", "after"))
        whole = Entry("all", "" if layers else "all", self.values, before, after)
        lines.append(self._line(whole, layers, self.bits))
        return table(head, lines, left)

    @staticmethod
    def _line(row: Entry, layers: bool, bits_per_value: float | None = None) -> list[str]:
        """bits_per_value: without saved tensors, whose values nobody counts."""
        if bits_per_value is None:
            bits_per_value = row.after / max(row.values, 1)
        bits = f"{bits_per_value:.2f}" if row.values else ""
        ratio = f"{row.before / row.after:.2f}" if row.after else ""
        found = [row.tensor, str(row.values) if row.values else ""]
        found += [f"{one / 2**23:.3f}" for one in (row.before, row.after)]
        return [*([row.layer] if layers else []), *found, bits, ratio]

    def __str__(self) -> str:
        return self.table()
