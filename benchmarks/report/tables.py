"""Writes the measured tables of README.md and of pages in docs.

    python -m benchmarks.report.tables [--check]

The JSON files in benchmarks/results/ are the input. Each table stands between two marks:

    README.md             `<!-- benchmark summary -->`: one row a method, one column a link
    docs/performance.md   `<!-- benchmark NAME -->` of TABLES; `<!-- targets -->`
                          (benchmarks/report/targets.py), `<!-- latency -->`, `<!-- exact -->`,
                          `<!-- autotune -->`, `<!-- adaptive -->`, `<!-- collectives -->`,
                          `<!-- benchmark emulate -->`, `<!-- benchmark emulate-gemm -->`,
                          `<!-- without-avx512 -->` (benchmarks/report/without_avx512.py)
    docs/emulated_training.md `<!-- benchmark emulate-training -->`
    docs/choosing_bits.md `<!-- errors -->`, `<!-- accuracy NAME -->` of EXAMPLES
    docs/activations.md   `<!-- benchmark activations -->`, activations-training, projections,
                          projections-training, together, frontier
    docs/bdi.md           `<!-- benchmark bdi -->`
    docs/bounded.md       `<!-- benchmark bounded kinds -->`, cuda_float_compress

With --check nothing is written; the status is 1 if a page is not up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._command import ROOT
from benchmarks.report import (
    activations,
    activations_training,
    bdi,
    bounded,
    bounded_kinds,
    collectives,
    emulate,
    emulate_gemm,
    emulate_training,
    frontier,
    losses,
    projections,
    speed,
    targets,
    together,
    without_avx512,
)
from benchmarks.report.results import Missing, Results

README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
CHOOSING = ROOT / "docs" / "choosing_bits.md"
ACTIVATIONS = ROOT / "docs" / "activations.md"
EMULATED = ROOT / "docs" / "emulated_training.md"
BDI = ROOT / "docs" / "bdi.md"
BOUNDED = ROOT / "docs" / "bounded.md"
EXAMPLES = ("digits", "gpt")  # trained by `make accuracy`
# Of docs/performance.md: the name in the marks and of the file of results, and what makes the text.
TABLES = {
    "allreduce": speed.allreduce_table,
    "hosts": speed.hosts_table,
    "hosts_training": speed.training_table,
    "fsdp": losses.fsdp_table,
    "exchanges": losses.exchanges_table,
    "diloco": losses.diloco_table,
    "bounded": bounded.table,
}


def update(readme: str) -> str:
    """README.md with its table. FileNotFoundError, with what to run, if results are not there."""
    documents = (read_results(name) for name in ("allreduce", "hosts", "hosts_training"))
    return insert(readme, "benchmark summary", speed.summary_table(*documents))


def update_performance(page: str) -> str:
    """docs/performance.md with all its tables. FileNotFoundError as in `update`."""
    for name, make in TABLES.items():
        page = insert(page, f"benchmark {name}", make(read_results(name)))
    page = insert(page, "benchmark bounded entropy", bounded.entropy_table(read_results("bounded")))
    both = Results({name: read_results(name) for name in without_avx512.NAMES})
    page = insert(page, "without-avx512", without_avx512.table(both))
    results = Results.in_tree()
    page = insert(insert(page, "targets", targets.table()), "latency", speed.latency_table())
    page = insert(page, "benchmark emulate", _table(results, "emulate", emulate.table))
    products = _table(results, "emulate_gemm", emulate_gemm.table)
    page = insert(page, "benchmark emulate-gemm", products)
    page = insert(page, "collectives", _table(results, "collectives", collectives.table))
    page = insert(page, "exact", speed.exact_table(results.of("exact")))
    page = insert(page, "adaptive", losses.adaptive_table(results.of("adaptive")))
    return insert(page, "autotune", speed.autotune_table(results.of("autotune")))


def _table(results: Results, name: str, make: Callable[[dict[str, Any]], str]) -> str:
    try:
        return make(results.of(name))
    except Missing:
        return f"Not measured yet: `python -m benchmarks {name.replace('_', '-')}`.\n"


def update_emulated(page: str) -> str:
    """docs/emulated_training.md with its tables."""
    results = Results.in_tree()
    text = _table(results, "emulate_training", emulate_training.table)
    return insert(page, "benchmark emulate-training", text)


def update_choosing(page: str) -> str:
    """docs/choosing_bits.md with all its tables. FileNotFoundError as in `update`."""
    for name in EXAMPLES:
        text = losses.accuracy_table(read_results(f"accuracy_{name}"))
        page = insert(page, f"accuracy {name}", text)
    return insert(page, "errors", losses.errors_table(read_results("errors")))


def update_bdi(page: str) -> str:
    """docs/bdi.md with its table. FileNotFoundError as in `update`."""
    return insert(page, "benchmark bdi", bdi.bdi_table(read_results("bdi")))


def update_activations(page: str) -> str:
    """docs/activations.md with its tables. FileNotFoundError as in `update`."""
    document = read_results("activations")
    tables = activations.activations_table(document), activations.functions_table(document)
    page = insert(page, "benchmark activations", "\n".join(tables))
    trained = activations_training.training_table(read_results("activations_training"))
    page = insert(page, "benchmark activations-training", trained)
    kept = read_results("projections")
    found = projections.projections_table(kept), projections.bytes_table(kept)
    page = insert(page, "benchmark projections", "\n".join(found))
    trained = activations_training.training_table(read_results("projections_training"))
    page = insert(page, "benchmark projections-training", trained)
    page = insert(page, "benchmark together", together.table(read_results("together")))
    compared = _table(Results.in_tree(), "frontier", frontier.table)
    return insert(page, "benchmark frontier", compared)


def update_bounded(page: str) -> str:
    """docs/bounded.md with its tables. FileNotFoundError as in `update`."""
    page = insert(page, "benchmark bounded kinds", bounded_kinds.table(read_results("bounded")))
    return insert(page, "benchmark cuda_float_compress", bdi.compat_table(read_results("bdi")))


def insert(page: str, name: str, text: str) -> str:
    """`page` with `text` between the marks of `name`. ValueError unless each mark is there once."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold {begin.strip()} and {end} once each")
    head, _, rest = page.partition(begin)
    return head + begin + text + end + rest.partition(end)[2]


def results_of(name: str) -> Path:
    return ROOT / "benchmarks" / "results" / f"{name}.json"


def read_results(name: str) -> dict[str, Any]:
    """The committed results of one benchmark. FileNotFoundError, with what to run."""
    results = results_of(name)
    if not results.exists():
        path = results.relative_to(ROOT)
        command = without_avx512.COMMANDS.get(name, "python -m benchmarks all --commit-results")
        raise FileNotFoundError(f"{path} is not there; run {command}")
    document: dict[str, Any] = json.loads(results.read_text())
    return document


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report.tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args(argv)
    status = 0
    for file, make in (
        (README, update),
        (PERFORMANCE, update_performance),
        (CHOOSING, update_choosing),
        (ACTIVATIONS, update_activations),
        (EMULATED, update_emulated),
        (BDI, update_bdi),
        (BOUNDED, update_bounded),
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
