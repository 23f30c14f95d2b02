"""Convolutions: each of the three against torch's own, and products of windows, of cast values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.emulate.gemm import operands
from tests.emulate.gemm.operands import CURRENT, FORMATS, PARTS, by_part, draw
from torch_cgx import emulate
from torch_cgx.emulate import Float

DOUBLE = torch.float64
KINDS = {
    "plain": (lambda: nn.Conv2d(40, 24, 3), (5, 40, 7, 8)),
    "stride": (lambda: nn.Conv2d(40, 24, (3, 2), stride=(2, 1), padding=(1, 2)), (5, 40, 7, 8)),
    "dilation": (lambda: nn.Conv2d(40, 24, 3, dilation=2, padding=2), (5, 40, 7, 8)),
    "groups": (lambda: nn.Conv2d(40, 20, 3, groups=4), (5, 40, 7, 8)),
    "depthwise": (lambda: nn.Conv2d(12, 24, 3, groups=12, padding=1), (5, 12, 7, 8)),
    "same": (lambda: nn.Conv2d(40, 24, (3, 5), padding="same", dilation=(2, 1)), (5, 40, 7, 8)),
    "same, even": (lambda: nn.Conv2d(40, 24, (2, 4), padding="same"), (5, 40, 7, 8)),
    "valid": (lambda: nn.Conv2d(40, 24, 3, padding="valid", bias=False), (5, 40, 7, 8)),
    "reflect": (lambda: nn.Conv2d(40, 24, 3, padding=1, padding_mode="reflect"), (5, 40, 7, 8)),
    "circular": (
        lambda: nn.Conv2d(40, 24, 4, padding="same", padding_mode="circular"),
        (5, 40, 7, 8),
    ),
    "replicate": (lambda: nn.Conv1d(40, 24, 3, padding=2, padding_mode="replicate"), (5, 40, 9)),
    "1d": (lambda: nn.Conv1d(40, 24, 3, stride=2, padding=1, dilation=2), (5, 40, 9)),
    "3d": (lambda: nn.Conv3d(12, 8, (1, 2, 3), padding=(0, 1, 0), groups=2), (3, 12, 4, 5, 6)),
    "unbatched": (lambda: nn.Conv2d(40, 24, 3, padding=1), (40, 7, 8)),
    "transposed": (
        lambda: nn.ConvTranspose2d(40, 24, 3, stride=2, padding=1, output_padding=1),
        (5, 40, 4, 5),
    ),
    "transposed groups": (
        lambda: nn.ConvTranspose2d(40, 24, 3, stride=2, groups=4, dilation=2, bias=False),
        (5, 40, 4, 5),
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(40, 24, 4, stride=3), (5, 40, 6)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(8, 12, 2), (3, 8, 2, 3, 4)),
    "transposed unbatched": (lambda: nn.ConvTranspose1d(40, 24, 4), (40, 6)),
}


def cast(x, format, axis):
    """Rectangles are of a matrix of the first dimension."""
    if isinstance(format, emulate.Block) and isinstance(format.axis, tuple):
        return operands.cast(x.flatten(1), format, 1).reshape(x.shape)
    return operands.cast(x, format, axis)


def padded(layer, x):
    """x as a convolution without padding or with zeros beyond its ends sees it."""
    sides = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":
        return F.pad(x, sides, mode=layer.padding_mode), 0
    if isinstance(layer.padding, str):
        if sides[::2] == sides[1::2]:
            return x, tuple(sides[::2][::-1])
        return F.pad(x, sides), 0  # zeros, whose cast is zeros
    return x, layer.padding


def convolve(layer, x, weight, bias, padding):
    dims = weight.dim() - 2
    if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
        more = (layer.output_padding, layer.groups, layer.dilation)
        return function(x, weight, bias, layer.stride, padding, *more)
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    return function(x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)


def expected(layer, x, grad, formats):
    """(y, dx, dweight), where autograd makes the gradients of a convolution of cast operands."""
    of = by_part(formats)
    weight, bias = layer.weight.detach(), layer.bias
    inputs, outputs = (0, 1) if layer.transposed else (1, 0)  # of the weight
    single = x.dim() == weight.dim() - 1
    x = x.clone().requires_grad_()
    whole, padding = padded(layer, x[None] if single else x)
    grad = grad[None] if single else grad
    seen = whole.detach()
    y = convolve(
        layer,
        cast(seen, of["forward"]["input"], 1),
        cast(weight, of["forward"]["weight"], inputs),
        None if bias is None else bias.detach(),
        padding,
    )
    dweight = cast(weight, of["dgrad"]["weight"], outputs)
    z = convolve(layer, whole, dweight, None, padding)
    (dx,) = torch.autograd.grad(z, x, cast(grad, of["dgrad"]["gradient"], 1))
    free = weight.clone().requires_grad_()
    z = convolve(layer, cast(seen, of["wgrad"]["input"], 0), free, None, padding)
    (dw,) = torch.autograd.grad(z, free, cast(grad, of["wgrad"]["gradient"], 0))
    return y[0] if single else y, dx, dw


def results(layer, x, grad):
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(grad)
    return y.detach(), x.grad, layer.weight.grad


def made(kind, formats):
    """A layer that `apply` has changed, a batch, and a gradient of its output."""
    make, shape = KINDS[kind]
    layer = make().double()
    with torch.no_grad():
        layer.weight.copy_(draw(*layer.weight.shape, seed=1))
    x = draw(*shape)
    grad = draw(*layer(x).shape, seed=2)
    emulate.apply(layer, gemm=formats, first_last="cast")
    return layer, x, grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("formats", ["mxfp4", PARTS], ids=["mxfp4", "parts"])
def test_blocks_lie_along_channels_and_the_batch(kind, formats):
    layer, x, grad = made(kind, formats)
    wanted = expected(layer, x, grad, formats)
    for one, other in zip(results(layer, x, grad), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    if layer.bias is not None:
        sums = [d for d in range(grad.dim()) if d != (0 if x.dim() < layer.weight.dim() else 1)]
        torch.testing.assert_close(layer.bias.grad, grad.sum(sums), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["stride", "same", "transposed groups"])
def test_formats(kind, name):
    layer, x, grad = made(kind, FORMATS[name])
    wanted = expected(layer, x, grad, FORMATS[name])
    for one, other in zip(results(layer, x, grad), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_padding_does_not_change_what_a_tensor_shares():
    """SmaQ's mean and sigma are the image's, however its zeros beyond the ends are asked for."""
    zeros, same = (
        nn.Conv2d(8, 4, 3, padding=1).double(),
        nn.Conv2d(8, 4, 3, padding="same").double(),
    )
    same.load_state_dict(zeros.state_dict())
    x, grad = draw(2, 8, 6, 6), draw(2, 4, 6, 6, seed=2)
    for layer in (zeros, same):
        emulate.apply(layer, gemm=emulate.ZScore(6, 8, rounding="zero"), first_last="cast")
    for one, other in zip(results(zeros, x, grad), results(same, x, grad), strict=True):
        assert torch.equal(one, other)


def test_by_windows():
    """A second way, without a convolution: the product of the weight's matrix and windows of x."""
    layer = emulate.QuantConv2d(
        8, 6, 3, stride=2, padding=1, groups=2, bias=False, inputs="mxfp4", dtype=DOUBLE
    )
    x, grad = draw(5, 8, 9, 7), draw(5, 6, 5, 4, seed=2)
    y, dx, dw = results(layer, x, grad)
    w = layer.weight.detach()

    def windows(x):
        return F.unfold(x, 3, 1, 1, 2).view(5, 2, 36, 20)

    def matrix(w):
        return w.reshape(2, 3, 36)

    g = grad.reshape(5, 2, 3, 20)
    forward = matrix(cast(w, "mxfp4", 1)) @ windows(cast(x, "mxfp4", 1))
    torch.testing.assert_close(y, forward.reshape(y.shape), rtol=1e-12, atol=1e-12)
    gq = cast(grad, "mxfp4", 1).reshape(g.shape)
    columns = matrix(cast(w, "mxfp4", 0)).transpose(1, 2) @ gq
    backward = F.fold(columns.flatten(1, 2), (9, 7), 3, 1, 1, 2)
    torch.testing.assert_close(dx, backward, rtol=1e-12, atol=1e-12)
    gq = cast(grad, "mxfp4", 0).reshape(g.shape)
    weights = (gq @ windows(cast(x, "mxfp4", 0)).transpose(2, 3)).sum(0)
    torch.testing.assert_close(dw, weights.reshape(w.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["stride", "groups", "transposed", "1d", "3d", "unbatched"])
def test_a_hadamard_transform_of_exact_operands_changes_nothing(kind):
    layer, x, grad = made(kind, {"hadamard": 4, "forward": {"input": Float(8, 23)}})
    found, wanted = results(layer, x, grad)[2], expected(layer, x, grad, None)[2]
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_a_hadamard_transform_lies_along_the_batch():
    layer = emulate.QuantConv2d(
        8, 6, 3, bias=False, dtype=DOUBLE, inputs={"wgrad": "mxfp4", "hadamard": 4}
    )
    x, grad = draw(8, 8, 5, 5), draw(8, 6, 3, 3, seed=2)
    dw = results(layer, x, grad)[2]
    turn = torch.block_diag(*[layer._rounding.matrix] * 2)
    a, b = (cast(torch.tensordot(turn, one, 1), "mxfp4", 0) for one in (grad, x))
    free = layer.weight.detach().clone().requires_grad_()
    (wanted,) = torch.autograd.grad(F.conv2d(b, free), free, a)
    torch.testing.assert_close(dw, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_are_widened(dtype):
    layer = emulate.QuantConv2d(8, 6, 3, dtype=dtype, inputs="mxfp8_e4m3")
    x, grad = draw(5, 8, 9, 7, dtype=dtype), draw(5, 6, 7, 5, seed=2, dtype=dtype)
    found = results(layer, x, grad)
    wide = emulate.QuantConv2d(8, 6, 3, dtype=DOUBLE, inputs="mxfp8_e4m3")
    wide.load_state_dict(layer.state_dict())
    wanted = results(wide, x.double(), grad.double())
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(one.double(), other, rtol=4 * eps, atol=30 * eps)


def test_channels_last_and_frozen_parts():
    layer, x, grad = made("stride", "mxfp4")
    wanted = expected(layer, x, grad, "mxfp4")
    x = x.to(memory_format=torch.channels_last)
    for one, other in zip(results(layer, x, grad), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    layer.zero_grad()
    y = layer(x)  # the first layer of a model
    y.backward(grad)
    torch.testing.assert_close(layer.weight.grad, wanted[2], rtol=1e-11, atol=1e-11)
    layer.requires_grad_(False)
    torch.testing.assert_close(results(layer, x, grad)[1], wanted[1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("output_size", [[8, 10], [7, 9]])
def test_the_output_size_of_a_transposed_convolution(output_size):
    layer = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1).double()
    x = draw(2, 4, 4, 5)
    wanted = layer(x, output_size=output_size)
    emulate.apply(layer, gemm=Float(8, 23), first_last="cast")
    found = layer(x, output_size=output_size)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


# ---- sums in a format ----


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2, bias=False), (2, 6, 7, 6)),
        (lambda: nn.Conv2d(3, 4, (2, 3), dilation=2, padding="same", bias=False), (2, 3, 7, 6)),
        (lambda: nn.Conv2d(3, 4, (2, 3), padding="same", bias=False), (2, 3, 7, 6)),
        (lambda: nn.Conv1d(6, 4, 3, stride=2, padding=1, bias=False), (2, 6, 9)),
        (lambda: nn.Conv1d(6, 4, 3, bias=False), (6, 9)),
    ],
)
def test_sums_in_a_format_run_over_channels_and_places(make, shape):
    """Term after term in the order of the weight's memory; windows of dx are added in float32."""
    layer, format = make(), emulate.preset("fp16")
    emulate.apply(layer, gemm={"accumulate": format}, first_last="cast")
    x = draw(*shape, dtype=torch.float32)
    single = x.dim() == layer.weight.dim() - 1
    grad = draw(*layer(x).shape, seed=2, dtype=torch.float32)
    y, dx, dw = results(layer, x, grad)
    x, y, dx, grad = (one[None] if single else one for one in (x, y, dx, grad))
    whole, padding = padded(layer, x)
    if layer.weight.dim() == 3:
        whole = whole.unsqueeze(2)
    two = layer.weight.dim() == 4

    def pair(given, fill):
        given = given if isinstance(given, tuple) else (given,) * (layer.weight.dim() - 2)
        return given if two else (fill, *given)

    places = (
        pair(layer.kernel_size, 1),
        pair(layer.dilation, 1),
        pair(padding, 0),
        pair(layer.stride, 1),
    )
    batch, groups, rows = x.shape[0], layer.groups, layer.weight.shape[0] // layer.groups
    windows = F.unfold(whole, *places).view(batch, groups, layer.weight[0].numel(), -1)
    matrix = layer.weight.detach().reshape(groups, rows, -1)
    g = grad.reshape(batch, groups, rows, -1)

    def product(a, b):
        return emulate.matmul(a, b, accumulate=format)

    assert torch.equal(y, product(matrix, windows).reshape(y.shape))
    columns = product(matrix.transpose(1, 2), g).flatten(1, 2)
    folded = F.fold(columns, whole.shape[2:], *places)
    if whole.shape != x.shape and two:  # "same" has padded one side more
        (left, right), (above, below) = (
            layer._reversed_padding_repeated_twice[i : i + 2] for i in (0, 2)
        )
        folded = folded[:, :, above : folded.shape[2] - below, left : folded.shape[3] - right]
    torch.testing.assert_close(dx, folded.reshape(dx.shape), rtol=1e-6, atol=1e-6)
    long = windows.permute(1, 0, 3, 2).flatten(1, 2)
    assert torch.equal(dw, product(g.permute(1, 2, 0, 3).flatten(2), long).reshape(dw.shape))


