"""MultiheadAttention and torch's transformer layers: projections round, the rest is torch's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.emulate.gemm.operands import draw
from torch_cgx import emulate
from torch_cgx.emulate import Float

EXACT = Float(8, 23)
WIDTH, HEADS = 16, 2
OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "key and value": {"kdim": 12, "vdim": 20},
    "bias of key and value": {"add_bias_kv": True},
    "zeros": {"add_zero_attn": True, "batch_first": True},
}


def attention(**options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def inputs(same, options, batched=True):
    if same and "kdim" not in options:
        x = (
            draw(4, 5, WIDTH, dtype=torch.float32)
            if batched
            else draw(4, WIDTH, dtype=torch.float32)
        )
        return (x, x, x)
    shape = (4, 5) if batched else (4,)
    widths = (WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    return tuple(draw(*shape, w, seed=i, dtype=torch.float32) for i, w in enumerate(widths))


@pytest.mark.parametrize("same", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_exact_formats_are_torchs_attention(options, same):
    """With masks, weights per head, without weights, without a batch."""
    plain, model = attention(**options), attention(**options)
    emulation = emulate.apply(model, gemm=EXACT, first_last="cast")
    assert list(emulation.layers) == ["in_proj", "out_proj"]
    first = 0 if options.get("batch_first") else 1
    mask = torch.zeros(5, 4, dtype=torch.bool) if first else torch.zeros(4, 5, dtype=torch.bool)
    mask[0, -1] = True
    length = mask.shape[1]
    causal = torch.triu(torch.full((length, length), float("-inf")), 1)
    calls = [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"key_padding_mask": mask},
        {"attn_mask": causal, "need_weights": False},
        {"attn_mask": causal, "is_causal": True, "need_weights": False},
    ]
    for call in calls:
        given = inputs(same, options)
        for one, other in zip(plain(*given, **call), model(*given, **call), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    given = inputs(same, options, batched=False)
    torch.testing.assert_close(plain(*given)[0], model(*given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("same", [True, False], ids=["self", "cross"])
def test_projections_round_as_linear_layers(same):
    """Attention by hand, of layers that are tested by themselves; output and all gradients."""
    model = attention(batch_first=True).double()
    x, y = draw(3, 6, WIDTH), draw(3, 6, WIDTH, seed=1)
    key = x if same else y

    def layer(weight, bias):
        made = emulate.QuantLinear(WIDTH, weight.shape[0], inputs="mxfp4", dtype=torch.float64)
        made.weight.data.copy_(weight.detach())
        made.bias.data.copy_(bias.detach())
        return made

    if same:
        projections = [layer(model.in_proj_weight, model.in_proj_bias)]
        q, k, v = projections[0](x).chunk(3, -1)
    else:
        pairs = zip(model.in_proj_weight.chunk(3), model.in_proj_bias.chunk(3), strict=True)
        projections = [layer(*pair) for pair in pairs]
        q, k, v = (one(z) for one, z in zip(projections, (x, key, key), strict=True))
    out = layer(model.out_proj.weight, model.out_proj.bias)
    heads = [one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (q, k, v)]
    wanted = out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
    grad = draw(3, 6, WIDTH, seed=2)
    wanted.backward(grad)

    emulate.apply(model, gemm="mxfp4", first_last="cast")
    found = model(x, key, key, need_weights=False)[0]
    found.backward(grad)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    weight = torch.cat([one.weight.grad for one in projections])
    torch.testing.assert_close(model.in_proj_weight.grad, weight, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.out_proj.weight.grad, out.weight.grad, rtol=1e-9, atol=1e-9)
    bias = torch.cat([one.bias.grad for one in projections])
    torch.testing.assert_close(model.in_proj_bias.grad, bias, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part, other", [("in_proj", "out_proj"), ("out_proj", "in_proj")])
def test_one_projection_may_stay_exact(part, other):
    model, both = attention(), attention()
    emulation = emulate.apply(model, gemm="mxfp4", first_last="cast", layers={part: "exact"})
    assert list(emulation.layers) == [other] and emulation.exact == (part,)
    emulate.apply(both, gemm="mxfp4", first_last="cast")
    given = inputs(True, {})
    found, plain = model(*given)[0], attention()(*given)[0]
    assert not torch.equal(found, both(*given)[0]) and not torch.allclose(found, plain, rtol=1e-3)
    emulation.remove()
    assert torch.equal(model(*given)[0], plain) and type(model) is nn.MultiheadAttention


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("recipe", ["mxfp4", "smaq68"])
def test_evaluation_of_an_encoder_is_not_torchs_one_kernel(recipe, norm_first):
    """It would round nothing. With a mask of padding, encoders give that kernel nested tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, 0.0, batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    nested = model.use_nested_tensor
    x = draw(3, 5, WIDTH, dtype=torch.float32)
    given = emulate.recipe(recipe)
    if recipe == "smaq68":
        given = {"activations": "mxfp8_e4m3"}
    plain = model.eval()(x).detach()
    emulation = emulate.apply(model, recipe={**given, "first_last": "cast"})
    train = model.train()(x).detach()
    with torch.no_grad():
        found = model.eval()(x)
        torch.testing.assert_close(found, train, rtol=1e-3, atol=1e-3)
        assert float((found - plain).norm()) > 10 * float((found - train).norm())
        mask = torch.zeros(3, 5, dtype=torch.bool)
        mask[0, 3:] = True
        padded = model(x, src_key_padding_mask=mask)
    assert padded.shape == x.shape and padded[:, :3].isfinite().all()
    emulation.remove()
    assert model.use_nested_tensor == nested
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain, rtol=1e-4, atol=1e-5)
        model(x, src_key_padding_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, "autocast"])
def test_types_and_autocast(dtype):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.0, batch_first=True)
    x = draw(3, 5, WIDTH, dtype=torch.float32)
    if dtype != "autocast":
        model, x = model.to(dtype), x.to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
        plain = model(x)
        emulate.apply(model, gemm=EXACT, first_last="cast")
        y = model(x)
    assert y.dtype == plain.dtype
    torch.testing.assert_close(y, plain, rtol=2e-2, atol=5e-2)
    y.float().sum().backward()
    assert all(p.grad.dtype == p.dtype for p in model.parameters())


def test_a_decoder_and_a_copy_of_it():
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, 0.0, batch_first=True)
    emulation = emulate.apply(model, gemm="mxfp4", first_last="cast")
    assert len(emulation.layers) == 6
    x = draw(3, 5, WIDTH, dtype=torch.float32)
    assert torch.equal(model(x, x), copy.deepcopy(model)(x, x))


def test_an_attention_with_a_forward_of_its_own_is_left():
    class Own(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model = nn.ModuleList([Own(WIDTH, HEADS), nn.Linear(4, 4)])
    with pytest.warns(UserWarning, match=r"exact: 0 \(Own\)"):
        emulation = emulate.apply(model, gemm="mxfp4", first_last="cast")
    assert list(emulation.layers) == ["1"]
