"""`apply`: plans carried out, edited, kept as JSON, taken back; and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.activations.budget.cases import MLP, Times, encoder, gpt, gradient, mlp, relative
from torch_cgx import activations
from torch_cgx.activations.budget.applying import apply
from torch_cgx.activations.budget.fit import fit
from torch_cgx.activations.budget.plan import Plan

FOUR = {"codec": "maxmin", "bits": 4}
EVERYTHING: dict[str, Any] = {
    "first": {"linear": {"keep": 0.5, "method": "rows"}, "saved": FOUR},
    "blocks.0.norm": {"norm": True, "saved": {"bits": 8}},
    "blocks.0.activation": {"activation": 3},
    "blocks.0.down": {"linear": 0.5},
    "blocks.0.dropout": {"dropout": True},
    "blocks.1": {"checkpoint": True, "saved": "half"},
    "last": {"saved": {"codec": "rotated", "bits": 3}},
}


def _same(found: list[torch.Tensor], exact: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))


def test_all_settings_and_their_removal(one_thread: None) -> None:
    model, batch, loss = mlp()
    exact, output = gradient(model, batch, loss), model(batch)
    facts = [(n, id(m), sorted(m.__dict__)) for n, m in model.named_modules()]
    before = activations.memory(model, batch, loss=loss)
    handle = apply(model, {"modules": EVERYTHING})
    assert [type(model.get_submodule(f"blocks.0.{n}")).__module__ for n in ("norm", "down")] == [
        "torch_cgx.activations.layers.norm_modules",
        "torch_cgx.activations.projection.modules",
    ]
    assert list(model.state_dict()) == list(mlp()[0].state_dict())
    assert torch.equal(model(batch), output)
    report = activations.memory(model, batch, loss=loss)
    assert report.total < 0.5 * before.total
    assert report.by_module["blocks.1"] == batch.nbytes // 2  # the input in 16 bits, counted once
    assert 0 < relative(gradient(model, batch, loss), exact) < 2
    handle.remove()
    handle.remove()
    assert facts == [(n, id(m), sorted(m.__dict__)) for n, m in model.named_modules()]
    assert _same(gradient(model, batch, loss), exact)
    assert activations.memory(model, batch, loss=loss).rows == before.rows


@pytest.mark.parametrize("kind", (True, "selective"))
@pytest.mark.parametrize("case", (mlp, encoder, gpt))
def test_recomputed_blocks_have_the_exact_gradient(
    case: Callable[[], Any], kind: Any, one_thread: None
) -> None:
    model, batch, loss = case()
    names = [n for n, _ in model.named_modules() if n in ("layers.0", "layers.1")]
    names = names or ["blocks.0", "blocks.1"]
    exact, before = gradient(model, batch, loss), activations.memory(model, batch, loss=loss)
    handle = apply(model, {"modules": {name: {"checkpoint": kind} for name in names}})
    assert _same(gradient(model, batch, loss), exact)
    report = activations.memory(model, batch, loss=loss)
    assert report.total < before.total
    assert all(report.by_module[name] > 0 for name in names[1:])
    handle.remove()


def test_a_selective_checkpoint_counts_the_products_that_it_keeps(one_thread: None) -> None:
    model, batch, loss = mlp(blocks=1, width=32)
    handle = apply(model, {"modules": {"blocks.0": {"checkpoint": "selective"}}})
    report = activations.memory(model, batch, loss=loss)
    assert report.by_module["blocks.0"] == batch.nbytes * (1 + 4 + 1)  # input, up, down
    handle.remove()


def test_dropout_in_a_recomputed_block_has_the_same_mask(one_thread: None) -> None:
    model, batch, loss = mlp(dropout=0.3)
    exact = gradient(model, batch, loss)
    handle = apply(model, {"modules": {"blocks.0": {"checkpoint": True}}})
    assert _same(gradient(model, batch, loss), exact)
    handle.remove()


def test_json_keeps_plans(one_thread: None) -> None:
    model, batch, loss = case = mlp()
    plan = fit(*case[:2], "20%", time=1.2, loss=loss, verbose=False, _timer=Times(again=9.0))
    again = json.loads(json.dumps(plan))
    assert again == plan
    found = []
    for one in (plan, again):
        handle = apply(model, one)
        assert isinstance(handle.plan, Plan)
        found.append(gradient(model, batch, loss))
        assert activations.memory(model, batch, loss=loss).total == plan["bytes"]["measured"]
        handle.remove()
    assert _same(*found)
    assert str(Plan(again)) == str(plan)


def test_edited_plans(one_thread: None) -> None:
    model, batch, loss = case = mlp()
    plan = fit(*case[:2], "30%", time=1.2, loss=loss, verbose=False, _timer=Times(again=9.0))
    edited = json.loads(json.dumps(plan))
    edited["modules"].pop("blocks.0.down")
    edited["modules"]["blocks.1"] = {"checkpoint": True}
    handle = apply(model, edited)
    report = activations.memory(model, batch, loss=loss)
    assert report.by_module["blocks.0.down"] == 4 * batch.nbytes
    assert "blocks.1.down" not in report.by_module
    assert "blocks.0.down" in plan.modules  # the plan itself is as it was
    handle.remove()
    assert "settings" in str(Plan(modules=EVERYTHING)) and "blocks.1" in str(
        Plan(modules={"blocks.1": {}})
    )


def test_steps_of_resumed_runs(one_thread: None) -> None:
    """Stochastic rounding goes on where it was."""
    model, batch, loss = mlp()
    plan = {"modules": {"last": {"saved": FOUR}}}
    handle = apply(model, plan)
    found = [gradient(model, batch, loss) for _ in range(3)]
    assert handle.state_dict() == {"step": 3} and not _same(found[1], found[2])
    handle.remove()
    resumed = apply(model, plan)
    resumed.load_state_dict({"step": 2})
    assert _same(gradient(model, batch, loss), found[2])
    with pytest.raises(ValueError, match="allowed"):
        resumed.load_state_dict({"step": -1})
    resumed.remove()
    plain = apply(model, {"modules": {"blocks.0": {"checkpoint": True}}})
    plain.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="allowed without compression: step 0"):
        plain.load_state_dict({"step": 1})
    plain.remove()


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        ({"third": {"saved": FOUR}}, "modules has 'third', which MLP lacks; it has: first, blocks"),
        ({"first": {"bits": 4}}, r"modules\['first'\] has 'bits'; allowed: activation, checkpoint"),
        ({"first": 4}, r"modules\['first'\] is 4; allowed"),
        ({"first": {"saved": {"bits": 9}}}, r"modules\['first'\]\['saved'\].*9"),
        ({"first": {"saved": {"codec": "x"}}}, "codec is 'x'; allowed"),
        ({"first": {"saved": 4}}, r"\['saved'\]=4; allowed"),
        ({"first": {"linear": 2.0}}, r"\['linear'\].*keep=2.0; allowed"),
        ({"first": {"linear": "all"}}, r"\['linear'\].*'all'; allowed"),
        ({"first": {"norm": True}}, r"\['norm'\]=True: Linear is of another kind"),
        ({"blocks.0.norm": {"norm": 1}}, r"\['norm'\]=1; allowed: True, or no entry"),
        ({"blocks.0.activation": {"activation": 5}}, "=5; allowed: integers from 1 to 4"),
        ({"blocks.0.activation": {"linear": 0.2}}, r"\['linear'\]=0.2: GELU is of another kind"),
        ({"blocks.0": {"checkpoint": False}}, "=False; allowed: True, 'selective', or no entry"),
        ({"": {"checkpoint": True}}, "the model as a whole is not computed again"),
        ({"": {"norm": True}}, "no module holds the model"),
    ],
)
def test_what_is_refused_changes_nothing(modules: dict[str, Any], text: str) -> None:
    model = mlp()[0]
    facts = [(n, id(m), sorted(m.__dict__)) for n, m in model.named_modules()]
    with pytest.raises(ValueError, match=text):
        apply(model, {"modules": {"last": {"linear": 0.5, "saved": FOUR}, **modules}})
    assert facts == [(n, id(m), sorted(m.__dict__)) for n, m in model.named_modules()]


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        (3, TypeError, "plan is of type int; allowed: a Plan, a dict"),
        ({}, ValueError, "the plan's modules are None"),
        ({"modules": {}, "version": 2}, ValueError, "the plan's version is 2; allowed: 1"),
        ({"modules": {}, "layers": {}}, ValueError, "plan has 'layers'; allowed: version"),
    ],
)
def test_what_is_no_plan(plan: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        apply(mlp()[0], plan)


def test_two_plans(one_thread: None) -> None:
    model = mlp()[0]
    outer = nn.Sequential(model)
    handle = apply(model, {"modules": {"last": {"saved": FOUR}}})
    for one in (model, outer):
        with pytest.raises(ValueError, match="has a plan already"):
            apply(one, {"modules": {}})
    handle.remove()
    apply(outer, {"modules": {"0.last": {"linear": 0.5}}}).remove()


def test_shared_modules_and_shared_weights(one_thread: None) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 32)
    model = nn.Sequential(layer, nn.GELU(), layer, nn.Linear(32, 32))
    model[3].weight = layer.weight
    batch = torch.randn(64, 32)
    with pytest.raises(ValueError, match="'2' and '0', which are one module"):
        apply(model, {"modules": {"0": {"linear": 0.5}, "2": {"linear": 0.5}}})
    handle = apply(model, {"modules": {"2": {"linear": 0.5}}})
    assert model[0] is model[2] is not layer and model[3].weight is model[0].weight
    handle.remove()
    assert model[0] is model[2] is layer
    plan = fit(model, batch, "30%", time=None, verbose=False, _timer=Times())
    handle = apply(model, plan)
    assert activations.memory(model, batch).total <= plan["budget"]
    handle.remove()


def test_copies_and_pickles_of_an_applied_model(one_thread: None) -> None:
    model, batch, loss = mlp()
    handle = apply(model, {"modules": EVERYTHING})
    kept = activations.memory(model, batch, loss=loss).total
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert activations.memory(other, batch, loss=loss).total == kept
        assert other.blocks[1].forward._module is other.blocks[1]
        with pytest.raises(ValueError, match="plan already"):
            apply(other, {"modules": {}})
    handle.remove()


def test_evaluation_and_no_grad(one_thread: None) -> None:
    model, batch, _ = mlp()
    handle = apply(model, {"modules": EVERYTHING})
    with torch.no_grad():
        output = model.eval()(batch)
    handle.remove()
    assert torch.equal(output, model(batch))


def test_torch_compile(one_thread: None) -> None:
    """Recomputation is part of the graph; "saved" is an error by name, as is a compiled model."""
    model, batch, loss = mlp(blocks=1)
    exact = gradient(model, batch, loss)
    handle = apply(model, {"modules": {"blocks.0": {"checkpoint": True}}})
    compiled = torch.compile(model, backend="aot_eager")
    assert relative(gradient(compiled, batch, loss), exact) < 1e-5
    handle.remove()
    with pytest.raises(ValueError, match="model is of type OptimizedModule, which is compiled"):
        apply(compiled, {"modules": {}})
    handle = apply(model, {"modules": {"last": {"saved": FOUR}}})
    with pytest.raises(RuntimeError, match="a compiled function saves tensors of several modules"):
        loss(torch.compile(model, backend="aot_eager")(batch))
    handle.remove()
    assert isinstance(model, MLP)
