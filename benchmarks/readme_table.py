"""Writes the measured tables of README.md, docs/performance.md and docs/choosing_bits.md.

    python benchmarks/readme_table.py [--check]

The JSON files in benchmarks/results/ are the input. Each table stands between two marks:

    README.md             `<!-- benchmark summary -->`: one row a method, one column a link
    docs/performance.md   `<!-- benchmark NAME -->` of TABLES; `<!-- targets -->`
                          (benchmarks/targets.py), `<!-- latency -->`, `<!-- exact -->`,
                          `<!-- autotune -->`
    docs/choosing_bits.md `<!-- errors -->`, `<!-- accuracy NAME -->` of EXAMPLES

With --check nothing is written; the status is 1 if a page is not up to date.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _accuracy, targets

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
CHOOSING = ROOT / "docs" / "choosing_bits.md"
EXAMPLES = ("digits",)  # trained by `make accuracy`
BASE = "gloo fp32"
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
)

Row = dict[str, Any]


def size_text(nbytes: int) -> str:
    """4096 -> "4 KiB"; sizes that are no whole number of a unit have one decimal."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


def choose(sizes: list[int], least: int = LEAST, most: int = MOST_SIZES) -> list[int]:
    """At most `most` of the sizes from `least` on, evenly spread, the largest included; all of
    them where none is so large."""
    large = [size for size in sorted(set(sizes)) if size >= least] or sorted(set(sizes))
    if len(large) <= most:
        return large
    last = len(large) - 1
    return [large[round(i * last / (most - 1))] for i in range(most)]


def table(document: dict[str, Any]) -> str:
    """Of benchmarks/allreduce.py: a sentence on the machine, and methods by sizes.

    ValueError where the document holds no row to compare with.
    """
    facts = document["machine"]
    base, methods, found = _by_method(document["rows"])
    sizes = choose(list(base))
    caption = (
        f"Times faster than `{BASE}`, median of {facts['repeats']} repetitions (more of short "
        f"calls); {facts['ranks']} ranks on one host ({_machine(facts)}), "
        f"{facts['threads']} thread each. Above 1 is faster. `bytes`: sent per rank, relative to "
        "the vector, at the largest size."
    )
    lines = _head(caption, ["fp32 vector of", *map(size_text, sizes), "bytes"])
    lines.append(_row("gloo fp32: time", [_time(base[size]["seconds"]) for size in sizes]) + " |")
    for name in methods:
        cells = [_speedup(found.get((name, size))) for size in sizes]
        sent = found.get((name, sizes[-1]))
        cells.append(f"{sent['wire_bytes'] / sizes[-1]:.3f}" if sent else "")
        lines.append(_row(name, cells))
    return "\n".join(lines) + "\n"


def hosts_table(document: dict[str, Any]) -> str:
    """Of benchmarks/hosts.py: methods by sizes of the first run; then the largest size of each
    other run. ValueError as in `table`.
    """
    facts = document["machine"]
    first, *others = document["runs"]
    base, methods, found = _by_method(first["rows"])
    sizes = choose(list(base), LEAST_BETWEEN_HOSTS, MOST_SIZES_BETWEEN_HOSTS)
    titles = [size_text(size) for size in sizes]
    columns = [(base[size], {name: found.get((name, size)) for name in methods}) for size in sizes]
    for run in others:
        its_base, _, its_found = _by_method(run["rows"])
        largest = max(its_base)
        titles.append(f"{size_text(largest)}, {_difference(run, first)}")
        rows = {name: its_found.get((name, largest)) for name in methods}
        columns.append((its_base[largest], rows))
    caption = (
        f"Times faster than `{BASE}`, median of {facts['repeats']} repetitions (more of short "
        f"calls); {_layout(first)}, links of {rate_text(first['rate'])} ({_machine(facts)})."
    )
    lines = _head(caption, ["fp32 vector of", *titles])
    lines.append(_row("gloo fp32: time", [_time(row["seconds"]) for row, _ in columns]))
    lines += [_row(name, [_speedup(rows[name]) for _, rows in columns]) for name in methods]
    return "\n".join(lines) + "\n"


