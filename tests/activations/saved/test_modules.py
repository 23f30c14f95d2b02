"""compress_saved by module, compress, and errors."""

from __future__ import annotations

import copy
import io
import itertools
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.activations.kept import gradients, normal, relative, saved_by
from tests.activations.saved.saving import FP32, Gets, back, make_model
from torch_cgx import activations, codecs
from torch_cgx.activations import compress_saved


def test_overrides_and_filters_by_name() -> None:
    model, x = make_model(), normal(32, 64)
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


def test_errors_of_a_modules_tensors_stand_beside_each_other() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.exp(x) + torch.exp(y)

    model, x, y = nn.Sequential(Twice()), normal(2000), normal(2000, seed=2)
    context = compress_saved(FP32, model=model, measure=True)
    wanted = [
        relative(back(values, context=compress_saved(FP32))[0], values)
        for values in (x.exp(), y.exp())
    ]
    with context:  # a part of the model alone has its name in the model, too
        out = model[0](x.requires_grad_(), y.requires_grad_())
    out.sum().backward()
    assert context.errors == pytest.approx({"0": wanted[0], "0#2": wanted[1]})


def test_errors_are_numbered_in_the_order_of_saving() -> None:
    class Saves(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = Gets.apply(torch.ones(3, requires_grad=True), *tensors)
            return found

    plain, mask = normal(2000), (normal(2000) > 0).float()
    graph = normal(2000, seed=2).requires_grad_().exp()
    wanted = {
        id(values): relative(back(values, context=compress_saved(FP32))[0], values)
        for values in (plain, graph)
    } | {id(mask): 0.0}
    for order in itertools.permutations((plain, graph, mask)):  # only `graph` has a history
        context = compress_saved(FP32, measure=True)
        with context:
            Saves()(*order)
        found = [context.errors[name] for name in ("", "#2", "#3")]
        assert found == pytest.approx([wanted[id(values)] for values in order])


def test_counts_are_those_of_the_last_entry_alone() -> None:
    context, x = compress_saved(FP32), normal(2000).requires_grad_()
    sizes = []

    def other() -> None:
        with context:
            torch.exp(x)
            sizes.append(context.bytes_saved)

    with context:
        torch.exp(x)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        torch.exp(x)
    assert [*sizes, context.bytes_saved] == [x.nbytes] * 2


def test_compress_by_module_and_its_removal() -> None:
    model, x = make_model(), normal(32, 64)
    model(x).sum().backward()
    exact = gradients(model)
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
        model(normal(3, 5))  # leaves the context behind it
    y = torch.randn(2000, requires_grad=True).exp()
    handle.remove()
    y.sum().backward()


def test_compression_does_not_hold_variables_of_the_caller() -> None:
    """The output of a step lived until backward: the entry held the frames of the call."""
    model, x = make_model(), normal(32, 64)
    handle = activations.compress(model, FP32)

    def loss() -> tuple[torch.Tensor, weakref.ref[torch.Tensor]]:
        output = model(x) * 1
        found = output.sum()
        return found, weakref.ref(output)

    found, output = loss()
    assert output() is None
    found.backward()
    handle.remove()


def test_a_model_with_compression_can_be_copied_and_pickled() -> None:
    model, x = make_model(), normal(32, 64)
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
    x = normal(4000).requires_grad_()
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
    assert len(saved_by(torch.exp, x)[1]) == 1


def test_removal_while_the_forward_pass_is_running_is_refused() -> None:
    class Removes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            handle.remove()
            return x

    model = Removes()
    handle = activations.compress(model, FP32)
    with pytest.raises(RuntimeError, match="forward pass is running"):
        model(normal(4000))
    handle.remove()
    assert not model._forward_hooks


def test_threads_and_nested_contexts() -> None:
    x = normal(4000)
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
                values = normal(2000, seed=seed * 100 + i)
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


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    (
        (
            {"config": {"codec": "zip"}},
            ValueError,
            "codec is 'zip'; allowed: bf16, block, float, fp16, maxmin",
        ),
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
    model = make_model()
    text = r"overrides\['attn'\] matches no module; the model has: 0, 1, 2, 3"
    with pytest.raises(ValueError, match=text):
        compress_saved(overrides={"attn": {"bits": 8}}, model=model)
    with pytest.raises(ValueError, match=text):
        activations.compress(model, overrides={"attn": {"bits": 8}})
    with pytest.raises(ValueError, match=text):  # also where all tensors are small
        with compress_saved(overrides={"attn": {"bits": 8}}, min_size=1 << 20):
            model(normal(3, 64))
    assert not model._forward_hooks and not model._forward_pre_hooks
    with pytest.raises(ValueError, match=text):
        with compress_saved(overrides={"attn": {"bits": 8}}):
            model(normal(32, 64))


def test_a_dtype_that_the_codec_lacks_is_named_with_its_module() -> None:
    model = make_model().double()
    text = (
        r"module '0' saves a tensor of torch.float64 of shape \[32, 64\]; MaxMin\(.*takes float32"
    )
    with pytest.raises(TypeError, match=text):
        with compress_saved():
            model(normal(32, 64).double())
    with compress_saved({"codec": "bounded", "max_error": 0.0}):
        model(normal(32, 64).double()).sum().backward()
