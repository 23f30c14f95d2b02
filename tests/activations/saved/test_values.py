"""Saved tensors that compress_saved encodes: values, views, sharing, and memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef

from tests.activations.kept import normal
from tests.activations.saved.saving import FP32, Gets, back
from torch_cgx import codecs
from torch_cgx.activations import compress_saved
from torch_cgx.activations.saved.sources import Handle, Kept
from torch_cgx.activations.saved.views import region_of


def test_every_codec_comes_back_within_its_bound() -> None:
    x = normal(4000)
    for config, bound in (
        (FP32, 8 / 255),
        ({"codec": "maxmin", "bits": 4}, 8 / 15),
        (codecs.MaxMin(bits=6, bucket_size=128), 8 / 63),
        ({"codec": "rotated", "bits": 4}, 2.0),
        ("trellis", 3.0),
        ("half", 4 * 2**-8),
        ("fp16", 4 * 2**-11),
        ({"codec": "bounded", "max_error": 1e-3}, 1e-3),
        ({"codec": "bounded", "relative": 1e-4}, 1e-3),
    ):
        context = compress_saved(config)
        (y,) = back(x, context=context)
        assert float((x - y).abs().max()) <= bound, config
        assert y.shape == x.shape and y.dtype == x.dtype
        assert context.bytes_saved == x.nbytes and 0 < context.bytes_kept <= x.nbytes / 1.9


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    config = {"codec": "bounded", "pointwise": 0.01} if dtype == torch.float64 else FP32
    x = normal(3000).to(dtype)
    (y,) = back(x, context=compress_saved(config))
    assert y.dtype == dtype and float((x - y).norm() / x.norm()) < 0.02


def test_every_small_size_is_kept_or_comes_back() -> None:
    for n in range(401):
        x = normal(n)
        (y,) = back(x)
        if n < 8:
            assert torch.equal(x, y)
        else:
            assert y.shape == x.shape and float((x - y).abs().max()) <= 8 / 255


def test_transposed_views_give_right_gradients() -> None:
    """A bug of others: views came back with the values of the untransposed tensor."""
    x = normal(60, 70)
    weight = normal(60, 60, seed=2).requires_grad_()
    for view in (x, x.t().contiguous().t()):
        (exact,) = torch.autograd.grad((weight @ view).sum(), weight)
        with compress_saved(FP32, min_size=8):
            y = (weight @ view).sum()
        (found,) = torch.autograd.grad(y, weight)
        assert float((found - exact).norm() / exact.norm()) < 0.02


def test_views_come_back_with_equal_strides() -> None:
    base = normal(12, 20, 6)
    for view in (
        base,
        base.transpose(0, 2),
        base.permute(1, 2, 0),
        base[:, ::2],
        base[2:9, 3:, 1:5],
        base.chunk(3, dim=1)[1],
        base[:1].expand(5, 20, 6),
        base[:, :, :1].expand(12, 20, 6),
        base.view(6, 2, 20, 6).transpose(1, 2),
        base.unsqueeze(1),
        base.reshape(-1),
        base.flip(0),
    ):
        (y,) = back(view)
        assert y.stride() == view.stride() and y.shape == view.shape
        assert float((y - view).abs().max()) <= 8 / 255


def test_chunk_views_are_not_saved_whole() -> None:
    """A bug of others: a chunk kept the storage that it is a part of."""
    hidden = normal(64, 300)
    gate, value, _ = hidden.chunk(3, dim=-1)
    context = compress_saved(FP32, min_size=8)
    (y,) = back(gate, context=context)
    assert context.bytes_saved == gate.numel() * 4 == hidden.nbytes // 3
    assert y.stride() == gate.stride()
    found = back(gate, value, gate.t(), context=context)
    assert context.bytes_saved == 2 * hidden.nbytes // 3
    assert all(
        torch.allclose(a, b, atol=8 / 255)
        for a, b in zip(found, (gate, value, gate.t()), strict=True)
    )
    assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata


def test_a_storage_is_compressed_once_and_decoded_once() -> None:
    x = normal(50, 40)
    decoded = 0
    whole = codecs.MaxMin.decode

    def counting(self: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        nonlocal decoded
        decoded += 1
        return whole(self, *arguments, **keywords)

    context = compress_saved(FP32)
    patch = pytest.MonkeyPatch()
    patch.setattr(codecs.MaxMin, "decode", counting)
    try:
        found = back(x, x.t(), x.view(-1), x[10:40], x, context=context)
        assert context.bytes_saved == x.nbytes and decoded == 1
        assert len({y.untyped_storage()._cdata for y in found}) == 1
        weights = [normal(40, 8, seed=i).requires_grad_() for i in (2, 3, 4)]  # as q, k and v
        decoded = 0
        with context:
            loss = torch.stack([(x @ w).sum() for w in weights]).sum()
        assert context.bytes_saved == x.nbytes
        loss.backward(retain_graph=True)
        assert decoded == 1
        loss.backward()
        assert decoded == 2
    finally:
        patch.undo()


def test_storage_addresses_that_are_reused_are_told_apart() -> None:
    """A bug of others: a storage was known by its address, which the next tensor gets."""
    memory = np.empty(2000, np.float32)
    weight = torch.ones(2000, requires_grad=True)
    losses = []
    with compress_saved(FP32):
        for i in range(5):
            memory[:] = i + np.arange(2000) / 4000
            x = torch.from_numpy(memory)  # a storage of its own at the same address
            losses.append((weight * x).sum())
            torch.exp(weight)  # another node: what the one before has saved is encoded
            del x
    for i, loss in enumerate(losses):
        (found,) = torch.autograd.grad(loss, weight)
        assert float((found - i - torch.arange(2000) / 4000).abs().max()) < 0.01, i


def test_what_was_decoded_is_freed_when_its_last_user_has_gone() -> None:
    x = normal(100, 100)
    with compress_saved(FP32):
        a, b = (Gets.apply(torch.ones(3, requires_grad=True), x) for _ in range(2))
    Gets.seen = []
    a.backward()
    (first,) = Gets.seen
    weak = StorageWeakRef(first.untyped_storage())
    Gets.seen = []
    del first
    assert not weak.expired()  # the other node still needs it
    del b
    gc.collect()
    assert weak.expired()


def test_nothing_leaks_when_a_graph_is_dropped_without_a_backward_pass() -> None:
    """A saved output that a hook returns as it is would hold its own node."""
    import weakref

    context = compress_saved(FP32)
    x = torch.randn(100, 100, requires_grad=True)
    alive = []
    for n in (100, 5):  # compressed, and kept for its size
        with context:
            y = torch.exp(x[:n, :n] * 1)
        alive.append(weakref.ref(y))
        del y
    gc.collect()
    assert [one() for one in alive] == [None, None]
    handles = [one for one in gc.get_objects() if isinstance(one, (Handle, Kept))]
    assert handles == []


def test_regions() -> None:
    x = torch.empty(4, 6, 10)
    assert region_of(x) == region_of(x.transpose(0, 2)) == region_of(x.view(-1))
    assert region_of(x[:, :, 2:4]) == region_of(x[:, :, 2:4].transpose(0, 1))
    assert region_of(x[:, 1:3]) == region_of(x[:, 1:3].permute(2, 0, 1))
    found = region_of(x[1:3])
    whole = region_of(x)
    assert found is not None and whole is not None
    assert whole.contains(found) and not found.contains(whole) and found.dense
    assert region_of(x[1, 2, 3]) is not None
    assert region_of(torch.empty(0, 3)) is None
    assert region_of(x.view(-1).unfold(0, 5, 2)) is None  # overlaps


_Call = Callable[[], torch.Tensor]


def test_functions_of_torch_with_what_they_save() -> None:
    """Gradients of many functions through 16 bits are near the exact ones."""
    x = (normal(8, 16, 32) * 0.5).requires_grad_()
    weight = normal(32, 32, seed=2).requires_grad_()
    index = torch.randint(0, 32, (8, 16))
    calls: tuple[_Call, ...] = (
        lambda: F.gelu(x) @ weight,
        lambda: F.layer_norm(x, (32,)),
        lambda: F.softmax(x, -1),
        lambda: F.max_pool1d(x, 4),
        lambda: F.scaled_dot_product_attention(x, x, x @ weight),
        lambda: F.cross_entropy(x.view(-1, 32), index.view(-1)),
        lambda: F.dropout(x, 0.4),
        lambda: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
        lambda: torch.where(x > 0, x * x, x),
        lambda: F.conv1d(x, weight[:, :16, None], padding=1),
        lambda: F.embedding(index, weight),
        lambda: torch.cumprod(x + 1, -1),
    )
    for i, call in enumerate(calls):
        found = []
        for context in (compress_saved("fp16", min_size=8), None):
            torch.manual_seed(3)
            with context or torch.enable_grad():
                y = call()
            if y.dim():
                torch.manual_seed(4)
                y = (y * torch.randn_like(y)).sum()
            grads = torch.autograd.grad(y, (x, weight), allow_unused=True)
            found.append([g for g in grads if g is not None])
        for a, b in zip(*found, strict=True):
            assert float((a - b).norm() / b.norm()) < 3e-3, i
