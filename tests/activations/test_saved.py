"""compress_saved and compress: what is kept, what comes back, and errors."""

from __future__ import annotations

import copy
import gc
import io
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx import activations, codecs
from torch_cgx.activations import compress_saved
from torch_cgx.activations.saved import integers
from torch_cgx.activations.saved.sources import Handle, Kept
from torch_cgx.activations.saved.views import region_of

FP32 = {"codec": "maxmin", "bits": 8, "bucket_size": 64, "rounding": "nearest"}


class Gets(torch.autograd.Function):
    """Saves tensors, and shows what comes back; its gradient is ones."""

    seen: list[torch.Tensor] = []

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.n = len(tensors)
        return anchor.sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        Gets.seen.extend(ctx.saved_tensors)
        return (torch.ones(3), *[None] * ctx.n)


def _back(*tensors: torch.Tensor, context: compress_saved | None = None) -> list[torch.Tensor]:
    """The tensors as a backward pass gets them."""
    Gets.seen = []
    with context or compress_saved(FP32, min_size=8):
        y = Gets.apply(torch.ones(3, requires_grad=True), *tensors)
    y.backward()
    found, Gets.seen = Gets.seen, []
    return found


def _values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- what comes back


def test_every_codec_comes_back_within_its_bound() -> None:
    x = _values(4000)
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
        (y,) = _back(x, context=context)
        assert float((x - y).abs().max()) <= bound, config
        assert y.shape == x.shape and y.dtype == x.dtype
        assert context.bytes_saved == x.nbytes and 0 < context.bytes_kept <= x.nbytes / 1.9


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    config = {"codec": "bounded", "pointwise": 0.01} if dtype == torch.float64 else FP32
    x = _values(3000).to(dtype)
    (y,) = _back(x, context=compress_saved(config))
    assert y.dtype == dtype and float((x - y).norm() / x.norm()) < 0.02


def test_every_small_size_is_kept_or_comes_back() -> None:
    for n in range(401):
        x = _values(n)
        (y,) = _back(x)
        if n < 8:
            assert torch.equal(x, y)
        else:
            assert y.shape == x.shape and float((x - y).abs().max()) <= 8 / 255


def test_transposed_views_give_right_gradients() -> None:
    """A bug of others: views came back with the values of the untransposed tensor."""
    x = _values(60, 70)
    weight = _values(60, 60, seed=1).requires_grad_()
    for view in (x, x.t().contiguous().t()):
        (exact,) = torch.autograd.grad((weight @ view).sum(), weight)
        with compress_saved(FP32, min_size=8):
            y = (weight @ view).sum()
        (found,) = torch.autograd.grad(y, weight)
        assert float((found - exact).norm() / exact.norm()) < 0.02


def test_views_come_back_with_equal_strides() -> None:
    base = _values(12, 20, 6)
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
        (y,) = _back(view)
        assert y.stride() == view.stride() and y.shape == view.shape
        assert float((y - view).abs().max()) <= 8 / 255


def test_chunk_views_are_not_saved_whole() -> None:
    """A bug of others: a chunk kept the storage that it is a part of."""
    hidden = _values(64, 300)
    gate, value, _ = hidden.chunk(3, dim=-1)
    context = compress_saved(FP32, min_size=8)
    (y,) = _back(gate, context=context)
    assert context.bytes_saved == gate.numel() * 4 == hidden.nbytes // 3
    assert y.stride() == gate.stride()
    found = _back(gate, value, gate.t(), context=context)
    assert context.bytes_saved == 2 * hidden.nbytes // 3
    assert all(
        torch.allclose(a, b, atol=8 / 255)
        for a, b in zip(found, (gate, value, gate.t()), strict=True)
    )
    assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata


