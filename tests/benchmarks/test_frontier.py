"""The benchmark of the frontier: what it measures against what is known, and which rows win."""

from __future__ import annotations

import functools
import json
import random

import pytest
import torch

from benchmarks import _frontier_methods as methods
from benchmarks import _frontier_models as models
from benchmarks import frontier
from benchmarks.report import frontier as report
from benchmarks.report import pareto
from benchmarks.report.results import Missing, Results
from tests.benchmarks import runs
from torch_cgx import activations


@pytest.fixture(scope="module")
def cases():
    return {name: models.case(name, models.QUICK) for name in models.LAYERS}


def _step(case, name):
    return frontier.Step(*methods.METHODS[name].build(case))


def _error(step, exact):
    return frontier.error_of(step, frontier.gradients_of(exact))


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.frontier", "--quick", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    rows = {row["method"]: row for row in document["rows"]}
    assert tuple(rows) == methods.QUICK and document["not_measured"] == {}
    assert rows["checkpoint, each layer"]["error"] < 1e-6
    assert rows["checkpoint, each layer"]["share"] < 0.3
    assert 0 < rows["saved, 8 bits"]["error"] < rows["saved, 2 bits"]["error"] < 1
    assert rows["saved, 2 bits"]["bytes"] < rows["saved, 8 bits"]["bytes"]
    assert rows["save_on_cpu"]["bytes"] == rows["exact"]["bytes"]  # a CPU's tensors are there
    assert all(row["peak"] > row["bytes"] and row["time"] > 0 for row in rows.values())
    assert rows["exact"]["error"] == 0 and "saved, 2 bits" in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 10_000
    table = report.table(document)
    assert "| GPT | exact | 100.0 % | 100.0 % |" in table
    assert max(len(line) for line in table.splitlines() if line[:1] != "|") <= 125


# ---- what is measured


def test_bytes_are_those_that_are_left_and_the_most_at_once():
    def run():
        kept = torch.empty(1000)
        torch.empty(500)
        return kept.clone(), torch.empty(0)

    # Two of 4000 bytes, and one of 2000 that is gone before the second of them.
    assert frontier.allocated(run) == (4000, 8000)
    assert frontier.allocated(lambda: None) == (0, 0)


@pytest.mark.parametrize("name", models.LAYERS)
def test_the_exact_bytes_are_those_of_memory(cases, name):
    case = cases[name]
    kept, peak = frontier.bytes_of(_step(case, "exact"))
    counted = activations.memory(case.model, case.tokens, loss=case.loss)
    # memory counts the batch, which is there before; the loss and its weight are 4 bytes each.
    assert abs(counted.total - case.tokens.nbytes - kept) <= 64 + case.targets.nbytes
    gradients = sum(one.nbytes for one in case.model.parameters())
    assert gradients < peak < 1.5 * kept + 2 * gradients


def test_an_error_is_relative_to_the_whole_gradient(cases):
    case = cases[models.GPT]
    exact = _step(case, "exact")
    assert _error(exact, exact) == 0
    larger = frontier.Step(case.model, lambda: 1.25 * case.loss(case.model(case.tokens)))
    assert _error(larger, exact) == pytest.approx(0.25, rel=1e-5)
    assert all(parameter.grad is None for parameter in case.model.parameters())


def test_a_draw_is_a_seed(cases):
    step = _step(cases[models.GPT], "saved, 2 bits")
    first, again, other = (step.gradient(seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, again)) and not all(map(torch.equal, first, other))


@pytest.mark.parametrize("name", models.LAYERS)
@pytest.mark.parametrize(
    ("method", "least", "most"),
    [
        ("checkpoint, each 2 layers", 0, 1e-6),
        ("checkpoint, products kept", 0, 1e-6),
        ("save_on_cpu", 0, 0),
        ("convert, exact", 0, 1e-5),
        ("convert, 3-bit functions", 1e-4, 0.2),
        ("convert, saved 8 bits", 1e-4, 0.2),
        ("checkpoint, 8 bits", 1e-5, 0.1),
        ("projection 0.2, saved 4 bits", 1e-2, 5),
    ],
)
def test_methods_keep_less_and_err_as_they_should(cases, name, method, least, most):
    exact, step = _step(cases[name], "exact"), _step(cases[name], method)
    error = _error(step, exact)
    assert least <= error <= most
    kept = [frontier.bytes_of(one)[0] for one in (step, exact)]
    assert kept[0] < kept[1] or (method == "save_on_cpu" and kept[0] == kept[1])
    assert all(type(one) is not activations.GELU for one in cases[name].model.modules())


