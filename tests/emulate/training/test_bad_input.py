"""What apply, and casts in a step, refuse: errors that name it, and nothing has changed."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tests.emulate.training.models import equal, images, mlp, net, snapshot, step
from torch_cgx import emulate


def refused(error, text, model, optimizer=None, **given):
    """apply() raises, and model and optimizer are as before; then it works."""
    before = snapshot(model, optimizer if isinstance(optimizer, torch.optim.Optimizer) else None)
    with pytest.raises(error, match=text) as found:
        emulate.apply(model, optimizer, **given)
    assert (
        "allowed" in str(found.value)
        or "has none of" in str(found.value)
        or "exact are" in str(found.value)
    )
    own = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    assert snapshot(model, own) == before


ARGUMENTS = [
    ({}, ValueError, "nothing would be cast; allowed: recipe=, or formats for gemm, weights"),
    ({"recipe": "fp7"}, ValueError, "recipe='fp7'; allowed: bf16, fp8_delayed.*cpd.E,M.*or a dict"),
    ({"recipe": 8}, TypeError, "recipe is of type int; allowed: a name, a dict, None"),
    ({"recipe": {"gem": "e4m3fn"}}, ValueError, "the recipe has the key 'gem'; allowed: name, so"),
    ({"recipe": {3: "e4m3fn"}}, ValueError, "the recipe has the key 3; allowed"),
    ({"recipe": "cpd(9,3)"}, ValueError, "exponent='9'"),
    ({"recipe": "smaq(2,8)"}, ValueError, "main_bits='2'"),
    ({"gemm": "e4m3fm"}, ValueError, "gemm: format is 'e4m3fm', allowed"),
    ({"gemm": 3.5}, TypeError, "gemm: format is 3.5, allowed"),
    ({"gemm": {"inptu": "e4m3fn"}}, ValueError, "gemm has the keys inptu; allowed: forward, dgrad"),
    ({"gemm": {}}, ValueError, "nothing would be cast; allowed"),
    (
        {"gemm": {"input": "e5m2", "hadamard": 7}},
        ValueError,
        "gemm: hadamard=7; allowed: 0, powers",
    ),
    ({"gemm": {"accumulate": "mxfp4"}}, ValueError, "accumulate=block.*allowed: a format that has"),
    ({"gemm": {"input": "e5m2", "kahan": True}}, ValueError, "kahan=True with accumulate='fp32'"),
    ({"weights": "e4m3fm"}, ValueError, "weights: format is 'e4m3fm', allowed"),
    ({"activations": 8}, TypeError, "activations: format is 8, allowed"),
    ({"weights": {"fmt": "bf16"}}, ValueError, "weights has the keys fmt; allowed: format, except"),
    (
        {"weights": {"format": "bf16", "except": "BatchNorm2d"}},
        TypeError,
        "weights: except='BatchNorm2d'; allowed: a list of names of classes",
    ),
    (
        {"weights": {"format": "bf16", "except": [nn.BatchNorm2d]}},
        TypeError,
        "weights: except=.*; allowed: a list of names of classes",
    ),
    ({"weights": {"format": "bf16", "except": 3}}, TypeError, "weights: except=3; allowed: a list"),
    (
        {"activations": {"format": "bf16", "aps": True}},
        ValueError,
        "activations has the keys format, aps; allowed: format",
    ),
    (
        {"gradients": {"format": "e4m3", "aps": 1}},
        TypeError,
        "gradients: aps=1; allowed: True, False",
    ),
    (
        {"gradients": {"format": "mxfp4", "aps": True}},
        ValueError,
        "gradients: aps=True with block.*; allowed: a Float, which has a range",
    ),
    ({"gemm": "bf16", "seed": -1}, ValueError, r"seed=-1; allowed: integers of 0 to 2\*\*63 - 1"),
    ({"gemm": "bf16", "seed": 2**63}, ValueError, "seed=9223372036854775808; allowed"),
    ({"gemm": "bf16", "seed": True}, ValueError, "seed=True; allowed"),
    (
        {"gemm": "bf16", "filter": "("},
        ValueError,
        r"filter='\(' is no regular expression, allowed: a patt",
    ),
    ({"gemm": "bf16", "filter": 3}, ValueError, "filter=3 is no regular expression"),
    ({"gemm": "bf16", "layers": "0"}, TypeError, "layers is of type str; allowed: a dict of regul"),
    ({"gemm": "bf16", "layers": {"[": "exact"}}, ValueError, r"a key of layers='\[' is no regular"),
    ({"layers": {"0": "e9"}}, ValueError, r"layers\['0'\]: format is 'e9'"),
    (
        {"gemm": "bf16", "filter": "nowhere"},
        ValueError,
        "filter='nowhere' matches no module; allowed: what",
    ),
    (
        {"weights": "bf16", "filter": "nowhere"},
        ValueError,
        "filter='nowhere' matches no module or parameter; allowed: .* 0, .*",
    ),
    (
        {"gemm": "bf16", "filter": "^1$"},
        ValueError,
        r"nothing is left to cast: filter='\^1\$' .* allowed: .* 0, 2, 4, 6",
    ),
    (
        {"recipe": "mxfp8", "layers": {"head": "exact"}},
        ValueError,
        r"layers\['head'\] matches no layer with a GEMM; allowed: .* 0, 2, 4, 6",
    ),
    (
        {"gemm": "bf16", "first_last": (2, 2)},
        ValueError,
        r"nothing is left to cast: exact are 0, 2, 4, 6 \(first_last, layers, filter\)",
    ),
]


@pytest.mark.parametrize("given, error, text", ARGUMENTS)
def test_arguments(given, error, text):
    model = mlp()
    refused(error, text, model, torch.optim.SGD(model.parameters(), lr=0.1), **given)


@pytest.mark.parametrize("model", [None, [nn.Linear(2, 2)], nn.Linear, lambda x: x])
def test_other_things_than_models(model):
    with pytest.raises(TypeError, match="model is of type .*; allowed: a torch.nn.Module"):
        emulate.apply(model, recipe="mxfp8")


@pytest.mark.parametrize(
    "model, text",
    [
        (
            nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4)),
            "no layer with one .*has Embedding, La",
        ),
        (nn.LSTM(4, 4), "no layer with one that can be emulated: .*has LSTM"),
        (
            nn.Sequential(nn.LazyLinear(4), *mlp()),
            "0 is a LazyLinear without weights; allowed: one",
        ),
        (nn.Linear(4, 4, dtype=torch.complex64), "no layer with one that can be emulated"),
        (nn.Linear(4, 4), "nothing is left to cast: exact are ?"),
    ],
)
def test_models_without_layers_for_the_recipe(model, text):
    classes = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=text):
        emulate.apply(model, recipe="mxfp8")
    assert [type(m) for m in model.modules()] == classes
    assert not any("_cgx" in key for m in model.modules() for key in m.__dict__)
    if not isinstance(model[0] if isinstance(model, nn.Sequential) else model, nn.LazyLinear):
        emulate.apply(model, recipe="smaq68").remove() if not _complex(model) else None


def _complex(model):
    return any(p.is_complex() for p in model.parameters())


def test_a_lazy_layer_after_its_first_pass():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(4), nn.LazyLinear(4))
    model(torch.ones(2, 3))
    assert list(emulate.apply(model, recipe="mxfp8").layers) == ["1"]


# ---- optimizers ----


def test_optimizers_of_other_models_and_types():
    model = mlp()
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    refused(
        ValueError, "the optimizer has none of the model's parameters", model, other, weights="bf16"
    )
    for one in ("sgd", [other], torch.optim.SGD):
        text = f"optimizer is of type {type(one).__name__}; allowed: a torch.optim.Optimizer"
        refused(TypeError, text, model, one, weights="bf16")
    text = "the optimizer has none of the model's parameters"
    refused(ValueError, text, model, other, gemm="bf16")  # which needs none
    refused(TypeError, "optimizer is of type str; allowed", model, "mxfp8", gemm="bf16")


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by name, without the attributes of one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_wrappers_of_optimizers():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    emulate.apply(model, Wrapper(Wrapper(optimizer)), weights="e2m1")
    model(torch.ones(2, 24)).sum().backward()
    Wrapper(optimizer).step()
    for p in model.parameters():
        assert torch.equal(p, emulate.cast(p.detach(), "e2m1"))
    with pytest.raises(
        TypeError, match="optimizer is of type Wrapper; allowed: a torch.optim.Opti"
    ):
        emulate.apply(mlp(), Wrapper(3), weights="bf16")


def test_complex_parameters():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, dtype=torch.complex64)})
    for kind in ("weights", "gradients", "optimizer_state"):
        refused(
            TypeError,
            "b.weight is torch.complex64; allowed with formats of",
            model,
            **{kind: "bf16"},
        )
    emulate.apply(model, weights="bf16", filter="^a").remove()


def test_lbfgs_has_lists():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters())
    refused(
        TypeError,
        "the state of LBFGS has lists of tensors; allowed",
        model,
        optimizer,
        recipe="smaq68",
    )


class Own(torch.optim.SGD):
    """An optimizer whose state is what `make` returns."""

    def __init__(self, params, make):
        super().__init__(params, lr=0.1)
        self.make = make

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                if "own" not in self.state[one]:
                    self.state[one]["own"] = self.make(one)


STATES = {
    "list": (lambda p: [p.detach()], "'own' of '0.weight' is of type list; allowed"),
    "text": (lambda p: "text", "'own' of '0.weight' is of type str; allowed"),
    "codes": (
        lambda p: torch.zeros(p.shape, dtype=torch.uint8),
        "is torch.uint8, torch.strided; allo",
    ),
    "complex": (lambda p: p.detach() + 1j, "is torch.complex64, torch.strided; allowed"),
    "sparse": (lambda p: p.detach().to_sparse(), "is torch.float32, torch.sparse_coo; allowed"),
}


@pytest.mark.parametrize("state", STATES)
def test_states_that_are_no_tensors_of_numbers(state):
    """Before a change; where a step makes it, right behind this step and before the next."""
    make, text = STATES[state]
    model = mlp()
    optimizer = Own(model.parameters(), make)
    emulation = emulate.apply(model, optimizer, weights="e2m1", optimizer_state="bf16")
    text = f"the optimizer's state {text}" if "'own'" in text else text
    with pytest.raises(TypeError, match=text):
        step(model, optimizer, torch.ones(2, 24))
    weights = [p.detach().clone() for p in model.parameters()]
    assert not torch.equal(weights[0], emulate.cast(weights[0], "e2m1"))  # torch's step, no cast
    with pytest.raises(TypeError, match=text):
        step(model, optimizer, torch.ones(2, 24))
    assert equal(list(model.parameters()), weights)
    emulation.remove()
    if state in ("list", "text"):  # of which a snapshot can be taken
        refused(TypeError, text, model, optimizer, optimizer_state="bf16")
    with pytest.raises(TypeError, match=text):
        emulate.apply(model, optimizer, recipe="smaq68")
    emulate.apply(model, optimizer, weights="bf16").remove()


@pytest.mark.parametrize(
    "state", [lambda p: 3, lambda p: None, lambda p: torch.tensor(3), lambda p: 0.5]
)
def test_numbers_in_a_state_are_left(state):
    model = mlp()
    optimizer = Own(model.parameters(), state)
    emulate.apply(model, optimizer, optimizer_state="e2m1")
    for _ in range(2):
        step(model, optimizer, torch.ones(2, 24))
    assert optimizer.state[model[0].weight]["own"] in (3, None, 0.5)


@pytest.mark.parametrize("closure", [False, True])
def test_sparse_gradients(closure):
    """Before the step, and before another gradient is cast."""
    model = nn.ModuleDict({"out": nn.Linear(4, 4), "words": nn.Embedding(5, 4, sparse=True)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    emulation = emulate.apply(model, optimizer, gradients="e2m1", weights="e2m1")

    def backward():
        optimizer.zero_grad()
        loss = model["out"](model["words"](torch.tensor([1, 2]))).sum()
        loss.backward()
        return loss

    backward()
    before, grad = snapshot_of(model), model["out"].weight.grad.clone()
    text = "the gradient of 'words.weight' has the layout torch.sparse_coo; allowed with formats of"
    with pytest.raises(TypeError, match=re.escape(text)):
        optimizer.step(backward) if closure else optimizer.step()
    assert snapshot_of(model) == before and torch.equal(model["out"].weight.grad, grad)
    emulation.remove()
    emulate.apply(model, optimizer, gradients="e2m1", filter="^out")
    optimizer.step()


def snapshot_of(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


# ---- states of a resumed training ----


def test_states_of_other_recipes():
    model = mlp()
    emulation = emulate.apply(model, recipe="fp8_delayed")
    good = emulation.state_dict()
    bad = [
        (3, "the state holds 3; allowed: step, optimizer_step, scales"),
        ({}, r"the state holds \[\]; allowed: step"),
        ({**good, "more": 1}, "the state holds .*more"),
        ({**good, "step": -1}, r"step=-1; allowed: integers of 0 to 2\*\*63 - 1"),
        ({**good, "step": True}, "step=True; allowed"),
        ({**good, "optimizer_step": 1.0}, "optimizer_step=1.0; allowed"),
        (
            {**good, "scales": {}},
            "the state is of another recipe or model: scales of '2/dgrad.grad",
        ),
        ({**good, "scales": None}, "scales is of type NoneType; allowed: a dict"),
        (
            {**good, "scales": {**good["scales"], "2/forward.input": {}}},
            "scales of '2/forward.input' .* allowed: amax, next, scale",
        ),
    ]
    short = {key: {**one, "amax": torch.zeros(3)} for key, one in good["scales"].items()}
    bad.append(({**good, "scales": short}, "a history of 3 amaxes; allowed: 1024"))
    model(torch.ones(3, 24))
    kept = str(emulation.state_dict())
    for state, text in bad:
        with pytest.raises(ValueError, match=text):
            emulation.load_state_dict(state)
        assert str(emulation.state_dict()) == kept
    emulation.load_state_dict(good)
    assert str(emulation.state_dict()) == str(good)


def test_nothing_is_left_of_an_error_in_a_forward_pass():
    model = net()
    emulation = emulate.apply(model, recipe="smaq68")
    before = snapshot(model)
    with pytest.raises(RuntimeError):
        model.eval()(images()[:, :2])
    model.train()
    assert snapshot(model) == before
    emulation.remove()


def test_an_unknown_class_that_is_to_stay_exact():
    text = r"weights: except has 'BatchNrm2d'; allowed: names of classes"
    given = {"format": "bf16", "except": ["BatchNrm2d"]}
    refused(ValueError, text, mlp(), None, weights=given)


def test_what_is_removed_measures_nothing():
    emulation = emulate.apply(mlp(), gemm="bf16")
    emulation.remove()
    emulation.measure = False
    with pytest.raises(RuntimeError, match="has been removed"):
        emulation.measure = True
