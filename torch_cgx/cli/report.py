"""`cgx report LOG`: what a training's Monitor has seen, in a page."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_cgx.cli import report_formats
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import size_text, table, time_text

EXAMPLES = """\
examples:
  cgx report cgx.jsonl            of Monitor(model, sinks=JsonLines("cgx.jsonl")), FormatMonitor
  cgx report cgx.jsonl --json     the same for programs"""

_VERSION = 1
_HIDDEN = 0.02  # of a step; less exposed communication is not worth compressing further
_GROWTH = 1.5
_SHOWN = 10
_STAGES = ("encode", "transfer", "decode")
# What records of a FormatMonitor lack, as it watches no gradients.
_NOT_OF_FORMATS: dict[str, Any] = {
    **dict.fromkeys(("exposed_seconds", "bytes_raw", "bytes_sent", "ratio")),
    **dict.fromkeys(f"seconds_{stage}" for stage in _STAGES),
    "errors": {},
    "bits": {},
    "codec": {},
    "communicator": None,
    "world_size": None,
}
Record = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="what cgx_utils.monitor.JsonLines wrote"
    )
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.add_argument(
        "--all", action="store_true", help=f"all layers and tensors, not the {_SHOWN} worst"
    )


def run(args: argparse.Namespace) -> int:
    records, notes = read(args.log)
    found = summary(records, notes)
    print(json.dumps(found, indent=2) if args.json else text_of(found, args.all))
    return 0


def read(path: Path) -> tuple[list[Record], list[str]]:
    """The records of a log, and notes about it. CliError, which names the line, if it is none. A
    last line without its end, of a training that was killed, is left out.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CliError(f"cannot read {path}: {reason}") from None
    lines = text.split("\n")
    notes = []
    if lines[-1].strip():
        notes.append("the last line is incomplete, and left out")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["version"] != _VERSION:
                raise CliError(
                    f"{path}, line {number}: version {record['version']!r} of a log; this "
                    f"torch_cgx reads {_VERSION}"
                )
            records.append(_checked(record))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CliError(
                f"{path}, line {number}: not a record of a Monitor; allowed: what "
                "cgx_utils.monitor.JsonLines wrote"
            ) from None
    if not records:
        raise CliError(f"{path} has no records: the training took fewer steps than `every`")
    return records, notes


def _checked(record: Record) -> Record:
    of_formats = "formats" in record and "bytes_sent" not in record
    bytes_of_gradients = () if of_formats else ("bytes_raw", "bytes_sent")
    for name in ("step", "steps", "seconds_per_step", *bytes_of_gradients):
        if not record[name] >= 0:
            raise ValueError(name)
    if of_formats:
        record = {**_NOT_OF_FORMATS, **record}
    for name in ("errors", "bits", "codec"):
        record[name].items()  # noqa: B018
    for name in ("saved_bytes", "kept_bytes"):  # older logs have none
        if record.get(name) is not None and not record[name] >= 0:
            raise ValueError(name)
    for values in record.get("formats", {}).values():  # older logs have none
        if not all(isinstance(value, int | float | None) for value in values.values()):
            raise TypeError("formats")
    return record