def test_a_storage_is_compressed_once_and_decoded_once() -> None:
    x = _values(50, 40)
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
        found = _back(x, x.t(), x.view(-1), x[10:40], x, context=context)
        assert context.bytes_saved == x.nbytes and decoded == 1
        assert len({y.untyped_storage()._cdata for y in found}) == 1
        weights = [_values(40, 8, seed=i).requires_grad_() for i in range(3)]  # as q, k and v
        decoded = 0
        with context:
            loss = sum((x @ w).sum() for w in weights)
        assert context.bytes_saved == x.nbytes
        loss.backward(retain_graph=True)  # type: ignore[union-attr]
        assert decoded == 1
        loss.backward()  # type: ignore[union-attr]
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
    x = _values(100, 100)
    with compress_saved(FP32):
        a, b = (Gets.apply(torch.ones(3, requires_grad=True), x) for _ in range(2))
    Gets.seen = []
    a.backward()
    (first,) = Gets.seen
    storage = first.untyped_storage()
    from torch.multiprocessing.reductions import StorageWeakRef

    weak = StorageWeakRef(storage)
    Gets.seen, first, storage = [], None, None  # type: ignore[assignment]
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
        (y,) = _back(x, context=context)
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
        _values(100).to(torch.complex64),
        torch.randn(20, 20).to_sparse(),
        torch._neg_view(_values(2000)),
        _values(1000),  # below min_size
        torch.empty(0, 2000),
        _values(2000).to(torch.float8_e4m3fn),
    )
    for x in cases:
        context = compress_saved(FP32)
        (y,) = _back(x, context=context)
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
    x = _values(16, 128, 64)
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
    (y, scale) = _back(x, x[:, :, :1] * 1, context=compress_saved({"bits": 1}))
    assert torch.equal(scale, x[:, :, :1]) and not torch.equal(x, y)


def test_a_frozen_base_keeps_nothing_but_what_its_adapters_need() -> None:
    base, down, up = nn.Linear(256, 256), nn.Linear(256, 4), nn.Linear(4, 256)
    base.requires_grad_(False)
    x = _values(32, 256)
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
    x = _values(2000)
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
    x = (_values(64, 64) * 2).requires_grad_()
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
    x = _values(4000)
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
    (y,) = _back(pair, context=compress_saved({"codec": "bounded", "max_error": 0.0}))
    assert torch.equal(pair, y)
    with compress_saved(FP32):
        weight = torch.ones(2000, device="meta", requires_grad=True)
        (weight * torch.ones(2000, dtype=torch.int64, device="meta")).sum().backward()


# ---- randomness


def _payload_of(x: torch.Tensor, context: compress_saved) -> torch.Tensor:
    (y,) = _back(x, context=context)
    return y