@pytest.mark.parametrize("make", [lambda: nn.ConvTranspose2d(4, 4, 3), lambda: nn.Conv3d(4, 4, 3)])
def test_sums_in_a_format_of_other_convolutions_are_refused(make):
    layer = nn.Sequential(make())
    with pytest.raises(
        ValueError, match="0: accumulation in a format: allowed for Conv1d and Conv2d"
    ):
        emulate.apply(layer, gemm={"accumulate": "fp16"}, first_last="cast")
    assert type(layer[0]) is type(make()) and not hasattr(layer[0], "_cgx_roundings")


# ---- mistakes ----


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 5, 8, 8),
        torch.zeros(2, 4, 8, 8).double(),
        torch.zeros(4, 8),
        torch.zeros(2, 4, 2, 2),
    ],
)
def test_mistakes_are_torchs_own(x, accumulate):
    plain = nn.Conv2d(4, 3, 3)
    layer = emulate.QuantConv2d(4, 3, 3, inputs="mxfp4", accumulate=accumulate)
    with pytest.raises(RuntimeError):
        plain(x)
    with pytest.raises(RuntimeError):
        layer(x)


def test_its_description_and_options():
    layer = emulate.QuantConv2d(4, 8, 3, 2, 1, 1, 2, False, "reflect", inputs=CURRENT)
    assert "e4m3fn current" in repr(layer) and "stride=(2, 2)" in repr(layer)
    assert list(layer.state_dict()) == ["weight"] and layer.padding_mode == "reflect"
    with pytest.raises(ValueError, match="inputs: hadamard=3; allowed"):
        emulate.QuantConv2d(4, 8, 3, inputs={"hadamard": 3})
