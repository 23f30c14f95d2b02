"""`fit`: budgets, times, what is refused, and a model that is as before."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from tests.activations.budget.cases import MODELS, Times, gpt, gradient, mlp, relative
from torch_cgx import activations
from torch_cgx.activations.budget.applying import apply
from torch_cgx.activations.budget.fit import Fitting, fit
from torch_cgx.activations.budget.plan import Plan


def _fit(case: Any, budget: Any, **options: Any) -> Plan:
    model, batch, loss = case
    given = {"time": None, "verbose": False, "_timer": Times(), **options}
    return fit(model, batch, budget, loss=loss, **given)


@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_met_and_larger_ones_err_less(name: str, one_thread: None) -> None:
    model, batch, loss = MODELS[name]()
    exact = activations.memory(model, batch, loss=loss).total
    wanted = gradient(model, batch, loss)
    # No recomputation: its time is above the limit.
    fitting = Fitting(model, batch, loss, Times(again=9.0))
    errors, least = [], 0.5 if name == "gpt" else 0.12
    for part in (1.0, 0.5, 0.3, 0.2, 0.12):
        if part < least:
            continue
        plan = fitting.plan(f"{100 * part}%", 1.25)
        handle = apply(model, plan)
        try:
            report = activations.memory(model, batch, loss=loss)
            handle.load_state_dict({"step": 0})
            error = relative(gradient(model, batch, loss), wanted)
        finally:
            handle.remove()
        assert report.total == plan["bytes"]["measured"] <= part * exact
        assert report.total >= 0.6 * part * exact or error == 0
        assert error == pytest.approx(plan["error"]["measured"], rel=1e-3, abs=1e-6)
        assert plan["error"]["predicted"] == pytest.approx(error, rel=0.5, abs=1e-6)
        errors.append(plan["error"]["predicted"])
    assert errors == sorted(errors)
    assert errors[0] == 0 < errors[-1]
    assert not any("checkpoint" in one for one in plan.modules.values())


def test_it_errs_less_than_the_same_bits_everywhere(one_thread: None) -> None:
    model, batch, loss = case = gpt()
    wanted = gradient(model, batch, loss)
    for bits in (8, 3):
        handle = activations.compress(model, {"codec": "maxmin", "bits": bits})
        kept = activations.memory(model, batch, loss=loss).total
        handle.load_state_dict({"step": 0})
        uniform = relative(gradient(model, batch, loss), wanted)
        handle.remove()
        plan = _fit(case, kept, time=1.25, _timer=Times(again=9.0))
        assert plan["error"]["measured"] < uniform
        assert plan["bytes"]["measured"] <= kept


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_as_before(name: str, one_thread: None) -> None:
    model, batch, loss = case = MODELS[name]()
    loss(model(batch)).backward()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    grads = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    facts = [(n, type(m), sorted(m.__dict__)) for n, m in model.named_modules()]
    state = torch.get_rng_state()
    _fit(case, "30%")
    with pytest.raises(ValueError):
        _fit(case, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert facts == [(n, type(m), sorted(m.__dict__)) for n, m in model.named_modules()]
    now = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(a is one and torch.equal(one, b) for a, (one, b) in zip(now, grads, strict=True))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_time_chooses_between_recomputation_and_few_bits(one_thread: None) -> None:
    case = mlp(blocks=4)

    def again(plan: Plan) -> int:
        return sum("checkpoint" in one for one in plan.modules.values())

    fitting = Fitting(*case, Times())
    free = fitting.plan("30%", None)
    assert again(free) == 4 and free["error"]["measured"] == 0
    some = fitting.plan("30%", 1.2)
    assert 0 < again(some) < 4 and some["time"]["predicted"] <= 1.2
    none = fitting.plan("30%", 1.05)
    assert again(none) == 0
    assert 0 < some["error"]["predicted"] < none["error"]["predicted"]


def test_a_time_of_one_allows_what_takes_none(one_thread: None) -> None:
    case = mlp()
    plan = _fit(case, "99%", time=1)
    assert plan["time"]["predicted"] <= 1
    assert not any({"checkpoint", "saved", "linear"} & set(one) for one in plan.modules.values())
    with pytest.raises(ValueError, match=r"with time=1; .*with time=None at least \d+ bytes"):
        _fit(case, "20%", time=1)


@pytest.mark.parametrize("took", (2.0, 1.21))
def test_a_plan_that_took_too_long_is_tightened(took: float, one_thread: None) -> None:
    class Slow(Times):
        """Computing again takes longer than was predicted."""

        calls = 0

        def ratio(self, run: Any, one: Any, other: Any) -> float:
            Slow.calls += 1
            remove = other()
            slow = any("forward" in m.__dict__ for m in case[0].modules())
            remove()
            return took if slow else 1.0

    case = mlp(blocks=4)
    plan = _fit(case, "30%", time=1.2, _timer=Slow())
    assert not any("checkpoint" in one for one in plan.modules.values())
    assert plan["time"]["measured"] == 1.0 and Slow.calls >= 2


@pytest.mark.parametrize("time", (None, 1.1))
def test_a_budget_that_nothing_meets(time: float | None, one_thread: None) -> None:
    model, batch, loss = case = mlp()
    exact = activations.memory(model, batch, loss=loss).total
    with pytest.raises(ValueError, match=r"budget='0.01%' is \d+ bytes, which nothing") as caught:
        _fit(case, "0.01%", time=time)
    words = str(caught.value).split("allowed: at least ")[1].split()
    least = int(words[0])
    assert f"of {exact})" in str(caught.value)
    plan = _fit(case, least, time=time)
    assert plan["bytes"]["measured"] == least
    if time is None:
        assert _fit(case, words[2].strip("("))["bytes"]["measured"] >= least
        with pytest.raises(ValueError, match=f"at least {least} bytes"):
            _fit(case, least - 1)


def test_the_whole_budget_changes_nothing(one_thread: None) -> None:
    plan = _fit(mlp(), "100%")
    assert plan.modules == {} and plan["error"]["measured"] == 0
    assert plan["bytes"]["exact"] == plan["bytes"]["measured"]


def test_dropout_masks_are_equal_in_what_is_compared(one_thread: None) -> None:
    """Masks that differ would make errors above 1."""
    case = mlp(dropout=0.2)
    plan = _fit(case, "40%", time=1.25, _timer=Times(again=9.0))
    assert 0 < plan["error"]["measured"] < 0.02
    assert any(one.get("dropout") for one in plan.modules.values())


def test_equal_arguments_give_equal_plans(one_thread: None) -> None:
    plans = [_fit(mlp(), "25%", time=1.15) for _ in range(2)]
    assert json.dumps(plans[0]) == json.dumps(plans[1])


def test_plans_of_several_budgets_are_those_of_each_alone(one_thread: None) -> None:
    model, batch, loss = case = mlp()
    fitting = Fitting(model, batch, loss, Times())
    found = [fitting.plan(budget, 1.15) for budget in ("100%", "25%", "50%", "25%")]
    assert json.dumps(found[1]) == json.dumps(found[3]) == json.dumps(_fit(case, "25%", time=1.15))
    assert found[0].modules == {} and found[2]["error"]["measured"] < found[1]["error"]["measured"]


def test_query_key_and_value_have_one_coding(one_thread: None) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x)
            q, k, v = self.query(x), self.key(x), self.value(x)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    case = nn.Sequential(Attention()), torch.randn(8, 32, 32), lambda y: y.square().mean()
    plan = _fit(case, "25%")
    settings = [plan.modules[f"0.{name}"] for name in ("query", "key", "value")]
    assert settings[0] == settings[1] == settings[2] != {}


def test_few_bit_functions_are_among_the_choices(one_thread: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 8))
    case = model, torch.randn(64, 32), lambda y: y.square().mean()
    seen: set[str] = set()
    for budget in ("70%", "40%", "20%", "10%"):
        for settings in _fit(case, budget).modules.values():
            seen |= set(settings)
    assert {"activation", "saved"} <= seen


def test_the_least_budgets_take_rows_of_linear_layers(one_thread: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8))
    case = model, torch.randn(256, 64), lambda y: y.sum()
    plan = _fit(case, "3%")
    assert any("linear" in one for one in plan.modules.values())


def test_types(one_thread: None) -> None:
    """Casts of weights by autocast are no one's; what codecs do not take is computed again."""
    model, batch, loss = mlp()
    slow = Times(again=9.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plan = fit(model, batch, "40%", time=1.25, loss=loss, verbose=False, _timer=slow)
    assert 0 < plan["error"]["measured"] < 0.05
    case = model.double(), batch.double(), loss
    plan = _fit(case, "40%")
    assert plan["error"]["measured"] == 0
    assert {key for one in plan.modules.values() for key in one} <= {"checkpoint", "norm"}


def test_batches_in_all_forms_and_losses_of_the_model(one_thread: None) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()[0]

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.inner(x) - target).square().mean()}

    x, target = torch.randn(8, 16, 32), torch.randn(8, 16, 8)
    model, found = Loss(), []
    for batch in ((x, target), {"x": x, "target": target}):
        found.append(fit(model, batch, "50%", time=None, verbose=False, _timer=Times()))
    assert found[0].modules == found[1].modules != {}


