"""The text of `cgx advise`."""

from __future__ import annotations

from typing import Any

from torch_cgx.cli.output import rate_text, size_text, table, time_text


def text_of(found: dict[str, Any]) -> str:
    buckets = ", ".join(size_text(nbytes) for nbytes in found["buckets"][:6])
    more = len(found["buckets"]) - 6
    compute = found["compute_source"]
    if found["compute_seconds"] is not None:
        compute = f"{time_text(found['compute_seconds'])} a step, {compute}"
    place = f"{found['hosts']} hosts, {found['ranks_per_host']} ranks each"
    lines = [
        f"{found['parameters']:,} parameters in {found['layers']} layers; {place}",
        f"buckets of DDP: {buckets}" + (f" and {more} more" if more > 0 else ""),
        f"computation: {compute}",
        f"errors: of {found['error_source']}",
    ]
    for one in found["links"]:
        lines += ["", f"link of {rate_text(one['link'])} per host", _table(one["rows"])]
        if one["recommended"] is None:
            lines.append(f"-> {one['why']}")
        else:
            lines += [f"-> {one['recommended']}: {one['why']}", f"   {one['code']}"]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["setting", "step", "exposed", "vs gloo", "per host", "error"]
    cells = [
        [
            row["setting"],
            time_text(row["seconds"]),
            time_text(row["exposed_seconds"]),
            f"{row['vs_gloo']:.2f}x",
            size_text(row["host_bytes"]),
            "0" if row["error"] == 0 else f"{100 * row['error']:.2g} %",
        ]
        for row in rows
    ]
    return table(head, cells)
