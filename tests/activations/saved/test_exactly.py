"""What compress_saved keeps exactly, and what it notices of changes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.activations.kept import normal
from tests.activations.saved.saving import FP32, back
from torch_cgx.activations import compress_saved
from torch_cgx.activations.saved import integers


def test_masks_and_indices_are_kept_exactly_in_the_bits_that_they_need() -> None:
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(40, 50, generator=generator) > 0.3
    noise = (torch.rand(3000, generator=generator) > 0.1).float() / 0.9
    index = torch.randint(-5, 1000, (2000,), generator=generator)
    small = torch.randint(0, 200, (2000,), generator=generator, dtype=torch.int32)
    same = torch.full((2000,), 7, dtype=torch.int16)
    wide = torch.tensor([-(2**63), 2**63 - 1] * 1000)
    for x, nbytes in (
        (mask, 250),
        (mask.t(), 250),
        (mask[:1].expand(40, 50), 50 // 8 + 1),
        (noise, 375),
        (noise.to(torch.bfloat16), 375),
        (noise.double(), 375),
        (index, 2000 * 10 // 8),
        (small, 2000),
        (same, 0),
        (wide, None),
    ):
        context = compress_saved(FP32, min_size=8)
        (y,) = back(x, context=context)
        assert y.dtype == x.dtype and torch.equal(x, y) and y.stride() == x.stride()
        if nbytes is None:
            assert context.bytes_saved == 0
        else:
            assert context.bytes_kept == nbytes, x.dtype


def test_integers_packed_by_torch_are_those_of_the_cpu() -> None:
    for bits in (1, 2, 3, 7, 8, 9, 12, 16, 23, 33, 63):
        for n in (1, 7, 8, 9, 100):
            generator = torch.Generator().manual_seed(bits * n)
            low = -(1 << (bits - 1)) // 3
            x = torch.randint(low, low + (1 << bits) - 1, (n,), generator=generator)
            codes = integers.pack_by_torch(x, low, bits)
            assert torch.equal(codes, torch.ops.torch_cgx.pack_integers(x, low, bits))
            packed = integers.Packed(codes, low, bits)
            assert torch.equal(integers.unpack_by_torch(packed, n, torch.int64), x)
            assert torch.equal(integers.unpack(packed, n, torch.int64, x.device), x)


def test_other_tensors_are_kept_as_they_are() -> None:
    cases = (
        normal(100).to(torch.complex64),
        torch.randn(20, 20).to_sparse(),
        torch._neg_view(normal(2000)),
        normal(1000),  # below min_size
        torch.empty(0, 2000),
        normal(2000).to(torch.float8_e4m3fn),
    )
    for x in cases:
        context = compress_saved(FP32)
        (y,) = back(x, context=context)
        assert context.bytes_saved == 0 and y.dtype == x.dtype and y.shape == x.shape
        if not x.is_sparse and x.dtype != torch.float8_e4m3fn:
            assert torch.equal(x, y)


def test_weights_and_buffers_are_kept_as_they_are() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)
            self.register_buffer("table", torch.randn(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.table

    for frozen in (False, True):
        for autocast in (False, True):
            model = Scaled()
            model.linear.requires_grad_(not frozen)
            # Values of the table in bfloat16, so that a cast of it is one of a buffer.
            x = torch.randn(64, 64, requires_grad=True)
            context = compress_saved(FP32, min_size=8, measure=True)
            with context, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = model(x).float().sum()
            (found,) = torch.autograd.grad(y, x)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                (exact,) = torch.autograd.grad(model(x).float().sum(), x)
            assert torch.equal(found, exact), (frozen, autocast)
            # Only activations of layers whose weights are trained.
            assert (context.bytes_saved > 0) == (not frozen and autocast), (frozen, autocast)


def test_statistics_of_norms_and_attention_are_kept_as_they_are() -> None:
    """At one bit they would change whole rows. What else is saved is a fixed input."""
    x = normal(16, 128, 64)
    heads = x.view(16, 128, 4, 16).transpose(1, 2)
    weight = torch.ones(64, requires_grad=True)
    seen: list[int] = []

    def compressible(name: str, tensor: torch.Tensor) -> bool:
        seen.append(tensor.numel())
        return True

    for function in (
        lambda: F.layer_norm(x * weight, (64,)),
        lambda: F.rms_norm(x * weight, (64,)),
        lambda: F.scaled_dot_product_attention(heads, heads, heads * weight[:16]),
    ):
        seen.clear()
        with compress_saved({"codec": "maxmin", "bits": 1}, filter=compressible):
            function()
        assert seen and min(seen) == x.numel()
    (y, scale) = back(x, x[:, :, :1] * 1, context=compress_saved({"bits": 1}))
    assert torch.equal(scale, x[:, :, :1]) and not torch.equal(x, y)


def test_a_frozen_base_keeps_nothing_but_what_its_adapters_need() -> None:
    base, down, up = nn.Linear(256, 256), nn.Linear(256, 4), nn.Linear(4, 256)
    base.requires_grad_(False)
    x = normal(32, 256)
    context = compress_saved(FP32)
    with context:
        y = base(x) + up(down(x))
    assert context.bytes_saved == x.nbytes  # of the adapter; what is below min_size is left
    y.sum().backward()
    assert base.weight.grad is None and down.weight.grad is not None


def test_an_inplace_change_after_saving_is_torchs_error() -> None:
    for n in (2000, 10):  # compressed, and kept for its size
        for dead in (False, True):
            x = torch.randn(n, requires_grad=True)
            with compress_saved(FP32):
                y = torch.exp(x * 1)
                z = y.sum()
            y.add_(1)
            if dead:
                del y
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.backward()
    leaf = torch.randn(2000, requires_grad=True)
    with compress_saved(FP32):
        y = (leaf * torch.randn(2000, requires_grad=True)).sum()
    with torch.no_grad():
        leaf.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_tensor_that_changes_between_two_saves_has_two_payloads() -> None:
    x = normal(2000)
    first = x.clone()
    weight = torch.ones(2000, requires_grad=True)
    context = compress_saved(FP32)
    with context:
        a = (weight * x.clone()).sum()
        memory = x.clone()
        memory.add_(1)
        b = (weight * memory).sum()
    for loss, exact in ((a, first), (b, first + 1)):
        (found,) = torch.autograd.grad(loss, weight)
        assert float((found - exact).abs().max()) < 8 / 255


def test_what_a_node_writes_after_it_was_saved_is_seen() -> None:
    """rrelu saves its noise before it is drawn, without a change of its version."""
    x = (normal(64, 64) * 2).requires_grad_()
    grads = []
    for context in (None, compress_saved({"codec": "bounded", "max_error": 0.0})):
        torch.manual_seed(3)
        with context or torch.enable_grad():
            y = F.rrelu(x, training=True)
        grads.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(*grads)
    with compress_saved(FP32):  # also where nothing is saved behind it
        y = torch.rrelu(x, training=True)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert float(found.abs().max()) < 1.01


def test_changes_through_data_are_seen_by_later_nodes() -> None:
    x = normal(4000)
    first = x.clone()
    weight = torch.ones(4000, requires_grad=True)
    with compress_saved(FP32):
        a = (weight * x).sum()
        torch.exp(weight)
        x.data.mul_(10)
        b = (weight * x).sum()
    (found,) = torch.autograd.grad(a, weight)
    assert float((found - first).norm() / first.norm()) < 0.02
    (found,) = torch.autograd.grad(b, weight)
    assert float((found - 10 * first).norm() / (10 * first).norm()) < 0.02


def test_neighbouring_values_and_meta_tensors() -> None:
    pair = torch.tensor([1.0, math.nextafter(1.0, 2.0)], dtype=torch.float64).repeat(1000)
    (y,) = back(pair, context=compress_saved({"codec": "bounded", "max_error": 0.0}))
    assert torch.equal(pair, y)
    with compress_saved(FP32):
        weight = torch.ones(2000, device="meta", requires_grad=True)
        (weight * torch.ones(2000, dtype=torch.int64, device="meta")).sum().backward()
