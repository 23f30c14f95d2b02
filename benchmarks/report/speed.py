"""The tables of speed: each is made of the results of one benchmark, README's of three."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks._command import rate_text
from benchmarks.report.cells import (
    BASE,
    by_method,
    difference,
    head,
    layout,
    line,
    machine,
    percent,
    ranks_of,
    ranks_text,
    size_text,
    speedup,
    time_text,
)
from benchmarks.report.results import Results

EXACT, CONTROL = "cgx exact", "gloo again"  # of benchmarks/exact.py
LEAST = 4096  # bytes: below, latency alone is measured
MOST_SIZES = 5  # columns
LEAST_BETWEEN_HOSTS = 65536
MOST_SIZES_BETWEEN_HOSTS = 6
# README's rows: the title, and the method's name in allreduce.json, hosts.json, hosts_training.json
# ("": that benchmark does not run it).
SUMMARY = (
    ("fp16 hook over Gloo", "fp16 hook", "fp16 hook", "gloo, fp16 hook"),
    ("cgx exact", "cgx shm exact", "cgx exact", ""),
    ("cgx 16 bits", "cgx shm 16 bit", "cgx 16 bit", ""),
    ("cgx 8 bits", "cgx shm 8 bit", "cgx 8 bit", "cgx, 8 bits"),
    ("cgx 4 bits", "cgx shm 4 bit", "cgx 4 bit", "cgx, 4 bits"),
    ("cgx 4 bits, `rotated`", "", "cgx 4 bit rotated", ""),
)


def choose(sizes: list[int], least: int = LEAST, most: int = MOST_SIZES) -> list[int]:
    """At most `most` of the sizes from `least` on, evenly spread, the largest included; all of
    them where none is so large."""
    large = [size for size in sorted(set(sizes)) if size >= least] or sorted(set(sizes))
    if len(large) <= most:
        return large
    last = len(large) - 1
    return [large[round(i * last / (most - 1))] for i in range(most)]


def summary_table(
    allreduce: dict[str, Any], hosts: dict[str, Any], training: dict[str, Any]
) -> str:
    """The README's: methods by links, at the largest size, and a training step. ValueError where
    two documents have no size in common, or one of them no row of Gloo.
    """
    local = by_method(allreduce["rows"])
    runs = [by_method(run["rows"]) for run in hosts["runs"]]
    common = set(local[0]).intersection(*(base for base, _, _ in runs))
    if not common:
        raise ValueError("allreduce.json and hosts.json have no size in common")
    size = max(common)
    group = training["groups"][0]
    steps = {row["method"]: row for row in group["rows"]}
    # Equal in all columns of a run: the same values, and as many ranks.
    errors = runs[0][2]
    titles = [f"{allreduce['machine']['ranks']} ranks, one host"]
    titles += [f"{run['hosts']} hosts, {rate_text(run['rate'])}" for run in hosts["runs"]]
    step = f"training step, {training['hosts']} hosts, {rate_text(training['rate'])}"
    caption = (
        f"How many times as fast as `{BASE}`, measured in the same run: all-reduce of "
        f"{size_text(size)} of fp32, and one training step of a small GPT. `error` is the relative "
        f"L2 error of the sum of Gaussian values over {ranks_of(hosts['runs'][0])} ranks. "
        f"Machine: {machine(hosts['machine'])}; the training step was measured with "
        f"{training['machine']['simd']} codecs. The hosts are network namespaces on the machine "
        "and share its cores."
    )
    lines = head(caption, ["", *titles, step, "error"])
    times = [base[size]["seconds"] for base in (local[0], *(base for base, _, _ in runs))]
    cells = [time_text(seconds) for seconds in [*times, steps[BASE]["step_seconds"]]]
    lines.append(line(f"{BASE}: time", [*cells, percent(errors[BASE, size])]))
    for title, in_local, in_hosts, in_training in SUMMARY:
        found = [local[2].get((in_local, size)), *(rows.get((in_hosts, size)) for *_, rows in runs)]
        cells = [
            f"{row['speedup']:.2f}x" if row else "" for row in [*found, steps.get(in_training)]
        ]
        lines.append(line(title, [*cells, percent(errors.get((in_hosts, size)))]))
    return "\n".join(lines) + "\n"


def allreduce_table(document: dict[str, Any]) -> str:
    """Of benchmarks/allreduce.py: a sentence on the machine, and methods by sizes.

    ValueError where the document holds no row to compare with.
    """
    facts = document["machine"]
    base, methods, found = by_method(document["rows"])
    sizes = choose(list(base))
    caption = (
        f"Times faster than `{BASE}`, median of {facts['repeats']} repetitions (more of short "
        f"calls); {facts['ranks']} ranks on one host ({machine(facts)}), "
        f"{facts['threads']} thread each. Above 1 is faster. `bytes`: sent per rank, relative to "
        "the vector, at the largest size."
    )
    lines = head(caption, ["fp32 vector of", *map(size_text, sizes), "bytes"])
    lines.append(
        line("gloo fp32: time", [time_text(base[size]["seconds"]) for size in sizes]) + " |"
    )
    for name in methods:
        cells = [speedup(found.get((name, size))) for size in sizes]
        sent = found.get((name, sizes[-1]))
        cells.append(f"{sent['wire_bytes'] / sizes[-1]:.3f}" if sent else "")
        lines.append(line(name, cells))
    return "\n".join(lines) + "\n"


def hosts_table(document: dict[str, Any]) -> str:
    """Of benchmarks/hosts.py: methods by sizes of the first run; then the largest size of each
    other run. ValueError as in `allreduce_table`.
    """
    facts = document["machine"]
    first, *others = document["runs"]
    base, methods, found = by_method(first["rows"])
    sizes = choose(list(base), LEAST_BETWEEN_HOSTS, MOST_SIZES_BETWEEN_HOSTS)
    titles = [size_text(size) for size in sizes]
    columns = [(base[size], {name: found.get((name, size)) for name in methods}) for size in sizes]
    for run in others:
        its_base, _, its_found = by_method(run["rows"])
        largest = max(its_base)
        titles.append(f"{size_text(largest)}, {difference(run, first)}")
        rows = {name: its_found.get((name, largest)) for name in methods}
        columns.append((its_base[largest], rows))
    caption = (
        f"Times faster than `{BASE}`, median of {facts['repeats']} repetitions (more of short "
        f"calls); {layout(first)}, links of {rate_text(first['rate'])} ({machine(facts)})."
    )
    lines = head(caption, ["fp32 vector of", *titles])
    lines.append(line("gloo fp32: time", [time_text(row["seconds"]) for row, _ in columns]))
    lines += [line(name, [speedup(rows[name]) for _, rows in columns]) for name in methods]
    return "\n".join(lines) + "\n"


def training_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/hosts.py: methods by layouts. ValueError if a layout has none."""
    facts, groups = document["machine"], document["groups"]
    if not groups or not all(group["rows"] for group in groups):
        raise ValueError("no rows in the results of the training")
    parameters = groups[0]["rows"][0]["gradient_bytes"] / 4
    options = f" with `{document['options']}`" if document["options"] else ""
    modelled = all("model_ms" in row for group in groups for row in group["rows"])
    caption = (
        f"`examples/train_gpt.py`{options}, {parameters / 1e6:.2f} million parameters, links of "
        f"{rate_text(document['rate'])}: time per step, median of {facts['runs']} runs of "
        f"{facts['steps']} steps, and bytes per step that leave a host, as its link counts them "
        f"({machine(facts)})."
    )
    columns = ["bytes/step"]
    if modelled:
        caption += (
            " `allowed`: what computing alone takes in the same run and these bytes on the link, "
            "with DDP's overlap (`benchmarks/training/step_model.py`); the factor is measured / "
            "allowed."
        )
        columns.append("allowed")
    heads = [[layout({**group, "hosts": document["hosts"]}), *columns] for group in groups]
    lines = head(caption, ["time per step", *itertools.chain(*heads)])
    for rows in zip(*(group["rows"] for group in groups), strict=True):
        cells = []
        for row in rows:
            cells.append(f"{1e3 * row['step_seconds']:.0f} ms ({row['speedup']:.2f}x)")
            cells.append(f"{row['link_bytes_per_step'] / 1e6:.2f} MB")
            if modelled:
                cells.append(f"{row['model_ms']:.0f} ms ({row['ratio']:.2f}x)")
        lines.append(line(rows[0]["method"], cells))
    return "\n".join(lines) + "\n"


