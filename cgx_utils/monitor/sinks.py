"""Where the records of a `Monitor` go: anything that can be called with one, on rank 0.

A sink may have a method `close()`, which is called once, after its last record. All ranks make the
sinks, so those of files open them with their first record.
"""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch_cgx._warnings import say

_WORST = 2  # layers that a line of the table names


class Table:
    """A line for each record, under a header. file: stderr by default, where a line that cannot be
    written is lost; another file that fails drops the sink.
    """

    HEAD = (
        f"{'step':>8} {'ms/step':>9} {'exposed':>8} {'MB/step':>8} {'fewer':>7} "
        f"{'encode':>7} {'transfer':>8} {'decode':>7}  worst relative errors"
    )

    def __init__(self, file: IO[str] | None = None):
        self._file = file
        self._headed = False

    def __call__(self, record: Mapping[str, Any]) -> None:
        lines = [] if self._headed else [self.HEAD]
        self._headed = True
        lines.append(line_of(record))
        if self._file is None:
            say(*lines)
            return
        # One write: ranks may share the file.
        self._file.write("".join(f"cgx: {line}\n" for line in lines))
        self._file.flush()


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
    """A row for each record and, for each layer, a row of its own with the columns name, error,
    bits and codec: for spreadsheets. An existing file is replaced by the first record.

    OSError: the path is a folder, or in none where files may be made.
    """

    PLAIN = (
        *("step", "steps", "seconds_per_step", "exposed_seconds", "exposed", "bytes_raw"),
        *("bytes_sent", "ratio", "seconds_encode", "seconds_transfer", "seconds_decode"),
        *("communicator", "world_size"),
    )
    LAYER = ("name", "error", "bits", "codec")

    def __call__(self, record: Mapping[str, Any]) -> None:
        begins = self._opened is None
        rows = csv.writer(self._file)
        if begins:
            rows.writerow([*self.PLAIN, *self.LAYER])
        rows.writerow([*(record[key] for key in self.PLAIN), "", "", "", ""])
        for name in record["bits"]:
            layer = [name, record["errors"].get(name), record["bits"][name], record["codec"][name]]
            rows.writerow([record["step"], *[""] * (len(self.PLAIN) - 1), *layer])
        self._file.flush()


class TensorBoard:
    """Scalars cgx/..., of each compressed layer cgx/error/LAYER and cgx/bits/LAYER, how many layers
    are exact, cgx/exact_layers, and of saved tensors cgx/saved_error/MODULE. writer: a
    SummaryWriter, or the folder of one, which is made with the first record and needs
    `pip install tensorboard`.
    """

    SCALARS = (
        *("seconds_per_step", "exposed_seconds", "exposed", "bytes_raw", "bytes_sent", "ratio"),
        *("seconds_encode", "seconds_transfer", "seconds_decode"),
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
            if record[name] is not None:
                self._writer.add_scalar(f"cgx/{name}", record[name], step)
        compressed = [name for name, codec in record["codec"].items() if codec != "exact"]
        for what, key in (("error", "errors"), ("bits", "bits")):
            for name in compressed:
                value = record[key].get(name)
                if value is not None:
                    self._writer.add_scalar(f"cgx/{what}/{name}", value, step)
        for name, error in record["saved_errors"].items():
            self._writer.add_scalar(f"cgx/saved_error/{name}", error, step)
        if record["codec"]:
            exact = len(record["codec"]) - len(compressed)
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