def test_copies_have_plans_of_the_original(one_thread: None) -> None:
    model, batch, loss = case = mlp()
    plan = _fit(case, "30%")
    other = copy.deepcopy(model)
    handle = apply(other, plan)
    assert activations.memory(other, batch, loss=loss).total == plan["bytes"]["measured"]
    handle.remove()


def test_what_is_printed(capsys: pytest.CaptureFixture[str], one_thread: None) -> None:
    plan = _fit(mlp(), "30%", verbose=True)
    assert capsys.readouterr().out == f"{plan}\n"
    lines = str(plan).splitlines()
    assert lines[0].split() == "modules what is kept exact bytes error".split()
    assert "computed again" in str(plan) and lines[-2].startswith("total")
    assert "% of the bytes (budget" in lines[-1]
    sizes = [row["exact"] for row in plan["rows"]]
    assert sum(sizes) == plan["bytes"]["exact"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": 0}, ValueError, "budget=0; allowed: bytes above 0"),
        ({"budget": "40"}, ValueError, "budget='40'; allowed"),
        ({"budget": "-4%"}, ValueError, "budget='-4%'; allowed"),
        ({"budget": "many%"}, ValueError, "budget='many%'; allowed"),
        ({"budget": 0.4}, TypeError, "budget=0.4; allowed: bytes, an int; a string as '40%'"),
        ({"budget": True}, TypeError, "budget=True"),
        ({"time": 0.9}, ValueError, "time=0.9; allowed: numbers from 1, None"),
        ({"time": float("nan")}, ValueError, "time=nan"),
        ({"time": "1.1"}, TypeError, "time='1.1'"),
        ({"model": 3}, TypeError, "model is of type int"),
        ({"batch": 3}, TypeError, "batch is of type int"),
        ({"loss": lambda y: y}, ValueError, "loss returned a tensor of shape"),
        ({"loss": 3}, TypeError, "loss is of type int"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    model, batch, loss = mlp()
    given = {"model": model, "batch": batch, "budget": "40%", "loss": loss, **options}
    with pytest.raises(error, match=text.replace("(", r"\(")):
        fit(verbose=False, **given)


def test_a_model_with_a_plan_is_refused(one_thread: None) -> None:
    model, batch, loss = case = mlp()
    handle = apply(model, {"modules": {"last": {"saved": {"bits": 4}}}})
    with pytest.raises(ValueError, match="the model has a plan already"):
        _fit(case, "40%")
    handle.remove()
    _fit(case, "90%")


def test_times_are_measured(one_thread: None) -> None:
    """With the real clock, whatever it says."""
    model, batch, loss = mlp()
    plan = fit(model, batch, "50%", time=None, loss=loss, verbose=False)
    assert plan["time"]["exact"] > 0 and plan["time"]["measured"] > 0
    assert plan["bytes"]["measured"] <= plan["budget"]