def exact_table(document: dict[str, Any]) -> str:
    """Of benchmarks/exact.py: layouts by sizes, cgx and the second group of gloo."""
    facts, runs = document["machine"], document["runs"]
    sizes = sorted({row["bytes"] for run in runs for row in run["rows"]})
    caption = (
        f"Times faster than `{BASE}`, exact all-reduces over Gloo; in brackets a second group of "
        f"gloo, which differs from the first by chance alone. Median of repetitions, of several "
        f"calls in a row up to 16 MiB, within {facts['seconds_of_each']} s, {facts['repeats']} at "
        f"least ({machine(facts)})."
    )
    lines = head(caption, ["fp32 vector of", *map(size_text, sizes)])
    for run in runs:
        _, _, found = by_method(run["rows"])
        cells = []
        for size in sizes:
            ours, control = found[EXACT, size]["speedup"], found[CONTROL, size]["speedup"]
            cells.append(f"{ours:.2f} ({control:.2f})")
        where = f"one host x {ranks_text(run)}" if run["hosts"] == 1 else layout(run)
        lines.append(line(where + (f", {rate_text(run['rate'])}" if run["rate"] else ""), cells))
    return "\n".join(lines) + "\n"


def autotune_table(document: dict[str, Any]) -> str:
    """Of benchmarks/autotune.py: sizes by links, each the best and its time, how many times as fast
    as that the autotuned group is, and the control.
    """
    runs = document["runs"]
    titles = ["fp32 vector of"]
    for run in runs:
        link = run["link"]
        where = {"shm": "SHM", "gloo": "Gloo"}.get(link) or f"2 hosts, {rate_text(link)}"
        titles += [f"{where}: best", "tuned", "control"]
    facts = document["machine"]
    caption = (
        "`best`: the fastest of exact, 16 bits and the asked bits, and its time; `tuned`: how many "
        "times as fast an autotuned group is; `control`: the same of an exact group and another, "
        f"which differ by chance alone. Medians of all samples of {facts['processes']} pairs of "
        f"processes, after at most {facts['settle']} calls of a size ({machine(facts)})."
    )
    lines = head(caption, titles)
    names = {"exact": "exact", "half": "16 bits", "asked": f"{facts['bits']} bits"}
    by_size = [{row["bytes"]: row for row in run["rows"]} for run in runs]
    for nbytes in sorted(set().union(*by_size)):
        cells = []
        for rows in by_size:
            row = rows.get(nbytes)
            if row is None:
                cells += ["", "", ""]
                continue
            best = f"{names[row['best']]}, {time_text(row['seconds'][row['best']])}"
            cells += [best, f"{row['of_best']:.2f}", f"{row['control']:.2f}"]
        lines.append(line(size_text(nbytes), cells))
    return "\n".join(lines) + "\n"


def latency_table() -> str:
    """Microseconds by what a small all-reduce over shared memory spends them on."""
    columns = ("whole", "alone", "encode", "transfer", "decode", "gloo")
    lines = [
        "| fp32 vector of | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for row in Results.in_tree().rows("latency"):
        cells = " | ".join(f"{row[name] * 1e6:.1f}" for name in columns)
        lines.append(f"| {size_text(row['bytes'])} | {cells} |")
    return "\n".join(lines) + "\n"
