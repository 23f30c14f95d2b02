"""Scales of whole tensors against a model of Transformer Engine's rule, and what they keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_cgx import emulate

LARGEST = {"e4m3fn": 448.0, "e5m2": 57344.0, "e2m1": 6.0}


class Delayed:
    """Transformer Engine's DelayedScaling with amax_compute_algo="max": the scale of a step follows
    the amaxes of the steps before it. scale = largest / amax / 2^margin; an amax of 0 leaves it."""

    def __init__(self, format, history, margin=0):
        self.format, self.margin = format, margin
        self.amaxes, self.scale = [0.0] * history, np.float32(1)

    def __call__(self, x):
        greatest = np.float32(max(self.amaxes))
        if greatest > 0:
            self.scale = np.float32(np.float32(LARGEST[self.format] * 2.0**-self.margin) / greatest)
        amax = float(x.abs().max())
        self.amaxes = [*self.amaxes[1:], amax if np.isfinite(amax) else 0.0]
        format = emulate.preset(self.format, overflow="saturate")
        scale = torch.tensor(self.scale)
        return emulate.cast(x * scale, format) / scale


def identity(inputs, width=16):
    """A layer whose output is its input, cast."""
    layer = emulate.QuantLinear(width, width, bias=False, inputs=inputs)
    layer.weight.data.copy_(torch.eye(width))
    return layer


def values(step, factor):
    return factor * torch.randn(8, 16, generator=torch.Generator().manual_seed(step))


FACTORS = [1, 3, 1e3, 2, 1e-4, 0, 0, 0, 0, 5, float("nan"), 1e30, 1, 1e-30, 1]


@pytest.mark.parametrize("format", LARGEST)
@pytest.mark.parametrize("history, margin", [(1, 0), (3, 0), (4, 2), (1024, 0)])
def test_delayed_scales_follow_transformer_engines_rule(format, history, margin):
    given = {"format": format, "scale": "delayed", "history": history, "margin": margin}
    layer, model = identity({"forward": {"input": given}}), Delayed(format, history, margin)
    for step, factor in enumerate(FACTORS):
        x = values(step, factor)
        torch.testing.assert_close(layer(x), model(x), rtol=0, atol=0, equal_nan=True)


def test_the_first_step_has_the_scale_1_and_saturates():
    layer = identity({"forward": {"input": {"format": "e4m3fn", "scale": "delayed"}}})
    x = values(0, 1e4)
    assert torch.equal(layer(x), x.sign() * emulate.cast(x.abs().clamp(max=448), "e4m3fn"))
    assert (layer(1e-3 * x) != 0).any()
    kept = identity(
        {
            "forward": {
                "input": {"format": emulate.preset("e4m3fn", overflow="nan"), "scale": "delayed"}
            }
        }
    )
    assert kept(x).isnan().any()  # where the format says so


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("format", LARGEST)
def test_current_scales_are_of_the_tensor_itself(format, margin):
    layer = identity(
        {"forward": {"input": {"format": format, "scale": "current", "margin": margin}}}
    )
    for step, factor in enumerate(FACTORS):
        x = values(step, factor)
        y = layer(x).detach()
        if factor != factor:
            assert y.isnan().all()
            continue
        model = Delayed(format, 1, margin)
        model(x)
        torch.testing.assert_close(y, model(x), rtol=0, atol=0)
        if factor and margin == 0 and factor < 1e30:
            assert float(y.abs().max()) == pytest.approx(float(x.abs().max()), rel=1e-6)


def test_each_operand_has_a_history_of_its_own():
    given = {"format": "e4m3fn", "scale": "delayed", "history": 2}
    layer = identity({"forward": {"input": given}, "dgrad": {"gradient": given}})
    forward, backward = Delayed("e4m3fn", 2), Delayed("e4m3fn", 2)
    for step, factor in enumerate([1, 100, 7]):
        x, grad = values(step, factor).requires_grad_(), values(step + 50, 1 / factor)
        y = layer(x)
        y.backward(grad)
        assert torch.equal(y, forward(x.detach())) and torch.equal(x.grad, backward(grad))


def test_an_operand_that_two_products_share_counts_once():
    """Transformer Engine casts an input once, for the forward pass and for wgrad."""
    given = {"format": "e4m3fn", "scale": "delayed", "history": 2}
    layer = identity({"input": given})
    model = Delayed("e4m3fn", 2)
    for step, factor in enumerate([1, 100, 7]):
        layer.weight.grad, x = None, values(step, factor)
        layer(x).backward(torch.ones(8, 16))
        wanted = model(x).sum(0).expand(16, 16)
        torch.testing.assert_close(layer.weight.grad, wanted, rtol=1e-5, atol=1e-5)


def test_evaluation_has_the_scale_of_the_next_step_and_counts_for_nothing():
    given = {"format": "e4m3fn", "scale": "delayed", "history": 3}
    layer, model = identity({"forward": {"input": given}}), Delayed("e4m3fn", 3)
    with torch.no_grad():
        assert torch.equal(layer.eval()(values(0, 2)), Delayed("e4m3fn", 3)(values(0, 2)))
    layer.train()
    for step, factor in enumerate([50, 3, 1]):
        x, other = values(step, factor), values(99, 1e3)
        assert torch.equal(layer(x), model(x))
        kept = list(model.amaxes)
        layer.eval()
        wanted = model(other)
        for _ in range(2):
            with torch.no_grad():
                assert torch.equal(layer(other), wanted)
        layer.train()
        model.amaxes = kept


def test_a_validation_between_forward_and_backward_does_not_stop_the_count():
    given = {"format": "e4m3fn", "scale": "delayed", "history": 2}
    layer, model = identity({"dgrad": {"gradient": given}}), Delayed("e4m3fn", 2)
    for step, factor in enumerate([1, 100, 7]):
        x, grad = values(step, 1).requires_grad_(), values(step, factor)
        y = layer(x)
        with torch.no_grad():
            layer.eval()(x.detach())
        layer.train()
        y.backward(grad)
        assert torch.equal(x.grad, model(grad))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype):
    for scale in ("current", "delayed"):
        layer = identity({"forward": {"input": {"format": "e4m3fn", "scale": scale}}}).to(dtype)
        y = layer(values(0, 3).to(dtype))
        assert y.dtype == dtype and y.isfinite().all()
    empty = layer(torch.zeros(0, 16, dtype=dtype))
    assert empty.shape == (0, 16)
