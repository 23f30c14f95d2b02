"""`convert`: what it replaces, what it leaves and why, what stays, and the way back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.activations import llama
from tests.activations.kept import normal, same
from torch_cgx.activations.conversion.convert import Conversion, convert
from torch_cgx.activations.few_bit import modules
from torch_cgx.activations.layers.dropout import Dropout
from torch_cgx.activations.layers.gate_modules import GatedMLP
from torch_cgx.activations.layers.norm_modules import LayerNorm, RMSNorm

EVERYTHING: dict[str, Any] = {"activations": 3, "norms": True, "dropout": True, "gates": True}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.LayerNorm(8),
        nn.Linear(8, 16),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.Linear(16, 8),
        nn.RMSNorm(8),
    )


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.children()]


def test_everything_and_back() -> None:
    model = mlp()
    reference, before = copy.deepcopy(model), kinds(model)
    values = model.state_dict()
    conversion = convert(model, **EVERYTHING)
    assert conversion.replaced == [
        ("0", "LayerNorm", "activations.LayerNorm"),
        ("2", "GELU", "activations.GELU"),
        ("3", "Dropout", "activations.Dropout"),
        ("5", "RMSNorm", "activations.RMSNorm"),
    ]
    assert conversion.left == []
    expected = [LayerNorm, nn.Linear, modules.GELU, Dropout, nn.Linear, RMSNorm]
    assert kinds(model) == expected and model[2].bits == 3
    assert list(model.state_dict()) == list(values)
    for name, value in model.state_dict().items():
        assert value.data_ptr() == values[name].data_ptr()
    assert model.eval() and same(model(normal(4, 8)), reference.eval()(normal(4, 8)))
    conversion.restore()
    assert kinds(model) == before and not any(module.training for module in model)
    conversion.restore()
    assert kinds(model) == before


@pytest.mark.parametrize(
    ("asked", "replaced"),
    [
        ({"activations": 1}, ["2"]),
        ({"norms": True}, ["0", "5"]),
        ({"dropout": True}, ["3"]),
        ({"norms": True, "dropout": True}, ["0", "3", "5"]),
    ],
)
def test_only_what_is_asked_for(asked: dict[str, Any], replaced: list[str]) -> None:
    assert [row.name for row in convert(mlp(), **asked).replaced] == replaced


@pytest.mark.parametrize("kind", sorted(modules.MODULES, key=lambda kind: kind.__name__))
def test_every_activation_with_its_arguments(kind: type[nn.Module]) -> None:
    arguments: dict[str, Any] = {
        "Hardshrink": {"lambd": 0.7},
        "Hardtanh": {"min_val": -0.5, "max_val": 0.25},
        "LeakyReLU": {"negative_slope": 0.2, "inplace": True},
        "Softshrink": {"lambd": 0.3},
        "Threshold": {"threshold": 0.1, "value": -2.0},
        "CELU": {"alpha": 0.5},
        "ELU": {"alpha": 1.5},
        "GELU": {"approximate": "tanh"},
        "Softplus": {"beta": 2.0, "threshold": 15.0},
    }.get(kind.__name__, {})
    model = nn.Sequential(kind(**arguments))
    reference = copy.deepcopy(model)
    convert(model, activations=4)
    assert type(model[0]) is modules.MODULES[kind][0]
    assert same(model(normal(100) * 3), reference(normal(100) * 3))
    for name, value in arguments.items():
        assert getattr(model[0], name) == value
    step = kind.__name__ in ("Hardshrink", "Hardsigmoid", "Hardtanh", "LeakyReLU", "ReLU", "ReLU6")
    assert model[0].bits == (1 if step or kind.__name__ in ("Softshrink", "Threshold") else 4)


def test_gradients_of_a_converted_model() -> None:
    """Norms and dropout without loss: gradients are those of the original in float64."""
    model = mlp().double()
    model[3].p = 0.0
    reference = copy.deepcopy(model)
    convert(model, norms=True, dropout=True)
    for one in (model, reference):
        one(normal(4, 8).double()).sin().sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-11, atol=1e-12)


def test_ties_stay() -> None:
    act, norm = nn.GELU(), nn.LayerNorm(8)
    model = nn.ModuleDict(
        {"a": nn.Sequential(act, norm), "b": act, "c": nn.ModuleList([norm, act])}
    )
    model["d"] = model["a"]
    conversion = convert(model, activations=2, norms=True)
    assert model["b"] is model["a"][0] is model["c"][1] and type(model["b"]) is modules.GELU
    assert model["a"][1] is model["c"][0] and model["c"][0].weight is norm.weight
    assert [row.name for row in conversion.replaced] == ["a.0", "a.1", "b", "c.0", "c.1"]
    conversion.restore()
    assert model["b"] is model["a"][0] is model["c"][1] is act and model["c"][0] is norm


def test_parameters_are_the_same_objects_for_optimizers() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    convert(model, **EVERYTHING)
    before = model[0].bias.detach().clone()
    model(normal(4, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].bias)


def test_hooks_stay_and_their_handles_work() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    calls: list[str] = []
    act = model[1]
    forward = act.register_forward_hook(lambda *_: calls.append("forward"))
    act.register_forward_pre_hook(lambda *_, **__: calls.append("pre"), with_kwargs=True)
    act.register_full_backward_hook(lambda *_: calls.append("backward"))
    model[2].register_state_dict_post_hook(lambda *_: calls.append("state"))
    model[2].register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    del act
    convert(model, activations=3, norms=True)
    model(normal(2, 8)).sum().backward()
    model.load_state_dict(model.state_dict())
    assert calls == ["pre", "forward", "backward", "state", "load"]
    forward.remove()
    calls.clear()
    model(normal(2, 8))
    assert calls == ["pre"]


def test_what_changes_between_is_there_after_restore() -> None:
    model = mlp()
    conversion = convert(model, **EVERYTHING)
    late: list[int] = []
    model[2].register_forward_hook(lambda *_: late.append(1))
    model[3].p = 0.25
    model[0].weight = nn.Parameter(torch.full((8,), 3.0))
    model.to(torch.float64).eval()
    conversion.restore()
    assert model[3].p == 0.25 and model[0].weight.tolist() == [3.0] * 8
    assert model[0].weight.dtype == torch.float64 and not model[0].training
    model(normal(2, 8).double())
    assert late == [1]


def test_restore_leaves_what_was_replaced_since() -> None:
    model = mlp()
    conversion = convert(model, activations=3, dropout=True)
    model[2] = nn.Tanh()
    conversion.restore()
    assert type(model[2]) is nn.Tanh and type(model[3]) is nn.Dropout


def test_mode_dtype_and_own_attributes_stay() -> None:
    model = mlp().to(torch.bfloat16)
    model[3].eval()
    model[2].note = "mine"
    model[0].weight.requires_grad_(False)
    convert(model, **EVERYTHING)
    assert not model[3].training and model[2].training and model[2].note == "mine"
    assert model[0].weight.dtype == torch.bfloat16 and not model[0].weight.requires_grad
    meta = nn.Sequential(nn.LayerNorm(8, device="meta"), nn.GELU())
    convert(meta, activations=3, norms=True)
    assert meta[0].weight.is_meta


def test_copies_and_pickles() -> None:
    model = nn.Sequential(*mlp(), llama.LlamaBlock(8, 16))
    convert(model, **EVERYTHING)
    model.eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[6].mlp) is GatedMLP and other[6].mlp.up_proj is not model[6].mlp.up_proj
        assert same(other(normal(2, 8)), model(normal(2, 8)))


class Doubled(nn.GELU):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Renamed(nn.LayerNorm):
    """Only the constructor differs."""

    def __init__(self) -> None:
        super().__init__(8, eps=0.5)


def left_model() -> nn.ModuleDict:
    own = nn.GELU()
    own.forward = lambda input: input  # type: ignore[method-assign]
    compiled = nn.GELU()
    compiled.compile(backend="eager")
    normed = nn.utils.parametrizations.weight_norm(nn.LayerNorm((2, 8)))
    return nn.ModuleDict(
        {
            "subclass": Renamed(),
            "overridden": Doubled(),
            "patched": own,
            "compiled": compiled,
            "prelu": nn.PReLU(),
            "softmax": nn.Softmax(-1),
            "batch": nn.BatchNorm1d(8),
            "channels": nn.Dropout2d(0.5),
            "attention": nn.MultiheadAttention(8, 2, dropout=0.1),
            "parametrized": normed,
            "gemma": llama.GemmaRMSNorm(8),
            "scripted": torch.jit.script(nn.GELU()),
            "done": modules.GELU(),
        }
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_left_and_why() -> None:
    model = left_model()
    conversion = convert(model, **EVERYTHING)
    assert conversion.replaced == [("subclass", "Renamed", "activations.LayerNorm")]
    assert model["subclass"].eps == 0.5
    reasons = {row.name: row.reason for row in conversion.left}
    assert reasons.pop("gemma").startswith("its forward does not compute weight * (x / rms(x))")
    assert reasons == {
        "overridden": "Doubled overrides the forward of GELU",
        "patched": "its forward is set on the object",
        "compiled": "its method compile() was called: convert first",
        "prelu": "PReLU has no few-bit form",
        "batch": "BatchNorm1d has no form that keeps its output",
        "channels": "Dropout2d has no form that keeps less",
        "attention": "its dropout is inside the attention",
        "parametrized": "it is parametrized",
        "scripted": "a torch.jit.ScriptModule is compiled",
        "done": "it is converted already",
    }
    assert str(conversion).splitlines()[:2] == [
        f"1 replaced, {len(conversion.left)} left",
        "subclass      Renamed                -> activations.LayerNorm",
    ]


def test_filter() -> None:
    model = mlp()
    asked: list[str] = []

    def accept(name: str, module: nn.Module) -> bool:
        asked.append(name)
        return not isinstance(module, nn.RMSNorm)

    conversion = convert(model, **EVERYTHING, filter=accept)
    assert [row.name for row in conversion.replaced] == ["0", "2", "3"]
    assert conversion.left == [("5", "RMSNorm", "filter leaves it")]
    assert asked == ["0", "2", "3", "5"]


def test_models_that_are_wrapped_or_lazy() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        """As torch names its wrapper."""

    with pytest.raises(ValueError, match="wrapped by FullyShardedDataParallel"):
        convert(nn.Sequential(FullyShardedDataParallel(nn.GELU())), activations=3)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.GELU())
    convert(lazy, activations=3)
    assert lazy(normal(2, 3)).shape == (2, 4) and type(lazy[1]) is modules.GELU


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_root() -> None:
    with pytest.raises(ValueError, match="model is a torch.jit.ScriptModule"):
        convert(torch.jit.script(nn.Sequential(nn.GELU())), **EVERYTHING)


@pytest.mark.parametrize(
    ("model", "arguments", "kind", "says"),
    [
        (mlp(), {"activations": 0}, ValueError, "activations=0; allowed"),
        (mlp(), {"activations": 5}, ValueError, "activations=5; allowed"),
        (mlp(), {"activations": True}, ValueError, "activations=True; allowed"),
        (mlp(), {"activations": "3"}, ValueError, "activations='3'; allowed"),
        (mlp(), {"norms": 1}, TypeError, "norms=1; allowed: True, False"),
        (mlp(), {"norms": True, "filter": "a"}, TypeError, "filter='a'; allowed"),
        (mlp(), {}, ValueError, "nothing asked for"),
        (mlp(), {"gates": True}, ValueError, "nothing to convert; looked for: gated MLPs"),
        (
            nn.Sequential(nn.PReLU()),
            {"activations": 3, "norms": True},
            ValueError,
            "looked for: activation functions, norms; left 0 .PReLU.: PReLU has no few-bit form",
        ),
        (nn.GELU(), {"activations": 3}, ValueError, "model is itself a GELU"),
        (llama.LlamaMLP(8, 16), {"gates": True}, ValueError, "model is itself a LlamaMLP"),
        ("model", EVERYTHING, TypeError, "model is a str"),
    ],
)
def test_bad_arguments(
    model: Any, arguments: dict[str, Any], kind: type[Exception], says: str
) -> None:
    before = [id(m) for m in model.modules()] if isinstance(model, nn.Module) else []
    with pytest.raises(kind, match=says):
        convert(model, **arguments)
    if isinstance(model, nn.Module):
        assert [id(m) for m in model.modules()] == before


def test_nothing_is_changed_if_a_filter_raises() -> None:
    model = mlp()
    before = kinds(model)

    def late(name: str, module: nn.Module) -> bool:
        if name == "3":
            raise KeyError(name)
        return True

    with pytest.raises(KeyError):
        convert(model, **EVERYTHING, filter=late)
    assert kinds(model) == before


def test_the_result_says_what_it_holds() -> None:
    conversion = convert(mlp(), activations=3)
    assert isinstance(conversion, Conversion) and kinds(conversion.model)[2] is modules.GELU
    assert conversion.replaced[0].old == "GELU" and "_children" not in repr(conversion)


def test_a_norm_whose_result_is_changed_in_place_is_left() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 8)
    )
    conversion = convert(model, norms=True)
    assert [row.name for row in conversion.replaced] == ["3"]
    assert [(row.name, "in place" in row.reason) for row in conversion.left] == [("1", True)]
    model(torch.randn(4, 8)).sum().backward()


def test_restore_leaves_what_has_another_class_since() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8))
    conversion = convert(model, norms=True)
    torch.nn.utils.parametrize.register_parametrization(model[1], "weight", nn.Identity())
    conversion.restore()
    assert type(model[2]) is nn.LayerNorm
    model(torch.randn(4, 8)).sum().backward()
