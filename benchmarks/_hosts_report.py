"""Rows, tables and the picture of benchmarks/hosts.py."""

from __future__ import annotations

import math
from typing import Any

from benchmarks import _report
from benchmarks._methods import GLOO
from benchmarks._report import Row, size_text, time_text


def payload_bytes(bits: int, nbytes: int, bucket_size: int) -> float:
    """Bytes of a vector of `nbytes` of fp32 at `bits` per value; up to 8 bits with a minimum and a
    step, 8 bytes, per bucket.
    """
    values = nbytes // 4
    if bits > 8:
        return values * bits / 8
    return values * bits / 8 + 8 * math.ceil(values / bucket_size)


def expected_bytes(row: Row, hosts: int, ranks: int, bucket_size: int) -> float:
    """Bytes that have to leave a host per call: 2 (H - 1) / H of the vector as it is sent, with H
    the number of hosts. Of gloo's ring, which knows no hosts, 2 (N - 1) / N with N ranks. Without
    any headers.
    """
    parties = hosts if row["method"].startswith("cgx") else ranks
    payload = payload_bytes(row["bits"], row["bytes"], bucket_size)
    return 2 * (parties - 1) / parties * payload


def to_rows(
    measured: list[dict[str, Any]],
    hosts: int,
    ranks: int,
    bits_per_second: float | None,
    bucket: int,
) -> list[Row]:
    """Those of _report.to_rows, and of each method: link_bytes, of the host that sends most, per
    call; expected_bytes; link_use, the share of the time in which that host's link was sending
    (None: links are not shaped).
    """
    rows = _report.to_rows(measured, ranks)
    for row in rows:
        row["link_bytes"] = max(row["link_bytes_by_host"])
        row["expected_bytes"] = expected_bytes(row, hosts, ranks, bucket)
        row["link_use"] = (
            row["link_bytes"] * 8 / bits_per_second / row["seconds"] if bits_per_second else None
        )
    return rows


def title(run: dict[str, Any]) -> str:
    """ "2 hosts x 1 rank, 1gbit" """
    ranks = run["ranks_per_host"]
    rate = run["rate"] or "unshaped"
    return f"{run['hosts']} hosts x {ranks} rank{'s' if ranks > 1 else ''}, {rate}"


def table(run: dict[str, Any]) -> str:
    """All rows of one run. link B: bytes that left the busiest host per call, in frames; formula:
    these over expected_bytes; link: share of the time in which that host's link was sending.
    """
    rows = run["rows"]
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{title(run)} ({run['seconds']} s)",
        f"{'size':>6}  {'method':<{width}} {'time':>10} {'p10 - p90':>23} {'vs gloo':>8} "
        f"{'link B':>8} {'formula':>8} {'link':>6} {'rel.err':>8}",
    ]
    last = None
    for row in rows:
        size = size_text(row["bytes"]) if row["bytes"] != last else ""
        last = row["bytes"]
        between = f"{time_text(row['seconds_p10'])} - {time_text(row['seconds_p90'])}"
        use = "" if row["link_use"] is None else f"{100 * row['link_use']:.0f}%"
        wrong = "" if row["equal"] and row["within_bound"] else "  WRONG"
        lines.append(
            f"{size:>6}  {row['method']:<{width}} {time_text(row['seconds']):>10} {between:>23} "
            f"{row['speedup']:>7.2f}x {size_text(row['link_bytes']):>8} "
            f"{row['link_bytes'] / row['expected_bytes']:>7.3f}x {use:>6} "
            f"{row['relative_error']:>8.1e}{wrong}"
        )
    return "\n".join(lines)


_COLORS = {32: "#1f77b4", 16: "#7f7f7f", 8: "#2ca02c", 4: "#ff7f0e", 2: "#d62728"}
_LINES = ["-", "--", ":", "-."]


def draw(runs: list[dict[str, Any]], heading: str, file: str) -> None:
    """Writes the picture: for each run the speed-up, and the bytes that left a host. ImportError
    without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(runs), figsize=(6.5 * len(runs), 9), squeeze=False, sharex=True, sharey="row"
    )
    for (speed, traffic), run in zip(axes.T, runs, strict=True):
        seen: dict[int, int] = {}  # lines by bits: variants differ in their dashes
        for name in dict.fromkeys(row["method"] for row in run["rows"]):
            mine = [row for row in run["rows"] if row["method"] == name]
            sizes = [row["bytes"] for row in mine]
            bits = mine[0]["bits"]
            color = "black" if name == GLOO else _COLORS.get(bits, "#9467bd")
            dash = "-"
            if name.startswith("cgx"):
                dash = _LINES[seen.setdefault(bits, 0) % len(_LINES)]
                seen[bits] += 1
            style: dict[str, Any] = {"color": color, "linestyle": dash, "linewidth": 1.4}
            style |= {"marker": "o" if name.startswith("cgx") else "x", "markersize": 4}
            speed.plot(sizes, [row["speedup"] for row in mine], label=name, **style)
            low, high = ([row[f"speedup_{p}"] for row in mine] for p in ("p10", "p90"))
            speed.fill_between(sizes, low, high, color=color, alpha=0.1)
            shares = [row["link_bytes"] / row["bytes"] for row in mine]
            traffic.plot(sizes, shares, label=name, **style)
            expected = [row["expected_bytes"] / row["bytes"] for row in mine]
            traffic.plot(sizes, expected, color=color, linewidth=0.7, alpha=0.5)
        speed.set_title(title(run))
        for axis in (speed, traffic):
            axis.set_xscale("log", base=4)
            axis.set_yscale("log", base=2)
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.grid(alpha=0.25)
        sizes = sorted({row["bytes"] for row in run["rows"]})
        traffic.set_xticks(sizes, [size_text(size) for size in sizes])
        traffic.minorticks_off()
        traffic.set_xlabel("bytes of fp32")
    axes[0][0].set_ylabel("times as fast as gloo fp32 (median of pairs)")
    axes[1][0].set_ylabel("bytes that left a host / bytes of fp32 (thin: formula)")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(heading)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