def training_table(document: dict[str, Any]) -> str:
    """Of benchmarks/hosts_training.py: methods by layouts. ValueError if a layout has none."""
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
        f"({_machine(facts)})."
    )
    columns = ["bytes/step"]
    if modelled:
        caption += (
            " `allowed`: what computing alone takes in the same run and these bytes on the link, "
            "with DDP's overlap (`benchmarks/_step_model.py`); the factor is measured / allowed."
        )
        columns.append("allowed")
    heads = [[_layout({**group, "hosts": document["hosts"]}), *columns] for group in groups]
    lines = _head(caption, ["time per step", *itertools.chain(*heads)])
    for rows in zip(*(group["rows"] for group in groups), strict=True):
        cells = []
        for row in rows:
            cells.append(f"{1e3 * row['step_seconds']:.0f} ms ({row['speedup']:.2f}x)")
            cells.append(f"{row['link_bytes_per_step'] / 1e6:.2f} MB")
            if modelled:
                cells.append(f"{row['model_ms']:.0f} ms ({row['ratio']:.2f}x)")
        lines.append(_row(rows[0]["method"], cells))
    return "\n".join(lines) + "\n"


def fsdp_table(document: dict[str, Any]) -> str:
    """Of benchmarks/fsdp.py: a row for each method."""
    facts = document["machine"]
    caption = (
        f"The GPT of `examples/train_gpt.py`, {document['parameters'] / 1e6:.2f} million "
        f"parameters, {_layout(document)}, {document['steps']} steps: validation loss, mean of "
        f"{facts['seeds']} seeds, and bytes per step that leave a host, as its link counts them "
        f"({_machine(facts)})."
    )
    lines = _head(caption, ["", "val loss", "over fp32", "by seed", "bytes/step", "fewer"])
    most = document["rows"][0]["link_bytes_per_step"]
    for row in document["rows"]:
        seeds = ", ".join(f"{value:+.2f} %" for value in row["percent_over_base_by_seed"])
        sent = row["link_bytes_per_step"]
        cells = [f"{row['val_loss']:.4f}", f"{row['percent_over_base']:+.2f} %", seeds]
        lines.append(_row(row["method"], [*cells, f"{sent / 1e6:.2f} MB", f"{most / sent:.1f}x"]))
    return "\n".join(lines) + "\n"


def diloco_table(document: dict[str, Any]) -> str:
    """Of benchmarks/diloco.py: a row for each method."""
    facts = document["machine"]
    caption = (
        f"`examples/train_diloco.py`, {document['runs'][0]['parameters'] / 1e6:.2f} million "
        f"parameters, {document['hosts']} hosts, links of {rate_text(document['rate'])}, "
        f"{facts['seconds_each']} seconds each, {facts['runs']} seeds: validation loss at equal "
        "time, time to the loss that DDP over gloo ended with, and bytes per step that leave a "
        f"host, start and validation included ({_machine(facts)})."
    )
    lines = _head(caption, ["", "val loss", "to gloo's loss", "steps", "bytes/step", "fewer"])
    most = document["rows"][0]["link_bytes_per_step"]
    for row in document["rows"]:
        reached = [value for value in row["faster_to_base_loss"] if value]
        faster = f"{sum(reached) / len(reached):.1f}x as fast" if reached else "not reached"
        sent = row["link_bytes_per_step"]
        cells = [f"{row['loss']:.3f}", faster, ", ".join(map(str, row["steps"]))]
        lines.append(_row(row["method"], [*cells, f"{sent / 1e6:.3f} MB", f"{most / sent:.1f}x"]))
    return "\n".join(lines) + "\n"


