"""The tables of errors and losses: what compression does to values and to training."""

from __future__ import annotations

import textwrap
from typing import Any

from benchmarks._command import rate_text
from benchmarks.report import accuracy
from benchmarks.report.cells import head, layout, line, machine


def accuracy_table(document: dict[str, Any]) -> str:
    """Of `make accuracy`: codecs by bits, each the difference to exact training."""
    first = document["runs"][0]
    exact = accuracy.row_of(document, "", accuracy.EXACT, False)
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
        f"own seeds: {accuracy.noise(document):.2f}."
    )
    titles, *lines = accuracy.table(document)
    return "\n".join(head(caption, titles) + [line(c[0], c[1:]) for c in lines]) + "\n"


def errors_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/errors.py: codecs by bits."""
    rows = [row for row in document["rows"] if row["bits"] <= 4 and " " not in row["codec"]]
    caption = (
        "Squared error of one encoding over the squared norm (NMSE), and bits per value with "
        "metadata. Gradients: all weights, the mean over steps and dtypes."
    )
    titles = ["", *(f"{bits} bit{'s' * (bits > 1)}" for bits in range(1, 5))]
    lines = head(caption, titles)
    by_case: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["data"], row["codec"]), {})[row["bits"]] = row
    for (data, codec), found in by_case.items():
        cells = [f"{found[b]['nmse']:.3g} ({found[b]['bits_per_value']:.2f})" for b in range(1, 5)]
        where = {"gpt": "GPT's gradients", "resnet": "ResNet's gradients"}.get(data, data)
        lines.append(line(f"{where}, `{codec}`", cells))
    return "\n".join(lines) + "\n"


def adaptive_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/adaptive.py: decisions by models and average bits, fp32 gradients."""
    rows = [row for row in document["rows"] if row["dtype"] == "float32"]
    pairs = sorted({(row["measured_step"], row["step"]) for row in rows})
    titles = ["model, codec, average bits", "uniform, step 64", "adaptive, step 64"]
    titles += [f"{a} at {b}" for a, b in pairs]
    caption = (
        "Squared error with adaptive bits over that with the same bits for all layers, in at most "
        "as many bytes; `2 at 4`: the decision of step 2, applied to step 4. Before that the "
        f"relative L2 errors of a decision of step 32 ({machine(document['machine'])})."
    )
    lines = head(caption, titles)
    by_case: dict[tuple[str, str, int], dict[tuple[int, int], dict[str, Any]]] = {}
    for row in rows:
        case = row["model"], row["codec"], row["average_bits"]
        by_case.setdefault(case, {})[row["measured_step"], row["step"]] = row
    for (model, codec, bits), found in by_case.items():
        held = found[32, 64]
        cells = [f"{held[f'relative_error_{kind}']:.3f}" for kind in ("uniform", "adaptive")]
        cells += [f"{found[pair]['ratio']:.3f}" for pair in pairs]
        lines.append(line(f"{model}, {codec}, {bits}", cells))
    for cost in document["costs"]:
        text = (
            f"The hook itself takes {1e6 * cost['uniform_seconds']:.1f} us of a step of "
            f"{cost['model']} with uniform bits, {1e6 * cost['between_seconds']:.1f} us between "
            f"decisions, and {1e3 * cost['decision_seconds']:.0f} ms where the step is measured, "
            f"on one thread ({cost['layers']} layers, {cost['values'] / 1e6:.2f} M values)."
        )
        lines += ["", textwrap.fill(text, 118)]
    return "\n".join(lines) + "\n"


def fsdp_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/fsdp.py: a row for each method."""
    facts = document["machine"]
    caption = (
        f"The GPT of `examples/train_gpt.py`, {document['parameters'] / 1e6:.2f} million "
        f"parameters, {layout(document)}, {document['steps']} steps: validation loss, mean of "
        f"{facts['seeds']} seeds, and bytes per step that leave a host, as its link counts them "
        f"({machine(facts)})."
    )
    lines = head(caption, ["", "val loss", "over fp32", "by seed", "bytes/step", "fewer"])
    most = document["rows"][0]["link_bytes_per_step"]
    for row in document["rows"]:
        seeds = ", ".join(f"{value:+.2f} %" for value in row["percent_over_base_by_seed"])
        sent = row["link_bytes_per_step"]
        cells = [f"{row['val_loss']:.4f}", f"{row['percent_over_base']:+.2f} %", seeds]
        lines.append(line(row["method"], [*cells, f"{sent / 1e6:.2f} MB", f"{most / sent:.1f}x"]))
    return "\n".join(lines) + "\n"


def diloco_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/diloco.py: a row for each method."""
    facts = document["machine"]
    caption = (
        f"`examples/train_diloco.py`, {document['runs'][0]['parameters'] / 1e6:.2f} million "
        f"parameters, {document['hosts']} hosts, links of {rate_text(document['rate'])}, "
        f"{facts['seconds_each']} seconds each, {facts['runs']} seeds: validation loss at equal "
        "time, time to the loss that DDP over gloo ended with, and bytes per step that leave a "
        f"host, start and validation included ({machine(facts)})."
    )
    lines = head(caption, ["", "val loss", "to gloo's loss", "steps", "bytes/step", "fewer"])
    most = document["rows"][0]["link_bytes_per_step"]
    for row in document["rows"]:
        reached = [value for value in row["faster_to_base_loss"] if value]
        faster = f"{sum(reached) / len(reached):.1f}x as fast" if reached else "not reached"
        sent = row["link_bytes_per_step"]
        cells = [f"{row['loss']:.3f}", faster, ", ".join(map(str, row["steps"]))]
        lines.append(line(row["method"], [*cells, f"{sent / 1e6:.3f} MB", f"{most / sent:.1f}x"]))
    return "\n".join(lines) + "\n"


def exchanges_table(document: dict[str, Any]) -> str:
    """Of benchmarks/training/exchanges.py: a row for each model and method."""
    facts = document["machine"]
    caption = (
        f"A GPT of {document['layers']} layers of width {document['width']}, "
        f"{document['hosts']} hosts of one rank, links of {rate_text(document['rate'])}, "
        f"{document['steps']} steps: training loss of the last tenth, mean of {facts['seeds']} "
        f"seeds, median time of a step, and bytes per step that leave a host ({machine(facts)})."
    )
    lines = head(caption, ["", "loss", "over gloo", "step", "faster", "bytes/step", "fewer"])
    most = {}
    for row in document["rows"]:
        sent = row["link_bytes_per_step"]
        most.setdefault(row["model"], sent)
        cells = [f"{row['loss']:.4f}", f"{row['percent_over_base']:+.2f} %"]
        cells += [f"{1e3 * row['step_seconds']:.0f} ms", f"{row['faster']:.2f}x"]
        cells += [f"{sent / 1e6:.2f} MB", f"{most[row['model']] / sent:.1f}x"]
        lines.append(line(f"{row['model']}, {row['method']}", cells))
    return "\n".join(lines) + "\n"