def test_the_key_of_stochastic_rounding() -> None:
    x = _values(4000)
    of_step = lambda step: _payload_of(x, compress_saved(step=step))  # noqa: E731
    assert torch.equal(of_step(3), of_step(3)) and not torch.equal(of_step(3), of_step(4))
    torch.manual_seed(5)
    first, second = (_payload_of(x, compress_saved()) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(_payload_of(x, compress_saved()), first)
    a, b = _back(x, x.clone(), context=compress_saved(step=3))
    assert not torch.equal(a, b)  # each tensor has its number
    state = torch.get_rng_state()
    _payload_of(x, compress_saved(FP32))  # without random numbers, none is drawn
    _payload_of(x, compress_saved(step=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_stochastic_rounding_is_unbiased_over_steps() -> None:
    x = _values(256)
    mean = torch.zeros(256, dtype=torch.float64)
    for step in range(400):
        mean += _payload_of(x, compress_saved({"bits": 2}, min_size=8, step=step)).double() / 400
    unit = float(x.max() - x.min()) / 3
    assert float((mean - x).abs().max()) < 5 * unit / 2 / math.sqrt(400)


def test_rounding_is_stochastic_by_default_at_four_bits_and_less() -> None:
    x = _values(4000)
    for bits, stochastic in ((2, True), (4, True), (5, False), (8, False)):
        config = {"codec": "maxmin", "bits": bits}
        same = torch.equal(
            _payload_of(x, compress_saved(config, step=1)),
            _payload_of(x, compress_saved(config, step=2)),
        )
        assert same != stochastic, bits


def test_entries_round_each_in_its_own_way_while_older_graphs_live() -> None:
    x = _values(4096)
    weight = torch.ones(4096, requires_grad=True)
    context = compress_saved({"bits": 2})
    total = torch.zeros(())
    for _ in range(32):
        with context:
            total = total + (weight * x).sum() / 32
    (mean,) = torch.autograd.grad(total, weight)
    with context:
        (one,) = torch.autograd.grad((weight * x).sum(), weight)
    assert float((mean - x).norm()) < 0.3 * float((one - x).norm())


# ---- by module


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Sigmoid())


def test_overrides_and_filters_by_name() -> None:
    model, x = _model(), _values(32, 64)
    for make in (
        lambda **given: compress_saved(FP32, **given),
        lambda **given: compress_saved(FP32, model=model, **given),
    ):
        context = make(overrides={r"^1$": {"bits": 2}, "3": None}, measure=True)
        with context:
            model(x).sum()
        # tanh and the next layer save one tensor, each in its own way.
        assert set(context.errors) == {"0", "1", "2"}
        assert context.errors["0"] < 0.02 < 0.2 < context.errors["1"]
        assert context.errors["2"] < 0.02
        context = make(filter=lambda name, tensor: name == "0", measure=True)
        with context:
            model(x).sum()
        assert set(context.errors) == {"0"}


def test_overrides_change_parameters_of_the_codec_however_it_is_given() -> None:
    from torch_cgx.activations.saved.codings import coding_of, merged

    wanted = codecs.Rotated(bits=2, block_size=256)
    for config in ({"codec": "rotated", "block_size": 256}, codecs.Rotated(4, 256)):
        assert coding_of(merged(config, {"bits": 2})).name == repr(wanted)
    assert coding_of(merged("rotated", {"bits": 2})).name == repr(codecs.Rotated(bits=2))
    assert coding_of(merged("rotated", {"codec": "fp16"})).name == repr(codecs.make("fp16"))
    default = compress_saved(overrides={"a": {"bits": 8}, "b": {"bits": 2}})._rules.overrides
    assert [coding.stochastic for _, coding in default if coding] == [False, True]


def test_compress_by_module_and_its_removal() -> None:
    model, x = _model(), _values(32, 64)
    model(x).sum().backward()
    exact = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    handle = activations.compress(model, FP32, overrides={"0": {"bits": 4}}, measure=True)
    model(x).sum().backward()
    for p, wanted in zip(model.parameters(), exact, strict=True):
        assert p.grad is not None and not torch.equal(p.grad, wanted) or p.dim() == 1
        assert float((p.grad - wanted).norm() / wanted.norm()) < 0.1
    assert set(handle.errors) == {"0", "1", "3"} and handle.bytes_kept < handle.bytes_saved
    assert handle.state_dict() == {"step": 1}
    with torch.no_grad():
        model(x)
    assert handle.state_dict() == {"step": 1}
    handle.remove()
    handle.remove()
    model.zero_grad()
    model(x).sum().backward()
    for p, wanted in zip(model.parameters(), exact, strict=True):
        assert p.grad is not None and torch.equal(p.grad, wanted)
    handle = activations.compress(model, FP32)
    with pytest.raises(RuntimeError):
        model(_values(3, 5))  # leaves the context behind it
    y = torch.randn(2000, requires_grad=True).exp()
    handle.remove()
    y.sum().backward()


def test_a_model_with_compression_can_be_copied_and_pickled() -> None:
    model, x = _model(), _values(32, 64)
    handle = activations.compress(model, {"bits": 3}, overrides={"1": None})
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for again in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        handle.step = 0
        grads = []
        for one in (model, again):
            one.zero_grad()
            one(x).sum().backward()
            grads.append([p.grad.clone() for p in one.parameters()])
        for a, b in zip(*grads, strict=True):
            assert torch.equal(a, b)
        again[0].weight.data.zero_()
        assert handle.state_dict() == {"step": 1} and model[0].weight.abs().sum() > 0
    handle.remove()
    assert not model._forward_hooks and len(again._forward_hooks) == 1


def test_an_interrupted_forward_pass_leaves_nothing_behind() -> None:
    class Interrupted(nn.Module):
        stop = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.stop:
                raise KeyboardInterrupt
            return torch.exp(x)

    model = Interrupted()
    handle = activations.compress(model, {"bits": 1})
    x = _values(4000).requires_grad_()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    y = torch.exp(x)  # outside of the model: exact
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach())
    model.stop = False
    y = model(x)
    assert handle.bytes_saved == x.nbytes
    assert not torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach())
    model.stop = True
    with pytest.raises(KeyboardInterrupt):
        model(x)
    handle.remove()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t), lambda t: t):
        torch.exp(x)
    assert len(kept) == 1


def test_removal_while_the_forward_pass_is_running_is_refused() -> None:
    class Removes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            handle.remove()
            return x

    model = Removes()
    handle = activations.compress(model, FP32)
    with pytest.raises(RuntimeError, match="forward pass is running"):
        model(_values(4000))
    handle.remove()
    assert not model._forward_hooks


