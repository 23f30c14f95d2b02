"""A model compiled as a whole, among the choices of `fit`, and in plans."""

from __future__ import annotations

import copy
import json
import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tests.activations.budget.cases
from tests.activations.budget.cases import MLP, Times, gradient, mlp, relative
from torch_cgx import activations
from torch_cgx.activations.budget import compiled
from torch_cgx.activations.budget.applying import apply
from torch_cgx.activations.budget.compile_option import CompileOption, better_of
from torch_cgx.activations.budget.fit import fit
from torch_cgx.activations.budget.plan import Plan

SHARE = {"activation_memory_budget": 0.2}


class Clock(Times):
    """A step of the compiled model takes as long as is said; by modules, as of `Times`."""

    def __init__(self, model: Any, took: float) -> None:
        super().__init__(again=9.0)
        self._model, self._compiled = model, took

    def ratio(self, run: Any, one: Any, other: Any) -> float:
        remove = other()
        found = self._compiled if "forward" in self._model.__dict__ else 1.0
        remove()
        return found


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and partitioned, and no code generated."""
    monkeypatch.setattr(compiled, "_BACKEND", "aot_eager")


def _fit(case: Any, budget: str, took: float, **options: Any) -> Plan:
    model, batch, loss = case
    given = {"time": 1.2, "compile": True, "verbose": False, "_timer": Clock(model, took)}
    return fit(model, batch, budget, loss=loss, **{**given, **options})


def _facts(model: torch.nn.Module) -> list[Any]:
    return [(n, id(m), sorted(m.__dict__)) for n, m in model.named_modules()]


def test_it_is_chosen_applied_and_removed(
    one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model, batch, loss = case = mlp(blocks=1)
    exact, facts, state = gradient(model, batch, loss), _facts(model), torch.get_rng_state()
    plan = _fit(case, "30%", 1.1, verbose=True)
    assert _facts(model) == facts and torch.equal(torch.get_rng_state(), state)
    share = plan["compile"]["activation_memory_budget"]
    assert plan.modules == {} and 0 < share < 0.4
    assert plan["error"]["measured"] < 1e-6 and plan["time"]["measured"] == 1.1
    lines = capsys.readouterr().out.splitlines()
    assert lines == str(plan).splitlines()
    assert f"(model)  compiled, activation_memory_budget {share:g}" in lines[1]
    assert lines[-1].startswith("without torch.compile: 2") and "error of the gradient" in lines[-1]

    handle = apply(model, json.loads(json.dumps(plan)))
    with pytest.raises(ValueError, match="plan already"):
        apply(model, plan)
    kept = activations.memory(model, batch, loss=loss).total
    assert kept == plan["bytes"]["measured"] <= plan["budget"]
    assert relative(gradient(model, batch, loss), exact) < 1e-6
    assert list(model.state_dict()) == list(mlp(blocks=1)[0].state_dict())
    assert handle.state_dict() == {"step": 0}
    handle.remove()
    handle.remove()
    assert _facts(model) == facts
    again = gradient(model, batch, loss)
    assert all(torch.equal(a, b) for a, b in zip(again, exact, strict=True))


def test_copies_and_pickles(one_thread: None) -> None:
    model, batch, loss = mlp(blocks=1)
    handle = apply(model, {"modules": {}, "compile": SHARE})
    exact = gradient(model, batch, loss)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.forward._module is other and other.forward._function is None
        with torch.no_grad():
            assert torch.equal(other(batch), model(batch))
        assert other.forward._function is None  # nothing is compiled without autograd
    assert relative(gradient(other, batch, loss), exact) < 1e-6
    assert other.forward._function is not None
    handle.remove()


def test_torch_compile_around_it_changes_nothing(one_thread: None) -> None:
    model, batch, loss = mlp(blocks=1)
    exact = activations.memory(model, batch, loss=loss).total
    handle = apply(model, {"modules": {}, "compile": SHARE})
    around = torch.compile(model, backend="aot_eager")
    assert activations.memory(around, batch, loss=loss).total < 0.4 * exact
    handle.remove()


def test_it_is_not_chosen_where_it_takes_too_long(one_thread: None) -> None:
    case = mlp(blocks=1)
    plan = _fit(case, "30%", 1.3)
    other = _fit(case, "30%", 1.3, compile=False)
    (note,) = plan.pop("notes")
    assert note.startswith("torch.compile: 1.30 of the time of a step with activation_memory_bud")
    assert plan == other and plan["compile"] is None and plan.modules and "notes" not in other


def test_dropout_of_which_torch_draws_other_masks(
    one_thread: None, recwarn: pytest.WarningsRecorder
) -> None:
    """Where torch computes them again, the gradient is wrong (2.13): never chosen, and told."""
    model, batch, loss = case = mlp(blocks=1, dropout=0.3)
    exact, found = gradient(model, batch, loss), []
    for share in (1, 0.2):
        plan = {"modules": {}, "compile": {"activation_memory_budget": share}}
        handle = apply(model, plan)
        found.append(relative(gradient(model, batch, loss), exact))
        gradient(model, batch, loss)
        handle.remove()
    told = [one for one in recwarn if "the gradient is wrong" in str(one.message)]
    assert len(told) == 1 and told[0].filename == tests.activations.budget.cases.__file__
    assert found[0] < 1e-6
    if found[1] < 1e-6:
        assert _fit(case, "25%", 1.0, time=1)["error"]["measured"] < 1e-6
        return
    recwarn.clear()
    with pytest.raises(ValueError, match=r"torch.compile: the model draws random .* wrong .* by"):
        _fit(case, "25%", 1.0, time=1)
    assert not [one for one in recwarn if "activation_memory_budget" in str(one.message)]


def test_it_is_chosen_where_nothing_else_meets_the_budget(one_thread: None) -> None:
    plan = _fit(mlp(blocks=1), "20%", 1.0, time=1)
    assert plan["compile"] and plan["bytes"]["measured"] <= plan["budget"]
    assert plan["notes"][0].startswith("without torch.compile: budget='20%' is")


def test_compilers_that_fail(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise OSError("no compiler here\nand more lines")

    monkeypatch.setattr(compiled, "_BACKEND", broken)
    case = mlp(blocks=1)
    facts = _facts(case[0])
    plan = _fit(case, "30%", 1.0)
    assert plan["compile"] is None and plan.modules
    assert str(plan).splitlines()[-1] == "torch.compile: OSError: no compiler here"
    text = r"with time=1; allowed: .*; torch.compile: OSError: no compiler here$"
    with pytest.raises(ValueError, match=text):
        _fit(case, "20%", 1.0, time=1)
    assert _facts(case[0]) == facts


def _plan(error: float, took: float) -> Plan:
    sizes, time = {"exact": 100, "measured": 20}, {"measured": took}
    return Plan(bytes=sizes, error={"measured": error}, time=time)


@pytest.mark.parametrize(
    ("by_modules", "whole", "chosen"),
    [
        (_plan(0.01, 1.0), _plan(1e-7, 1.1), True),
        (_plan(0.01, 1.0), _plan(0.02, 0.5), False),  # of another rounding
        (_plan(1e-7, 1.1), _plan(2e-7, 1.05), True),  # both exact
        (_plan(0.0, 1.0), _plan(1e-7, 1.05), False),
        (_plan(0.0, 1.1), _plan(1e-3, 1.0), False),
        (_plan(0.01, 1.0), "why", False),
        ("nothing meets it", _plan(1e-7, 1.0), True),
    ],
)
def test_which_is_better(by_modules: Any, whole: Any, chosen: bool) -> None:
    found = better_of(by_modules, whole)
    assert isinstance(found, Plan) and len(found["notes"]) == 1
    expected = whole if chosen else by_modules
    assert {key: found[key] for key in expected} == expected
    assert found["notes"][0].startswith("without torch.compile: " if chosen else "torch.compile: ")
    assert better_of("nothing", "why") == "nothing; torch.compile: why"


@pytest.mark.parametrize(
    ("budget", "tries", "share"),
    [(1000, 1, 1.0), (560, 2, 0.4094), (550, 4, 0.2553), (150, 3, 0.0)],
)
def test_the_share_of_a_budget(budget: int, tries: int, share: float) -> None:
    seen, plan = _searched(budget)
    assert isinstance(plan, Plan) and plan["bytes"]["measured"] <= budget
    assert plan["compile"]["activation_memory_budget"] == pytest.approx(share, abs=1e-3)
    assert len(seen) == tries and seen == sorted(seen, reverse=True)


def test_a_budget_below_the_least_share() -> None:
    seen, why = _searched(109)
    assert why == "110 bytes with activation_memory_budget=0, the least there is"
    assert seen[-2:] == sorted({*seen[-2:]}, reverse=True)  # none is tried twice
    assert _searched(100) == ([], "the loss alone keeps 100 bytes")


def _searched(budget: int) -> tuple[list[float], Plan | str]:
    """Of 1000 bytes the loss keeps 100; the least is 110, and it falls in ten steps."""
    seen: list[float] = []
    model = mlp(blocks=1)[0]

    def memory() -> Any:
        seen.append(model.__dict__["forward"].share)
        return SimpleNamespace(total=110 + 89 * math.ceil(10 * seen[-1]))

    kept = SimpleNamespace(nbytes=100, saves=(SimpleNamespace(module="(loss)"),))
    exact: Any = SimpleNamespace(total=1000, storages=[kept])
    gradient = SimpleNamespace(error=lambda: 0.0, now=lambda: None)
    trials: Any = SimpleNamespace(model=model, memory=memory, gradient=gradient)
    plan = CompileOption(trials, exact, 1.0, Times()).plan(budget, None)
    assert "forward" not in model.__dict__
    return seen, plan


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"compile": 0.2}, "the plan's compile is 0.2; allowed: None, {'activation_memory_budget'"),
        ({"compile": {}}, "the plan's compile is {}; allowed"),
        ({"compile": {"activation_memory_budget": 1.5}}, "1.5}; allowed"),
        ({"compile": {"activation_memory_budget": float("nan")}}, "nan}; allowed"),
        ({"compile": {"activation_memory_budget": True}}, "True}; allowed"),
        ({"compile": {**SHARE, "backend": "x"}}, "'backend': 'x'}; allowed"),
        ({"compile": SHARE, "modules": {"last": {"saved": "half"}}}, "'compile', and modules has"),
    ],
)
def test_what_is_refused(plan: dict[str, Any], text: str) -> None:
    model = mlp(blocks=1)[0]
    facts = _facts(model)
    with pytest.raises(ValueError, match=text):
        apply(model, {"modules": {}, **plan})
    assert _facts(model) == facts


def test_models_that_are_not_compiled() -> None:
    model, batch, _ = mlp(blocks=1)
    with pytest.raises(TypeError, match="compile=1; allowed: True, False"):
        fit(model, batch, compile=1)  # type: ignore[arg-type]
    model.forward = model.forward
    with pytest.raises(ValueError, match="the model's forward is set on the object"):
        apply(model, {"modules": {}, "compile": SHARE})
    assert isinstance(model, MLP)
    model.compile(backend="aot_eager")
    with pytest.raises(ValueError, match="model is of type MLP, which is compiled"):
        apply(model, {"modules": {}})


def test_plans_by_hand_are_shown() -> None:
    assert "compiled, activation_memory_budget=0.2" in str(Plan(modules={}, compile=SHARE))