def summary_table(
    allreduce: dict[str, Any], hosts: dict[str, Any], training: dict[str, Any]
) -> str:
    """The README's: methods by links, at the largest size, and a training step. ValueError where
    two documents have no size in common, or one of them no row of Gloo.
    """
    local = _by_method(allreduce["rows"])
    runs = [_by_method(run["rows"]) for run in hosts["runs"]]
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
        f"L2 error of the sum of Gaussian values over {_ranks_of(hosts['runs'][0])} ranks. "
        f"Machine: {_machine(hosts['machine'])}; the training step was measured with "
        f"{training['machine']['simd']} codecs. The hosts are network namespaces on the machine "
        "and share its cores."
    )
    lines = _head(caption, ["", *titles, step, "error"])
    times = [base[size]["seconds"] for base in (local[0], *(base for base, _, _ in runs))]
    cells = [_time(seconds) for seconds in [*times, steps[BASE]["step_seconds"]]]
    lines.append(_row(f"{BASE}: time", [*cells, _percent(errors[BASE, size])]))
    for title, in_local, in_hosts, in_training in SUMMARY:
        found = [local[2].get((in_local, size)), *(rows.get((in_hosts, size)) for *_, rows in runs)]
        cells = [
            f"{row['speedup']:.2f}x" if row else "" for row in [*found, steps.get(in_training)]
        ]
        lines.append(_row(title, [*cells, _percent(errors.get((in_hosts, size)))]))
    return "\n".join(lines) + "\n"


# Of docs/performance.md: the name in the marks and of the file of results, and what makes the text.
TABLES = {
    "allreduce": table,
    "hosts": hosts_table,
    "hosts_training": training_table,
    "fsdp": fsdp_table,
    "diloco": diloco_table,
}


def _by_method(
    rows: list[Row],
) -> tuple[dict[int, Row], list[str], dict[tuple[str, int], Row]]:
    """Rows of gloo by bytes; the other methods; all rows by method and bytes."""
    base = {row["bytes"]: row for row in rows if row["method"] == BASE}
    methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name != BASE]
    if not base or not methods:
        raise ValueError(f"no rows of {BASE!r} and another method; found {methods}")
    return base, methods, {(row["method"], row["bytes"]): row for row in rows}


def _head(caption: str, titles: list[str]) -> list[str]:
    rule = "|---" * len(titles) + "|"
    return [textwrap.fill(caption, 118), "", _row(titles[0], titles[1:]), rule]


def _row(name: str, cells: list[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"


def _machine(facts: dict[str, Any]) -> str:
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['simd']} codecs, torch {facts['torch']}"


def _ranks(run: dict[str, Any]) -> str:
    ranks = run["ranks_per_host"]
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def _ranks_of(run: dict[str, Any]) -> int:
    return int(run["hosts"] * run["ranks_per_host"])


def _layout(run: dict[str, Any]) -> str:
    return f"{run['hosts']} hosts x {_ranks(run)}"


def _difference(run: dict[str, Any], first: dict[str, Any]) -> str:
    """What a run has otherwise than the first, as a title."""
    parts = [f"{run['hosts']} hosts"] if run["hosts"] != first["hosts"] else []
    if run["ranks_per_host"] != first["ranks_per_host"]:
        parts.append(f"{_ranks(run)} each")
    if run["rate"] != first["rate"]:
        parts.append(rate_text(run["rate"]))
    return ", ".join(parts) or "again"


def rate_text(rate: str | None) -> str:
    """ "200mbit" -> "200 Mbit/s" """
    if rate is None:
        return "any speed"
    match = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate)
    return f"{match[1]} {match[2].upper()}bit/s" if match else rate


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _speedup(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['speedup']:.2f}"


def _percent(row: dict[str, Any] | None) -> str:
    """Two digits; an error below 1e-6 comes from fp32 sums."""
    if row is None:
        return ""
    error = row["relative_error"]
    return "0" if error < 1e-6 else f"{100 * error:.2g} %"


