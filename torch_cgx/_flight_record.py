"""The last collectives of this process, in the format of torch's flight recorder."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from torch_cgx import _C

_VERSION = "2.10"  # of the format: torch/csrc/distributed/c10d/FlightRecorder.hpp


def flight_record() -> dict[str, Any]:
    """The last calls of this process' cgx groups, oldest first, beside torch's own records.

    Returns a dict in the format of torch's flight recorder: "version", "pg_config" and "entries",
    one per collective, send or receive, with its sizes, types, state, times in ns since 1970,
    duration in ms and timeout in ms. Entries of cgx also have "way" (algorithm, communicators and
    codec; "gloo" of what Gloo ran; the communicator of a message over shared memory), "error" if
    the call failed, and, if the engine ran the call,
    "bytes_before_compression" (of the values) and "bytes_sent" (by this rank, headers included).
    Failed calls have the state "started" and are "retired", as in torch.

    TORCH_FR_BUFFER_SIZE (2000) is the number of entries kept; 0 switches the record off. It is
    read when the first group is created.
    """
    entries: list[dict[str, Any]] = _C.flight_record()
    record: dict[str, Any] = {"version": _VERSION, "pg_config": {}, "pg_status": {}, "entries": []}
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is not None:  # new in torch 2.13 for backends without NCCL
        record.update(json.loads(dump()))
    record["entries"] = sorted(
        [*record.get("entries", []), *entries], key=lambda entry: entry["time_created_ns"]
    )
    return record


def dump_flight_record(path: str | os.PathLike[str]) -> None:
    """Writes `flight_record()` to a file: JSON if its name ends in .json, else pickled for torch's
    analyser (`torchfrtrace` reads one file per rank, named by a common prefix and the rank).
    OSError if the file cannot be written.
    """
    record = flight_record()
    target = Path(path)
    if target.suffix == ".json":
        target.write_text(json.dumps(record, indent=1))
    else:
        target.write_bytes(pickle.dumps(record))