def test_products_that_are_kept_are_more_than_boundaries(cases):
    names = ("checkpoint, each layer", "checkpoint, products kept", "exact")
    kept = [frontier.bytes_of(_step(cases[models.GPT], name))[0] for name in names]
    assert kept == sorted(kept) and len(set(kept)) == 3


def test_what_cannot_be_compiled_has_the_reason(cases, monkeypatch):
    def compile(_):
        def fail(_):
            raise RuntimeError("no C++ compiler\nmore")

        return fail

    monkeypatch.setattr(torch, "compile", compile)
    names = ["compiled, fp8", "checkpoint, each layer"]
    rows, missing = frontier.measure(cases[models.GPT], names, 1)
    assert [row["method"] for row in rows] == names[1:]
    assert missing == {"GPT, compiled, fp8": "RuntimeError: no C++ compiler"}


def test_plans_keep_within_their_budget_or_have_the_reason(cases):
    names = ["fit 50 %", "fit 5 %"]
    known = [(methods.METHODS[name].budget, methods.METHODS[name].limit) for name in names]
    assert known == [(0.5, 1.1), (0.05, 1.1)]
    rows, missing = frontier.measure(cases[models.GPT], names[1:], 1)
    assert rows == [] and "nothing meets" in missing["GPT, fit 5 %"]
    step = frontier.Step(*methods._fitted(cases[models.GPT], "30%", None))
    exact = _step(cases[models.GPT], "exact")
    # Of what memory counts, with the batch; the benchmark's bytes are without it.
    assert frontier.bytes_of(step)[0] <= 0.3 * frontier.bytes_of(exact)[0] * 1.01
    assert _error(step, exact) < 0.5


def test_compiled_steps_are_of_their_settings(cases, monkeypatch):
    """By a backend that divides the graph like inductor, and compiles no C++."""
    real = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", real)
    case = cases[models.GPT]
    exact = _step(case, "exact")
    names = ("compiled", "compiled, budget 0.1", "compiled, fp8", "compiled, saved 4 bits")
    try:
        steps = {name: _step(case, name) for name in names}
        kept = {name: frontier.bytes_of(step)[0] for name, step in steps.items()}
        errors = {name: _error(step, exact) for name, step in steps.items()}
    finally:
        case.compiled.clear()
        torch.compiler.reset()
    assert kept["compiled, budget 0.1"] < 0.3 * kept["compiled"]
    assert kept["compiled, fp8"] < 0.5 * kept["compiled"]
    assert kept["compiled, saved 4 bits"] < 0.4 * kept["compiled"]
    assert errors["compiled"] < 1e-5 and errors["compiled, budget 0.1"] < 1e-5
    assert 1e-3 < errors["compiled, fp8"] < 0.3
    assert 1e-3 < errors["compiled, saved 4 bits"] < 1


# ---- which rows win


def _row(method, nbytes, time, error, family="ours", model="GPT"):
    row = {"method": method, "bytes": nbytes, "time": time, "error": error, "family": family}
    shares = {"share": nbytes / 1000, "peak": 2 * nbytes, "peak_share": nbytes / 500}
    times = {"time_q1": time, "time_q3": time, "time_compiled": None}
    return row | shares | times | {"model": model}


def test_tolerances():
    row = _row("a", 100, 1.0, 0.1)
    assert not pareto.dominates(row, _row("b", 100, 1.02, 0.105))  # the same
    assert pareto.dominates(row, _row("b", 100, 1.03, 0.1))
    assert pareto.dominates(row, _row("b", 100, 0.99, 0.106))
    assert pareto.dominates(row, _row("b", 101, 1.0, 0.1))
    assert not pareto.dominates(row, _row("b", 99, 2.0, 1.0))
    # Errors of another order of sums are no errors.
    assert not pareto.dominates(_row("a", 100, 1.0, 0.0), _row("b", 100, 1.0, 1e-6))


def test_of_two_rows_at_most_one_dominates():
    generator = random.Random(0)
    rows = [
        _row(str(i), 1000 * 1.01 ** generator.randrange(4), 1.015 ** generator.randrange(4), error)
        for i, error in enumerate(generator.choice((0, 1e-6, 0.1, 0.104, 0.2)) for _ in range(200))
    ]
    pairs = [(a, b) for a in rows for b in rows if pareto.dominates(a, b)]
    assert len(pairs) > 100 and not [1 for a, b in pairs if pareto.dominates(b, a)]


