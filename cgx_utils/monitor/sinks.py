"""Where the records of a `Monitor` go: anything that can be called with one, on rank 0.

A sink may have a method `close()`, which is called once, after its last record.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_WORST = 2  # layers that a line of the table names


class Table:
    """A line for each record, under a header; file: stderr by default."""

    HEAD = (
        f"{'step':>8} {'ms/step':>9} {'exposed':>8} {'MB/step':>8} {'fewer':>7} "
        f"{'encode':>7} {'transfer':>8} {'decode':>7}  worst relative errors"
    )

    def __init__(self, file: IO[str] | None = None):
        self._file = file
        self._headed = False

    def __call__(self, record: Mapping[str, Any]) -> None:
        lines = [] if self._headed else [f"cgx: {self.HEAD}"]
        self._headed = True
        lines.append(f"cgx: {line_of(record)}")
        # One write: ranks may share the file.
        file = sys.stderr if self._file is None else self._file
        file.write("\n".join(lines) + "\n")
        file.flush()


def line_of(record: Mapping[str, Any]) -> str:
    """A line of the table; stages in ms."""
    exposed = "" if record["exposed"] is None else f"{100 * record['exposed']:.1f} %"
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.2f}x"
    known = [(error, name) for name, error in record["errors"].items() if error]
    worst = ", ".join(f"{name} {error:.3g}" for error, name in sorted(known, reverse=True)[:_WORST])
    return (
        f"{record['step']:>8} {1e3 * record['seconds_per_step']:>9.2f} {exposed:>8} "
        f"{record['bytes_sent'] / 1e6:>8.3f} {ratio:>7} {1e3 * record['seconds_encode']:>7.2f} "
        f"{1e3 * record['seconds_transfer']:>8.2f} {1e3 * record['seconds_decode']:>7.2f}  {worst}"
    ).rstrip()


class JsonLines:
    """Each record as a line of JSON; what `cgx report` reads. An existing file is replaced."""

    def __init__(self, path: str | Path):
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # until close()

    def __call__(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Csv:
    """A row for each record and, for each layer, a row of its own with the columns name, error,
    bits and codec: for spreadsheets. An existing file is replaced.
    """

    PLAIN = (
        *("step", "steps", "seconds_per_step", "exposed_seconds", "exposed", "bytes_raw"),
        *("bytes_sent", "ratio", "seconds_encode", "seconds_transfer", "seconds_decode"),
        *("communicator", "world_size"),
    )
    LAYER = ("name", "error", "bits", "codec")

    def __init__(self, path: str | Path):
        self._file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115
        self._rows = csv.writer(self._file)
        self._rows.writerow([*self.PLAIN, *self.LAYER])

    def __call__(self, record: Mapping[str, Any]) -> None:
        self._rows.writerow([*(record[key] for key in self.PLAIN), "", "", "", ""])
        for name in record["bits"]:
            layer = [name, record["errors"].get(name), record["bits"][name], record["codec"][name]]
            self._rows.writerow([record["step"], *[""] * (len(self.PLAIN) - 1), *layer])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars cgx/..., and cgx/error/LAYER and cgx/bits/LAYER. writer: a SummaryWriter, or the
    folder of one, which needs `pip install tensorboard`.
    """

    SCALARS = (
        *("seconds_per_step", "exposed_seconds", "exposed", "bytes_raw", "bytes_sent", "ratio"),
        *("seconds_encode", "seconds_transfer", "seconds_decode"),
    )

    def __init__(self, writer: Any):
        self._owns = isinstance(writer, (str, Path))
        if self._owns:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    f"TensorBoard({str(writer)!r}) needs tensorboard: pip install tensorboard"
                ) from error
            writer = SummaryWriter(str(writer))  # type: ignore[no-untyped-call]
        self._writer = writer

    def __call__(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        for name in self.SCALARS:
            if record[name] is not None:
                self._writer.add_scalar(f"cgx/{name}", record[name], step)
        for what, key in (("error", "errors"), ("bits", "bits")):
            for name, value in record[key].items():
                if value is not None:
                    self._writer.add_scalar(f"cgx/{what}/{name}", value, step)

    def close(self) -> None:
        if self._owns:
            self._writer.close()
        else:
            self._writer.flush()