def insert(page: str, name: str, text: str) -> str:
    """`page` with `text` between the marks of `name`. ValueError unless each mark is there once."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold {begin.strip()} and {end} once each")
    head, _, rest = page.partition(begin)
    return head + begin + text + end + rest.partition(end)[2]


def results_of(name: str) -> Path:
    return ROOT / "benchmarks" / "results" / f"{name}.json"


def update(readme: str) -> str:
    """README.md with its table. FileNotFoundError, with what to run, if results are not there."""
    documents = (read_results(name) for name in ("allreduce", "hosts", "hosts_training"))
    return insert(readme, "benchmark summary", summary_table(*documents))


def update_performance(page: str) -> str:
    """docs/performance.md with all its tables. FileNotFoundError as in `update`."""
    for name, make in TABLES.items():
        page = insert(page, f"benchmark {name}", make(read_results(name)))
    results = targets.Results.in_tree()
    page = insert(insert(page, "targets", targets.table()), "latency", latency_table())
    page = insert(page, "exact", exact_table(results.of("exact")))
    page = insert(page, "adaptive", adaptive_table(results.of("adaptive")))
    return insert(page, "autotune", autotune_table(results.of("autotune")))


def update_choosing(page: str) -> str:
    """docs/choosing_bits.md with all its tables. FileNotFoundError as in `update`."""
    for name in EXAMPLES:
        text = accuracy_table(read_results(f"accuracy_{name}"))
        page = insert(page, f"accuracy {name}", text)
    return insert(page, "errors", errors_table(read_results("errors")))


def read_results(name: str) -> dict[str, Any]:
    """The committed results of one benchmark. FileNotFoundError, with what to run."""
    results = results_of(name)
    if not results.exists():
        path = results.relative_to(ROOT)
        raise FileNotFoundError(
            f"{path} is not there; run python -m benchmarks all --commit-results"
        )
    document: dict[str, Any] = json.loads(results.read_text())
    return document


def accuracy_table(document: dict[str, Any]) -> str:
    """Of `make accuracy`: codecs by bits, each the difference to exact training."""
    first = document["runs"][0]
    exact = _accuracy.row_of(document, "", _accuracy.EXACT, False)
    if exact is None:
        raise ValueError("no exact run in the results of make accuracy")
    what = "percent of the validation loss" if first["accuracy"] is None else "points of accuracy"
    reached = f"validation loss {exact['val_loss']:.3f}"
    if first["accuracy"] is not None:
        reached = f"accuracy {100 * exact['accuracy']:.2f} %"
    caption = (
        f"Difference to fp32 over Gloo ({reached}) in {what}, seed by seed: mean of 3 seeds unless "
        f"said otherwise, with its 95 % interval; {first['world_size']} ranks, {first['steps']} "
        f"steps, {first['parameters'] / 1e6:.2f} million parameters. Standard deviation of fp32's "
        f"own seeds: {_accuracy.noise(document):.2f}."
    )
    titles, *lines = _accuracy.table(document)
    return "\n".join(_head(caption, titles) + [_row(c[0], c[1:]) for c in lines]) + "\n"


def errors_table(document: dict[str, Any]) -> str:
    """Of benchmarks/errors.py: codecs by bits."""
    rows = [row for row in document["rows"] if row["bits"] <= 4 and " " not in row["codec"]]
    caption = (
        "Squared error of one encoding over the squared norm (NMSE), and bits per value with "
        "metadata. Gradients: all weights, the mean over steps and dtypes."
    )
    titles = ["", *(f"{bits} bit{'s' * (bits > 1)}" for bits in range(1, 5))]
    lines = _head(caption, titles)
    by_case: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["data"], row["codec"]), {})[row["bits"]] = row
    for (data, codec), found in by_case.items():
        cells = [f"{found[b]['nmse']:.3g} ({found[b]['bits_per_value']:.2f})" for b in range(1, 5)]
        where = {"gpt": "GPT's gradients", "resnet": "ResNet's gradients"}.get(data, data)
        lines.append(_row(f"{where}, `{codec}`", cells))
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
        f"processes, after at most {facts['settle']} calls of a size ({_machine(facts)})."
    )
    lines = _head(caption, titles)
    names = {"exact": "exact", "half": "16 bits", "asked": f"{facts['bits']} bits"}
    by_size = [{row["bytes"]: row for row in run["rows"]} for run in runs]
    for nbytes in sorted(set().union(*by_size)):
        cells = []
        for rows in by_size:
            row = rows.get(nbytes)
            if row is None:
                cells += ["", "", ""]
                continue
            best = f"{names[row['best']]}, {_time(row['seconds'][row['best']])}"
            cells += [best, f"{row['of_best']:.2f}", f"{row['control']:.2f}"]
        lines.append(_row(size_text(nbytes), cells))
    return "\n".join(lines) + "\n"


def latency_table() -> str:
    """Microseconds by what a small all-reduce over shared memory spends them on."""
    columns = ("whole", "alone", "encode", "transfer", "decode", "gloo")
    lines = [
        "| fp32 vector of | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for row in targets.Results.in_tree().rows("latency"):
        cells = " | ".join(f"{row[name] * 1e6:.1f}" for name in columns)
        lines.append(f"| {size_text(row['bytes'])} | {cells} |")
    return "\n".join(lines) + "\n"


def exact_table(document: dict[str, Any]) -> str:
    """Of benchmarks/exact.py: layouts by sizes, cgx and the second group of gloo."""
    facts, runs = document["machine"], document["runs"]
    sizes = sorted({row["bytes"] for run in runs for row in run["rows"]})
    caption = (
        f"Times faster than `{BASE}`, exact all-reduces over Gloo; in brackets a second group of "
        f"gloo, which differs from the first by chance alone. Median of repetitions, of several "
        f"calls in a row up to 16 MiB, within {facts['seconds_of_each']} s, {facts['repeats']} at "
        f"least ({_machine(facts)})."
    )
    lines = _head(caption, ["fp32 vector of", *map(size_text, sizes)])
    for run in runs:
        _, _, found = _by_method(run["rows"])
        cells = []
        for size in sizes:
            ours, control = found[EXACT, size]["speedup"], found[CONTROL, size]["speedup"]
            cells.append(f"{ours:.2f} ({control:.2f})")
        where = f"one host x {_ranks(run)}" if run["hosts"] == 1 else _layout(run)
        lines.append(_row(where + (f", {rate_text(run['rate'])}" if run["rate"] else ""), cells))
    return "\n".join(lines) + "\n"


def adaptive_table(document: dict[str, Any]) -> str:
    """Of benchmarks/adaptive.py: decisions by models and average bits, fp32 gradients."""
    rows = [row for row in document["rows"] if row["dtype"] == "float32"]
    pairs = sorted({(row["measured_step"], row["step"]) for row in rows})
    titles = ["model, codec, average bits", "uniform, step 64", "adaptive, step 64"]
    titles += [f"{a} at {b}" for a, b in pairs]
    caption = (
        "Squared error with adaptive bits over that with the same bits for all layers, in at most "
        "as many bytes; `2 at 4`: the decision of step 2, applied to step 4. Before that the "
        f"relative L2 errors of a decision of step 32 ({_machine(document['machine'])})."
    )
    lines = _head(caption, titles)
    by_case: dict[tuple[str, str, int], dict[tuple[int, int], dict[str, Any]]] = {}
    for row in rows:
        case = row["model"], row["codec"], row["average_bits"]
        by_case.setdefault(case, {})[row["measured_step"], row["step"]] = row
    for (model, codec, bits), found in by_case.items():
        held = found[32, 64]
        cells = [f"{held[f'relative_error_{kind}']:.3f}" for kind in ("uniform", "adaptive")]
        cells += [f"{found[pair]['ratio']:.3f}" for pair in pairs]
        lines.append(_row(f"{model}, {codec}, {bits}", cells))
    for cost in document["costs"]:
        text = (
            f"The hook itself takes {1e6 * cost['uniform_seconds']:.1f} us of a step of "
            f"{cost['model']} with uniform bits, {1e6 * cost['between_seconds']:.1f} us between "
            f"decisions, and {1e3 * cost['decision_seconds']:.0f} ms where the step is measured, "
            f"on one thread ({cost['layers']} layers, {cost['values'] / 1e6:.2f} M values)."
        )
        lines += ["", textwrap.fill(text, 118)]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args(argv)
    status = 0
    for file, make in (
        (README, update),
        (PERFORMANCE, update_performance),
        (CHOOSING, update_choosing),
    ):
        try:
            before = file.read_text()
            after = make(before)
        except (FileNotFoundError, ValueError) as error:
            print(f"{file.name}: {error}")
            status = 1
            continue
        if args.check:
            print(f"{file.name} is {'' if before == after else 'not '}up to date")
            status |= int(before != after)
        else:
            file.write_text(after)
            print(f"wrote the tables of {file.name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