ROWS = [
    _row("exact", 1000, 1.0, 0.0, "torch"),
    _row("checkpoint", 90, 1.3, 0.0, "torch"),
    _row("few", 120, 1.02, 0.1),
    _row("fewer", 60, 1.03, 0.5),
    _row("slow", 125, 1.2, 0.1),
    _row("plan", 100, 1.05, 0.2, "fit") | {"budget": 0.11, "limit": 1.1},
    _row("elsewhere", 10, 0.1, 0.0, model="encoder"),
]


def test_rows_are_compared_within_a_model():
    found = {row["method"]: pareto.dominated_by(row, ROWS) for row in ROWS}
    assert found == dict.fromkeys(found) | {"slow": "few"}


def test_the_best_within_a_budget_has_the_least_error():
    rows = ROWS[:-1]
    assert pareto.best(rows, 0.5, 1.1)["method"] == "few"
    assert pareto.best(rows, 0.5, None)["method"] == "checkpoint"
    assert pareto.best(rows, 0.1, 1.1)["method"] == "plan"
    assert pareto.best(rows, 0.1, 1.1, ("ours",))["method"] == "fewer"
    assert pareto.best(rows, 0.05, None) is None
    # Of equal errors the fastest.
    assert pareto.best(rows[2:5:2], 0.5, None)["method"] == "few"


def test_figures_of_plans():
    results = Results({"frontier": {"rows": ROWS}})
    # Within 11 % of the bytes and 1.1 of the time there is also "fewer".
    assert pareto.fit_error(results) == pytest.approx(0.2 / 0.5)
    assert pareto.fit_over("share", "budget")(results) == pytest.approx(0.1 / 0.11)
    assert pareto.fit_over("time", "limit")(results) == pytest.approx(1.05 / 1.1)
    assert pareto.off_frontier("ours")(results) == 1
    assert pareto.off_frontier("fit")(results) == 0
    some = Results({"frontier": {"rows": ROWS[:2]}})
    for figure in (pareto.fit_error, pareto.fit_over("time", "limit"), pareto.off_frontier("fit")):
        with pytest.raises(Missing, match="no (plan|row of fit)"):
            figure(some)


def test_compiled_rows_are_another_world():
    compiled = _row("compiled", 90, 1.0, 0.0, "torch") | {"time_compiled": 1.0}
    rows = [*ROWS[:-1], compiled]
    assert pareto.eager(rows) == ROWS[:-1]
    found = {row["method"]: pareto.dominated_by(row, rows) for row in rows}
    assert found["few"] == found["plan"] == "compiled" and found["fewer"] is None
    # Plans are compared with what runs without torch.compile.
    assert pareto.fit_error(Results({"frontier": {"rows": rows}})) == pytest.approx(0.4)
    facts = {"cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13.0", "rounds": 1, "draws": 3}
    facts |= {"layers": 1, "width": 8, "sequence": 8, "batch": 1}
    text = report.frontier_table({"machine": facts, "rows": rows})
    assert "| few | 12.0 % | 24.0 % | 1.02 |  | 0.1 | compiled | - |" in text
    assert "| compiled | 9.0 % | 18.0 % | 1.00 | 1.00 | exact | - |  |" in text
    assert "elsewhere" not in text and "GPT      kept 10 %" in report.text_table(rows)


def test_the_table_of_budgets():
    facts = {"cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13.0"}
    lines = report.budgets_table({"machine": facts, "rows": ROWS}).splitlines()
    few, plan = "few: 0.1, 1.02x", "plan: 0.2, 1.05x"
    ours = [line for line in lines if line.startswith("| GPT")]
    assert len(ours) == len(pareto.BUDGETS) + len(report.PEAKS)
    cells = ["GPT", "kept 50 %", "", few, plan, "checkpoint: exact, 1.30x", "few: 0.1, 1.02x", plan]
    assert ours[0] == "| " + " | ".join(cells) + " |"
    assert ours[4] == "| GPT | kept 5 % |  |  |  |  |  |  |"
    assert ours[5].split(" | ")[1:4] == ["peak 40 %", "", few]
    assert "Of compiled functions" not in lines
