"""Numbers and picture of benchmarks/overlap.py, from what a rank has traced."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks.readme_table import rate_text

Interval = tuple[float, float]

# A link is busy between two samples if it carried at least this part of what it can.
BUSY = 0.5


def union(intervals: list[Interval]) -> list[Interval]:
    """The same points as disjoint intervals in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > begin:
            merged.append((begin, end))
    return merged


def common(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """Where both unions are."""
    both = [(max(p[0], q[0]), min(p[1], q[1])) for p in a for q in b]
    return [(begin, end) for begin, end in both if end > begin]


def length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def loads(samples: list[list[float]], column: int, rate: float) -> list[tuple[Interval, float]]:
    """Between two samples each: bytes carried / bytes that the link can carry. rate: bytes/s."""
    return [
        ((p[0], q[0]), (q[column] - p[column]) / (rate * (q[0] - p[0])))
        for p, q in pairwise(samples)
        if q[0] > p[0]
    ]


def busy(call: dict[str, Any], rate: float) -> dict[str, list[Interval]]:
    """When the link was busy: out, in, and either of them."""
    found = {
        name: union([when for when, load in loads(call["samples"], column, rate) if load >= BUSY])
        for name, column in (("out", 1), ("in", 2))
    }
    return found | {"either": union(found["out"] + found["in"])}


def numbers(call: dict[str, Any], rate: float) -> dict[str, float]:
    """Of one call: seconds, of its stages too, and fractions.

    codec_covered: of the time in encode and decode, the part in which the link was busy, out or in.
    link_busy: the part of the call in which it was; link_out_busy, link_in_busy: each way.
    link_use: the bytes sent over what the link can carry in the call's time. rounds: how often was
    encoded.
    """
    whole = [(0.0, call["seconds"])]
    stages = {name: union([tuple(r) for r in found]) for name, found in call["ranges"].items()}
    codec = common(union(stages["encode"] + stages["decode"]), whole)
    when = {name: common(found, whole) for name, found in busy(call, rate).items()}
    samples = call["samples"]
    return {
        "seconds": call["seconds"],
        **{f"{name}_seconds": length(found) for name, found in stages.items()},
        "rounds": len(call["ranges"]["encode"]),
        "codec_covered": length(common(codec, when["either"])) / length(codec),
        "link_busy": length(when["either"]) / call["seconds"],
        "link_out_busy": length(when["out"]) / call["seconds"],
        "link_in_busy": length(when["in"]) / call["seconds"],
        "link_use": (samples[-1][1] - samples[0][1]) / rate / call["seconds"],
    }


_LANES = [
    ("encode", "encode", "#ff7f0e"),
    ("transfer", "wait for\ntransfer", "#bbbbbb"),
    ("decode", "decode\nand add", "#2ca02c"),
]
_LINKS = [(1, "link out", "#1f77b4"), (2, "link in", "#9467bd")]


def draw(document: dict[str, Any], file: str) -> None:
    """Writes the picture: of every number of bits one call, or its first milliseconds. ImportError
    without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = document["runs"]
    figure, axes = pyplot.subplots(len(runs), 1, figsize=(13, 3.4 * len(runs)), squeeze=False)
    for axis, run in zip(axes[:, 0], runs, strict=True):
        _draw_call(axis, run, document["bytes_per_second"], 1e3 * document["shown_seconds"])
    axes[-1, 0].set_xlabel("ms since the call")
    figure.suptitle(
        f"One all-reduce of {document['bytes'] / 2**20:g} MiB of fp32, {document['hosts']} hosts, "
        f"links of {rate_text(document['rate'])} ({document['machine']['cpu']}, one rank's view)"
    )
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw_call(axis: Any, run: dict[str, Any], rate: float, most: float) -> None:
    call, told = run["shown"], run["numbers"]
    total = len(_LANES) + len(_LINKS)
    for lane, (stage, _, color) in enumerate(_LANES):
        bars = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in call["ranges"][stage]]
        axis.broken_barh(bars, (total - lane - 0.9, 0.8), facecolors=color)
    for lane, (column, _, color) in enumerate(_LINKS, start=len(_LANES)):
        base = total - lane - 0.9
        steps = loads(call["samples"], column, rate)
        edges = [1e3 * steps[0][0][0], *(1e3 * when[1] for when, _ in steps)]
        heights = [base + 0.8 * min(load, 1.0) for _, load in steps]
        axis.stairs(heights, edges, baseline=base, fill=True, color=color)
    names = [name for _, name, _ in _LANES] + [name for _, name, _ in _LINKS]
    axis.set_yticks([total - lane - 0.5 for lane in range(total)], names)
    axis.set_ylim(0, total)
    end = 1e3 * call["seconds"]
    axis.set_xlim(-2, min(end + 3, most))
    axis.axvline(0, color="black", linewidth=0.8)
    axis.axvline(end, color="black", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    part = f", the first {most:.0f} ms" if end + 3 > most else ""
    axis.set_title(
        f"{run['method']}: {1e3 * told['seconds']:.0f} ms, {told['rounds']:.0f} rounds{part}. Link "
        f"busy: out {100 * told['link_out_busy']:.0f} %, in {100 * told['link_in_busy']:.0f} % of "
        f"the call; either {100 * told['codec_covered']:.0f} % of the time in encode and decode",
        fontsize=10,
    )
