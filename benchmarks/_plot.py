"""The picture of an all-reduce benchmark: rate against size, and speedup against gloo."""

from __future__ import annotations

from typing import Any

from benchmarks._methods import GLOO
from benchmarks._report import size_text

_COLORS = {32: "#1f77b4", 16: "#17becf", 8: "#2ca02c", 4: "#ff7f0e", 2: "#d62728"}


_PEERS = {
    "bf16 hook": "#bbbbbb",
    "PowerSGD rank 1": "#e7a0c8",
    "PowerSGD rank 4": "#e377c2",
    "DeepSpeed shm": "#8c564b",
    "Open MPI": "#bcbd22",
}


def _style(row: dict[str, Any]) -> dict[str, Any]:
    """Colour tells the bits, the line the carrier."""
    if row["method"] == GLOO:
        return {"color": "black", "linestyle": "-", "marker": "s"}
    if not row["method"].startswith("cgx"):
        color = _PEERS.get(row["method"], "#7f7f7f")
        return {"color": color, "linestyle": "-", "marker": "x"}
    color = _COLORS.get(row["bits"], "#9467bd")
    return {
        "color": color,
        "linestyle": "-" if row["carrier"] == "shm" else "--",
        "marker": "o" if row["carrier"] == "shm" else "v",
    }


def draw(rows: list[dict[str, Any]], title: str, file: str) -> None:
    """Writes the picture (format by the file's suffix). ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rate, speedup) = pyplot.subplots(1, 2, figsize=(14, 5.5))
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        sizes = [row["bytes"] for row in mine]
        style = {**_style(mine[0]), "markersize": 4, "linewidth": 1.3}
        rate.plot(sizes, [row["algbw"] for row in mine], label=name, **style)
        rate.fill_between(
            sizes,
            [row["bytes"] / row["seconds_p90"] / 1e9 for row in mine],
            [row["bytes"] / row["seconds_p10"] / 1e9 for row in mine],
            color=style["color"],
            alpha=0.08,
        )
        if name != GLOO:
            speedup.plot(sizes, [row["speedup"] for row in mine], label=name, **style)
    roofs = {row["bytes"]: row["roof"] for row in rows}
    rate.plot(list(roofs), list(roofs.values()), color="grey", linestyle=":", label="memcpy")
    added = {row["bytes"]: row["add_roof"] for row in rows}
    rate.plot(list(added), list(added.values()), color="grey", linestyle="--", label="y += x")
    speedup.axhline(1, color="black", linewidth=1.3, label=GLOO)
    rate.set(ylabel="bytes of fp32 reduced per second (algbw, GB/s)")
    speedup.set(ylabel="times as fast as gloo fp32 (median of pairs)")
    for axis in (rate, speedup):
        axis.set(xlabel="bytes of fp32")
        axis.set_xscale("log", base=4)
        axis.set_yscale("log")
        axis.set_xticks(list(roofs), [size_text(nbytes) for nbytes in roofs])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    rate.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
