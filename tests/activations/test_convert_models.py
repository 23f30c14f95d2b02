"""`convert` of transformer layers, gated blocks, Llama and the modules of transformers."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.activations import llama
from tests.activations.kept import kept, normal, same
from torch_cgx.activations import functional
from torch_cgx.activations.conversion.convert import convert
from torch_cgx.activations.layers.norm_modules import CastRMSNorm


@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu])
def test_transformer_layers(activation: Any) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, dropout=0.0, activation=activation, batch_first=True
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    reference = copy.deepcopy(model)
    old = layer.activation
    conversion = convert(model, activations=3, norms=True)
    name = old.__name__
    assert ("layers.1.activation", f"function {name}", f"activations.functional.{name}") in (
        conversion.replaced
    )
    own = getattr(functional, name)
    new = model.layers[0].activation
    assert (new is own) if name == "relu" else (new.func is own and new.keywords == {"bits": 3})
    values = normal(3, 5, 16)
    y, size = kept(lambda: model(values), model.parameters())
    expected, full = kept(lambda: reference(values), model.parameters())
    assert same(y, expected) and size < full
    for mode in (model.eval(), reference.eval()):
        assert not mode.training
    with torch.no_grad():  # the fast path of inference
        torch.testing.assert_close(model(values), reference(values))
    with pytest.raises(ValueError, match="converted already"):
        convert(model, activations=3)
    conversion.restore()
    assert model.layers[0].activation is old and type(model.layers[1].norm2) is nn.LayerNorm


def test_decoder_layer_and_a_function_without_few_bit_form() -> None:
    model = nn.Sequential(
        nn.TransformerDecoderLayer(8, 2, 16, activation="gelu"),
        nn.TransformerDecoderLayer(8, 2, 16, activation=torch.sin),
    )
    conversion = convert(model, activations=2)
    assert [row.name for row in conversion.replaced] == ["0.activation"]
    assert conversion.left == [
        ("1.activation", "function sin", "the function sin has no few-bit form")
    ]
    holder = nn.TransformerEncoderLayer(8, 2, 16, activation="relu")  # as the root
    convert(holder, activations=2)
    assert holder.activation is functional.relu


@pytest.mark.parametrize("act", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.ReLU(), F.silu, F.gelu])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_blocks(act: Any, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(llama.LlamaMLP(8, 16, act, bias))
    reference, old = copy.deepcopy(model), model[0]
    names = list(model.state_dict())
    conversion = convert(model, gates=True, activations=3)
    assert conversion.replaced == [("0", "LlamaMLP", "activations.GatedMLP")]
    assert list(model.state_dict()) == names and model[0].hidden_size == 8
    values = normal(4, 8)
    y, size = kept(lambda: model(values), [*model.parameters(), values])
    expected, full = kept(lambda: reference(values), [*reference.parameters(), values])
    assert same(y, expected)
    torchs = 3 if isinstance(act, nn.ReLU) else 4  # relu keeps its result
    assert size == 2 * 4 * 16 * 4 and full == torchs * 4 * 16 * 4
    for a, b in zip(
        torch.autograd.grad(y.sin().sum(), list(model.parameters())),
        torch.autograd.grad(expected.sin().sum(), list(reference.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    conversion.restore()
    assert model[0] is old and same(model(values), expected)


def test_gates_after_activations() -> None:
    model = nn.Sequential(llama.LlamaMLP(8, 16))
    first = convert(model, activations=3)
    assert [row.name for row in first.replaced] == ["0.act_fn"]
    second = convert(model, gates=True)
    assert model[0].kind == "silu"
    second.restore()
    first.restore()
    assert type(model[0]) is llama.LlamaMLP and type(model[0].act_fn) is nn.SiLU


class Doubled(nn.GELU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_gated_blocks_that_are_left() -> None:
    hooked, lora, more = (llama.LlamaMLP(8, 16) for _ in range(3))
    hooked.down_proj.register_forward_hook(lambda *_: None)
    lora.add_module("down_proj", nn.Sequential(lora.down_proj))
    more.dropout = nn.Dropout(0.0)
    model = nn.ModuleDict(
        {
            "scaled": llama.ScaledMLP(8, 16),
            "hooked": hooked,
            "lora": lora,
            "more": more,
            "tanh": llama.LlamaMLP(8, 16, nn.Tanh()),
            "doubled": llama.LlamaMLP(8, 16, Doubled()),
            "good": llama.LlamaMLP(8, 16),
        }
    )
    conversion = convert(model, gates=True)
    assert [row.name for row in conversion.replaced] == ["good"]
    reasons = {row.name: row.reason for row in conversion.left}
    formula = "its forward does not compute down_proj(act_fn(gate_proj(x)) * up_proj(x))"
    assert reasons == {
        "scaled": formula,
        "doubled": formula,
        "hooked": "its down_proj is a Linear, or has hooks; allowed: a torch.nn.Linear",
        "lora": "its down_proj is a Sequential, or has hooks; allowed: a torch.nn.Linear",
        "more": "it has more than gate_proj, up_proj, down_proj, act_fn: ['dropout']",
        "tanh": "its act_fn is Tanh; convertible: SiLU, GELU, ReLU",
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_llama_block(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(llama.LlamaBlock(), llama.LlamaBlock()).to(dtype)
    reference = copy.deepcopy(model)
    state = torch.random.get_rng_state()
    conversion = convert(model, norms=True, gates=True)
    assert torch.equal(state, torch.random.get_rng_state())
    assert [row.new for row in conversion.replaced] == [
        "activations.CastRMSNorm",
        "activations.GatedMLP",
    ] * 2
    assert type(model[0].input_layernorm) is CastRMSNorm
    values = normal(4, 5, 16).to(dtype).requires_grad_()
    y, size = kept(lambda: model(values), model.parameters())
    expected, full = kept(lambda: reference(values), reference.parameters())
    assert same(y, expected)
    n = 4 * 5 * dtype.itemsize
    # The output of each norm, and the two halves of each MLP; torch adds two products of each.
    assert size == 2 * (n * 16 + 4 * 5 * 4 + 2 * n * 32) < full / 2
    conversion.restore()
    assert type(model[1].mlp) is llama.LlamaMLP and same(model(values), expected)


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with that name, which has been imported."""
    module: Any = types.ModuleType("transformers.activations")
    for kind in llama.ACTIVATIONS:
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "transformers.activations", module)


def test_activations_of_transformers(transformers: None) -> None:
    model = nn.Sequential(*(kind() for kind in llama.ACTIVATIONS))
    reference = copy.deepcopy(model)
    conversion = convert(model, activations=3)
    assert conversion.replaced == [
        ("0", "GELUActivation", "activations.GELU"),
        ("1", "NewGELUActivation", "activations.GELU"),
    ]
    assert (model[0].approximate, model[1].approximate) == ("none", "tanh")
    assert same(model[0](normal(50)), reference[0](normal(50)))
    torch.testing.assert_close(model[1](normal(50)), reference[1](normal(50)))
    assert conversion.left == [
        ("2", "QuickGELUActivation", "QuickGELUActivation has no few-bit form"),
        ("3", "SiLUActivation", "its forward does not compute SiLU()"),
    ]
    gated = nn.Sequential(llama.LlamaMLP(8, 16, llama.GELUActivation()))
    convert(gated, gates=True)
    assert gated[0].kind == "gelu"


def test_transformers_is_not_imported() -> None:
    model = nn.Sequential(llama.GELUActivation(), nn.ReLU())
    assert [row.name for row in convert(model, activations=3).replaced] == ["1"]
    assert "transformers" not in sys.modules