def test_a_resumed_run_rounds_as_one_that_was_never_stopped() -> None:
    x = _values(32, 64)

    def gradients(steps: int, model: nn.Module, handle: Any) -> list[torch.Tensor]:
        for _ in range(steps):
            model.zero_grad()
            model(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]

    model = _model()
    wanted = gradients(5, model, activations.compress(model, {"bits": 3}))
    first, second = _model(), _model()
    handle = activations.compress(first, {"bits": 3})
    gradients(3, first, handle)
    resumed = activations.compress(second, {"bits": 3})
    resumed.load_state_dict(handle.state_dict())
    for a, b in zip(gradients(2, second, resumed), wanted, strict=True):
        assert torch.equal(a, b)
    for bad in ({}, {"step": -1}, {"step": True}, {"step": 1, "x": 2}, None):
        with pytest.raises(ValueError, match="step"):
            resumed.load_state_dict(bad)  # type: ignore[arg-type]


def test_threads_and_nested_contexts() -> None:
    x = _values(4000)
    inner, outer = compress_saved({"bits": 2}, step=1), compress_saved(FP32)
    with outer:
        Gets.seen = []
        with inner:
            a = Gets.apply(torch.ones(3, requires_grad=True), x)
        b = Gets.apply(torch.ones(3, requires_grad=True), x)
    a.backward()
    b.backward()
    assert float((Gets.seen[0] - x).norm() / x.norm()) > 0.2
    assert float((Gets.seen[1] - x).norm() / x.norm()) < 0.02
    shared = compress_saved(FP32)
    errors: list[str] = []

    def train(seed: int) -> None:
        try:
            for i in range(20):
                values = _values(2000, seed=seed * 100 + i)
                weight = torch.ones(2000, requires_grad=True)
                with shared:
                    loss = (weight * values).sum() + (weight * values.view(2, -1).view(-1)).sum()
                (found,) = torch.autograd.grad(loss, weight)
                if float((found - 2 * values).abs().max()) > 0.1:
                    errors.append(f"thread {seed}, step {i}")
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    (
        ({"config": {"codec": "zip"}}, ValueError, "codec is 'zip'; allowed: bf16, fp16, maxmin"),
        ({"config": {"bits": 9}}, ValueError, "config: MaxMin: bits"),
        ({"config": {"bit": 4}}, TypeError, "bit"),
        ({"config": 4}, TypeError, "config is of type int; allowed: a dict"),
        ({"config": {"codec": "bounded"}}, ValueError, "allowed: one of max_error, relative"),
        ({"config": {"codec": "bounded", "max_error": -1.0}}, ValueError, "max_error"),
        ({"min_size": -1}, ValueError, "min_size=-1; allowed: integers from 0"),
        ({"min_size": 1.5}, ValueError, "min_size=1.5"),
        ({"filter": "attn"}, TypeError, "filter is of type str; allowed: a function"),
        ({"overrides": [1]}, TypeError, "overrides is of type list"),
        ({"overrides": {"(": {}}}, ValueError, "not a regular expression"),
        ({"overrides": {"a": {"bits": 9}}}, ValueError, r"overrides\['a'\]"),
        ({"step": -1}, ValueError, "step=-1"),
        ({"step": 1.0}, TypeError, "step=1.0"),
        ({"model": 3}, TypeError, "model is of type int"),
    ),
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        compress_saved(**arguments)


def test_overrides_that_match_nothing_are_an_error() -> None:
    model = _model()
    text = r"overrides\['attn'\] matches no module; the model has: 0, 1, 2, 3"
    with pytest.raises(ValueError, match=text):
        compress_saved(overrides={"attn": {"bits": 8}}, model=model)
    with pytest.raises(ValueError, match=text):
        activations.compress(model, overrides={"attn": {"bits": 8}})
    assert not model._forward_hooks and not model._forward_pre_hooks
    with pytest.raises(ValueError, match=text):
        with compress_saved(overrides={"attn": {"bits": 8}}):
            model(_values(32, 64))


def test_a_dtype_that_the_codec_lacks_is_named_with_its_module() -> None:
    model = _model().double()
    text = (
        r"module '0' saves a tensor of torch.float64 of shape \[32, 64\]; MaxMin\(.*takes float32"
    )
    with pytest.raises(TypeError, match=text):
        with compress_saved():
            model(_values(32, 64).double())
    with compress_saved({"codec": "bounded", "max_error": 0.0}):
        model(_values(32, 64).double()).sum().backward()


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
    x = (_values(8, 16, 32) * 0.5).requires_grad_()
    weight = _values(32, 32, seed=2).requires_grad_()
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
