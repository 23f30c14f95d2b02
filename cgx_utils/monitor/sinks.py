"""Where the records of a `Monitor` go: anything that can be called with one, on rank 0.

A sink may have a method `close()`, which is called once, after its last record. All ranks make the
sinks, so a sink opens its file with its first record. Sinks accept records without some keys: a
FormatMonitor and older logs make such records.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cgx_utils.monitor.formats import summary
from torch_cgx._warnings import say

_WORST = 2  # layers that a line of the table names


class Table:
    """A line for each record, under a header, and one for its formats. What a Monitor with `saved`
    has of bytes for backward stands beside those on the wire. file: stderr by default, where a line
    that cannot be written is lost; another file that fails drops the sink.
    """

    def __init__(self, file: IO[str] | None = None):
        self._file = file
        self._head = ""  # the last that was written

    def __call__(self, record: Mapping[str, Any]) -> None:
        of_gradients = "bytes_sent" in record
        head = head_of(record)
        lines = [] if self._head == head else [head]
        self._head = head
        formats = summary(record.get("formats", {}))
        if of_gradients:
            lines.append(line_of(record))
            lines += [f"{'':>8} formats: {formats}"] if formats else []
        else:
            time = f"{1e3 * record['seconds_per_step']:>9.2f}"
            lines.append(f"{record['step']:>8} {time}  {formats}".rstrip())
        if self._file is None:
            say(*lines)
            return
        # One write: ranks may share the file.
        self._file.write("".join(f"cgx: {line}\n" for line in lines))
        self._file.flush()


def head_of(record: Mapping[str, Any]) -> str:
    """The titles of the columns that a record fills."""
    begin = f"{'step':>8} {'ms/step':>9}"
    if "bytes_sent" not in record:
        return f"{begin}  formats"
    kept = f"{'saved MB':>9} {'kept MB':>8} " if _has_kept(record) else ""
    return (
        f"{begin} {'exposed':>8} {'MB/step':>8} {'fewer':>7} {kept}"
        f"{'encode':>7} {'transfer':>8} {'decode':>7}  worst relative errors"
    )


def line_of(record: Mapping[str, Any]) -> str:
    """A line of the table; stages in ms."""
    exposed = "" if record["exposed"] is None else f"{100 * record['exposed']:.1f} %"
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.2f}x"
    known = [(error, name) for name, error in record["errors"].items() if error]
    worst = ", ".join(f"{name} {error:.3g}" for error, name in sorted(known, reverse=True)[:_WORST])
    kept = ""
    if _has_kept(record):
        kept = f"{record['saved_bytes'] / 1e6:>9.3f} {record['kept_bytes'] / 1e6:>8.3f} "
    return (
        f"{record['step']:>8} {1e3 * record['seconds_per_step']:>9.2f} {exposed:>8} "
        f"{record['bytes_sent'] / 1e6:>8.3f} {ratio:>7} {kept}"
        f"{1e3 * record['seconds_encode']:>7.2f} {1e3 * record['seconds_transfer']:>8.2f} "
        f"{1e3 * record['seconds_decode']:>7.2f}  {worst}"
    ).rstrip()


def _has_kept(record: Mapping[str, Any]) -> bool:
    return record.get("kept_bytes") is not None


class _OwnFile:
    """A file that is replaced at the first record: of the ranks, only one has records.

    OSError where it cannot be written, as far as that can be seen without opening it.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._opened: IO[str] | None = None
        _check_writable(self._path)

    @property
    def _file(self) -> IO[str]:
        if self._opened is None:
            self._opened = open(self._path, "w", encoding="utf-8", newline="")
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class JsonLines(_OwnFile):
    """Each record as a line of JSON; what `cgx report` reads. An existing file is replaced by the
    first record.

    OSError: the path is a folder, or in none where files may be made.
    """

    def __call__(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


class Csv(_OwnFile):
    """A row for each record; for each layer a row of its own with the columns name, error, bits and
    codec; for each cast tensor a row with name, bits, underflowed, saturated, sqnr and amax: for
    spreadsheets. An existing file is replaced by the first record.

    OSError: the path is a folder, or in none where files may be made.
    """

    PLAIN = (
        *("step", "steps", "seconds_per_step", "exposed_seconds", "exposed", "bytes_raw"),
        *("bytes_sent", "ratio", "seconds_encode", "seconds_transfer", "seconds_decode"),
        *("communicator", "world_size", "saved_bytes", "kept_bytes"),
    )
    LAYER = ("name", "error", "bits", "codec")
    FORMAT = ("underflowed", "saturated", "sqnr", "amax")

    def __call__(self, record: Mapping[str, Any]) -> None:
        begins = self._opened is None
        rows = csv.writer(self._file)
        if begins:
            rows.writerow([*self.PLAIN, *self.LAYER, *self.FORMAT])
        empty = [""] * len(self.FORMAT)
        rows.writerow([*(record.get(key) for key in self.PLAIN), *[""] * len(self.LAYER), *empty])
        begin = [record["step"], *[""] * (len(self.PLAIN) - 1)]
        for name, bits in record.get("bits", {}).items():
            error = record["errors"].get(name)
            rows.writerow([*begin, name, error, bits, record["codec"][name], *empty])
        for name, values in record.get("formats", {}).items():
            numbers = [values.get(key) for key in self.FORMAT]
            rows.writerow([*begin, name, "", values.get("bits"), "", *numbers])
        self._file.flush()


class TensorBoard:
    """Scalars cgx/..., of each compressed layer cgx/error/LAYER and cgx/bits/LAYER, how many layers
    are exact, cgx/exact_layers, of saved tensors cgx/saved_error/MODULE, and of cast tensors
    cgx/format/sqnr/NAME, likewise underflowed, saturated and amax, where they are finite. writer: a
    SummaryWriter, or the folder of one, which is made with the first record and needs
    `pip install tensorboard`.
    """

    SCALARS = (
        *("seconds_per_step", "exposed_seconds", "exposed", "bytes_raw", "bytes_sent", "ratio"),
        *("seconds_encode", "seconds_transfer", "seconds_decode", "saved_bytes", "kept_bytes"),
    )

    def __init__(self, writer: Any):
        self._folder = str(writer) if isinstance(writer, (str, Path)) else None
        self._writer = writer if self._folder is None else None
        if self._folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    f"TensorBoard({self._folder!r}) needs tensorboard: pip install tensorboard"
                ) from error
            self._make = SummaryWriter

    def __call__(self, record: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = self._make(self._folder)  # type: ignore[no-untyped-call]
        step = record["step"]
        for name in self.SCALARS:
            if record.get(name) is not None:
                self._writer.add_scalar(f"cgx/{name}", record[name], step)
        codecs = record.get("codec", {})
        compressed = [name for name, codec in codecs.items() if codec != "exact"]
        for what, key in (("error", "errors"), ("bits", "bits")):
            for name in compressed:
                value = record[key].get(name)
                if value is not None:
                    self._writer.add_scalar(f"cgx/{what}/{name}", value, step)
        for name, error in record.get("saved_errors", {}).items():
            self._writer.add_scalar(f"cgx/saved_error/{name}", error, step)
        for name, values in record.get("formats", {}).items():
            for key in Csv.FORMAT:
                if math.isfinite(values.get(key, math.nan)):
                    self._writer.add_scalar(f"cgx/format/{key}/{name}", values[key], step)
        if codecs:
            exact = len(codecs) - len(compressed)
            self._writer.add_scalar("cgx/exact_layers", exact, step)

    def close(self) -> None:
        if self._writer is None:
            return
        if self._folder is not None:
            self._writer.close()
        else:
            self._writer.flush()


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