def summary(records: Sequence[Record], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Means over all steps; layers and cast tensors, the worst first; remarks."""
    steps = sum(one["steps"] for one in records)
    last = records[-1]
    found: dict[str, Any] = {
        "steps": last["step"],
        "records": len(records),
        "world_size": last["world_size"],
        "communicator": last["communicator"],
        "seconds_per_step": _mean(records, "seconds_per_step"),
        "seconds_per_step_median": statistics.median(one["seconds_per_step"] for one in records),
        "exposed_seconds": _mean(records, "exposed_seconds"),
        "bytes_raw": _mean(records, "bytes_raw"),
        "bytes_sent": _mean(records, "bytes_sent"),
        "bytes_sent_in_all": None,
        "ratio": last["ratio"],
        "saved_bytes": _mean(records, "saved_bytes"),
        "kept_bytes": _mean(records, "kept_bytes"),
        "layers": layers(records),
        "formats": report_formats.rows(records),
    }
    if found["bytes_sent"] is not None:
        found["bytes_sent_in_all"] = sum(one["bytes_sent"] * one["steps"] for one in records)
    # By the means that are shown beside it, not the mean of the records' shares.
    hidden = found["exposed_seconds"] is None or not found["seconds_per_step"]
    found["exposed"] = None if hidden else found["exposed_seconds"] / found["seconds_per_step"]
    found |= {f"seconds_{stage}": _mean(records, f"seconds_{stage}") for stage in _STAGES}
    found["remarks"] = [*notes, *remarks(found)]
    if steps != last["step"]:
        found["remarks"].append(f"records of {last['step'] - steps} steps are missing")
    return found


def _mean(records: Sequence[Record], name: str) -> float | None:
    """Over steps; None where no record has it."""
    known = [one for one in records if one.get(name) is not None]
    steps = sum(one["steps"] for one in known)
    return sum(one[name] * one["steps"] for one in known) / steps if steps else None


def layers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Of each parameter: bits, codec, last error, medians of its first and last third, bits that it
    had; the worst first.
    """
    rows = []
    for name, bits in records[-1]["bits"].items():
        errors = [one["errors"].get(name) for one in records]
        known = [error for error in errors if error is not None]
        third = max(1, len(known) // 3)
        had = [one["bits"][name] for one in records if name in one["bits"]]
        rows.append(
            {
                "name": name,
                "bits": bits,
                "codec": records[-1]["codec"][name],
                "error": known[-1] if known else None,
                "error_begin": statistics.median(known[:third]) if known else None,
                "error_end": statistics.median(known[-third:]) if known else None,
                "bits_before": sorted(set(had) - {bits}),
            }
        )
    return sorted(rows, key=lambda row: -(row["error"] or 0.0))


def remarks(found: dict[str, Any]) -> list[str]:
    """What follows from the numbers."""
    lines = []
    exposed = found["exposed"]
    if exposed is not None and exposed < _HIDDEN:
        lines.append(
            f"communication is hidden ({100 * exposed:.1f} % of a step is exposed): fewer bits "
            "make no step faster"
        )
    elif exposed is not None and exposed > 0.5:
        lines.append(
            f"{100 * exposed:.0f} % of a step waits for communication: fewer bits, or larger "
            "batches, make steps faster (or a rank is slower than the others)"
        )
    compressed = [row for row in found["layers"] if row["codec"] != "exact"]
    if found["layers"] and not compressed:
        lines.append("nothing is compressed")
    for row in compressed:
        begin, end = row["error_begin"], row["error_end"]
        if begin and end and end > _GROWTH * begin:
            lines.append(f"the error of {row['name']} has grown from {begin:.3g} to {end:.3g}")
    unknown = [row["name"] for row in compressed if row["error"] is None]
    if unknown:
        lines.append(
            f"no error is known of {len(unknown)} compressed layers ({unknown[0]}, ...): too few "
            "steps, or gradients of zeros or NaN"
        )
    return lines


def text_of(found: dict[str, Any], every_layer: bool = False) -> str:
    of_gradients = found["bytes_sent"] is not None
    ranks = f" on {found['world_size']} ranks, over {found['communicator']}" if of_gradients else ""
    rows = [
        ("steps", f"{found['steps']}{ranks}"),
        ("time", f"{time_text(found['seconds_per_step'])} per step"),
    ]
    if found["exposed"] is not None:
        waits = f"{100 * found['exposed']:.1f} % of a step ({time_text(found['exposed_seconds'])})"
        rows.append(("exposed communication", waits))
    if of_gradients:
        ratio = "" if found["ratio"] is None else f"; encodings are {found['ratio']:.2f}x smaller"
        sent, whole = size_text(found["bytes_sent"]), size_text(found["bytes_sent_in_all"])
        rows.append(("sent by rank 0", f"{sent} per step, {whole} in all{ratio}"))
        stages = ", ".join(f"{stage} {time_text(found[f'seconds_{stage}'])}" for stage in _STAGES)
        rows.append(("engine, per step", stages))
    if found["kept_bytes"] is not None:
        rows.append(("kept for backward", _kept(found["saved_bytes"], found["kept_bytes"])))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    shown = found["layers"] if every_layer else found["layers"][:_SHOWN]
    if shown:
        cells = [[row["name"], *_numbers(row)] for row in shown]
        lines += [
            "",
            table(["layer", "bits", "codec", "last error", "at first"], cells, left=(0, 2)),
        ]
        more = len(found["layers"]) - len(shown)
        if more:
            lines.append(f"and {more} with smaller errors, or none (--all shows them)")
    if found["formats"]:
        lines += ["", *report_formats.text_of(found["formats"], None if every_layer else _SHOWN)]
    if found["remarks"]:
        lines += ["", *(f"- {one}" for one in found["remarks"])]
    return "\n".join(lines)


def _kept(saved: float, kept: float) -> str:
    """What payloads keep of what nodes have saved."""
    fewer = f", {saved / kept:.2f}x smaller" if kept else ""
    return f"{size_text(kept)} of the {size_text(saved)} that was compressed{fewer}"


def _numbers(row: dict[str, Any]) -> list[str]:
    before = f" (was {', '.join(map(str, row['bits_before']))})" if row["bits_before"] else ""
    errors = ["" if row[key] is None else f"{row[key]:.3g}" for key in ("error", "error_begin")]
    return [f"{row['bits']}{before}", row["codec"], *errors]
