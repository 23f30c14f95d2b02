"""The picture of benchmarks/crossover.py."""

from __future__ import annotations

from typing import Any

from benchmarks._report import size_text


def draw(document: dict[str, Any], file: str) -> None:
    """Writes the picture (format by the file's suffix): the gain of the asked bits over exact
    against the size, for every link, measured and predicted; and the time of the autotuned group
    against exact and against the best. ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (gain, tuned) = pyplot.subplots(1, 2, figsize=(14, 5.5), sharex=True)
    colors = matplotlib.colormaps["viridis"]
    runs = document["runs"]
    bits = document["machine"]["bits"]
    for number, run in enumerate(runs):
        rows = run["rows"]
        sizes = [row["bytes"] for row in rows]
        color = "black" if run["rate"] == "shm" else colors(number / max(len(runs) - 1, 1))
        if "@" in run["rate"]:
            color = matplotlib.colormaps["autumn"](number / max(len(runs) - 1, 1))
        name = {"none": "unshaped", "shm": "one host (SHM)"}.get(run["rate"], run["rate"])
        style: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 4}
        for key, line in (("seconds", "-o"), ("predicted", ":")):
            values = [row[key]["exact"] / row[key]["asked"] for row in rows]
            gain.plot(sizes, values, line, label=name if key == "seconds" else None, **style)
        for measured, marker in (("crossover_bytes", "D"), ("predicted_crossover_bytes", "x")):
            if run[measured]:
                gain.plot(run[measured], 1, marker, color=color, markersize=8)
        tuned.plot(sizes, [row["of_exact"] for row in rows], "-o", label=name, **style)
        tuned.plot(sizes, [row["of_best"] for row in rows], ":", **style)
    gain.set(
        ylabel=f"exact time / {bits}-bit time (line: measured, dots: predicted)",
        title="where compression pays (diamond: crossover, cross: predicted)",
    )
    tuned.set(
        ylabel="times as fast as exact (line), as the best (dots)", title="the autotuned group"
    )
    tuned.axhline(0.95, color="red", linewidth=0.8, linestyle="--")
    ticks = sorted({row["bytes"] for run in runs for row in run["rows"]})
    for axis in (gain, tuned):
        axis.set_xscale("log", base=4)
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.axhline(1, color="grey", linewidth=1)
        axis.set_xticks(ticks, [size_text(size) for size in ticks])
        axis.minorticks_off()
        axis.set_xlabel("bytes of fp32")
        axis.grid(alpha=0.25)
    gain.legend(fontsize=8)
    figure.suptitle(f"all-reduce of 2 ranks ({document['machine']['cpu']})")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
