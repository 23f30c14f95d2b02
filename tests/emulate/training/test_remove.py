"""remove(): the model and the optimizer as before, bit for bit, or an error and nothing changed."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.emulate.training.models import equal, gradients, images, mlp, net, snapshot, step
from torch_cgx import emulate

RECIPES = ["mxfp8", "nvfp4", "fp8_delayed", "bf16", "smaq68", "cpd43"]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def everything():
    """A model of many kinds of layers, an optimizer, and a step of both."""
    model = net()
    model.extra = nn.ModuleList(
        [
            nn.MultiheadAttention(8, 2),
            nn.ConvTranspose1d(4, 4, 2),
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1),
            parametrizations.weight_norm(nn.Linear(4, 4)),
        ]
    )
    model.bn.register_forward_hook(lambda *_: None)
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(_nothing)
    step(model, optimizer, images())
    return model, optimizer


def _nothing(*_):
    return None


@pytest.mark.parametrize("given", ["optimizer", "none"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_everything_is_as_before(recipe, given):
    model, optimizer = everything()
    before = snapshot(model, optimizer)
    out = model.eval()(images())
    model.train()
    emulation = emulate.apply(model, optimizer if given == "optimizer" else None, recipe)
    assert snapshot(model, optimizer) != before
    emulation.remove()
    assert snapshot(model, optimizer) == before
    emulation.remove()  # does nothing
    assert snapshot(model, optimizer) == before
    assert torch.equal(model.eval()(images()), out)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_training_goes_on_as_one_that_never_was_emulated(recipe):
    """From the state that the emulated part has left."""
    model, optimizer = net(), None
    optimizer = sgd(model)
    with emulate.apply(model, optimizer, recipe, first_last="cast"):
        step(model, optimizer, images())
        emulated = model(images())
    plain = net()
    other = sgd(plain)
    step(plain, other, images())
    plain.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(2):
        step(model, optimizer, images())
        step(plain, other, images())
    assert equal(list(model.state_dict().values()), list(plain.state_dict().values()))
    assert not torch.equal(model(images()), emulated)


def test_a_context_manager_removes_after_an_error_too():
    model = mlp()
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError), emulate.apply(model, recipe="mxfp8"):
        raise ZeroDivisionError
    assert snapshot(model) == before
    emulate.apply(model, recipe="mxfp8").remove()  # may be applied again


def test_steps_of_a_training_are_kept():
    """remove() does not bring old weights back."""
    model = mlp()
    optimizer = sgd(model)
    emulation = emulate.apply(model, optimizer, "smaq68")
    step(model, optimizer, torch.ones(3, 24))
    weights = [p.detach().clone() for p in model.parameters()]
    emulation.remove()
    assert equal(list(model.parameters()), weights)
    assert "momentum_buffer" in optimizer.state[model[0].weight]


# ---- what lives how long ----


@pytest.mark.parametrize("recipe", ["mxfp8", "smaq68"])
def test_a_handle_need_not_be_kept(recipe):
    model, same = mlp(), mlp()
    emulate.apply(model, recipe=recipe)
    kept = emulate.apply(same, recipe=recipe)
    gc.collect()
    x = torch.ones(3, 24)
    assert equal(gradients(model, x), gradients(same, x))
    assert kept.layers is not None


def test_nothing_keeps_a_model_but_its_handle():
    model = mlp()
    emulation = emulate.apply(model, sgd(model), "smaq68", gemm="mxfp8_e4m3")
    gone = weakref.ref(model)
    del emulation, model
    gc.collect()
    assert gone() is None


def test_hooks_of_all_optimizers_end_with_the_model():
    before = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    model = mlp()
    emulate.apply(model, recipe="cpd43")
    assert len(_global_optimizer_pre_hooks) == before[0] + 1
    del model
    gc.collect()
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == before


@pytest.mark.parametrize("recipe", ["mxfp8", "smaq68"])
@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy], ids=["deepcopy", "copy"])
def test_copies_round_until_the_original_does_not(recipe, how):
    model, x = mlp(), torch.ones(3, 24)
    plain = model(x)
    emulation = emulate.apply(model, recipe=recipe)
    if how is copy.copy:
        copied = nn.Sequential(*map(copy.copy, model))
    else:
        copied = how(model)
    state = emulation.state_dict()
    found = model(x)
    emulation.load_state_dict(state)
    if how is copy.deepcopy or recipe == "mxfp8":
        assert torch.equal(copied(x), found) and not torch.equal(found, plain)
    with pytest.raises(ValueError, match="emulated already"):
        emulate.apply(copied, recipe=recipe)
    emulation.remove()
    assert torch.equal(model(x), plain) and torch.equal(copied(x), plain)
    assert [type(m) for m in copied] == [type(m) for m in mlp()]
    emulate.apply(copied, recipe=recipe).remove()
    del emulation, model
    gc.collect()
    assert torch.equal(copied(x), plain)


@pytest.mark.parametrize("recipe", ["mxfp8", "smaq68"])
def test_pickles_are_exact(recipe):
    """Formats belong to the process: what torch.save writes is the model itself."""
    model, x = net().eval(), images()
    plain = model(x)
    emulation = emulate.apply(model, recipe=recipe)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for read in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert [type(m) for m in read.modules()] == [type(m) for m in net().modules()]
        assert torch.equal(read(x), plain)
        emulate.apply(read, recipe=recipe).remove()
    assert not torch.equal(model(x), plain)
    state = model.state_dict()
    assert list(state) == list(net().state_dict())
    emulation.remove()
    assert pickle.dumps(model.state_dict()) == pickle.dumps(state)


def test_a_class_with_a_state_of_its_own_is_pickled_by_it():
    model = nn.Sequential(_Picky(4, 4))
    emulate.apply(model, gemm="e4m3fn", first_last="cast")
    read = pickle.loads(pickle.dumps(model))
    assert type(read[0]) is _Picky and read[0].note == "from the state"
    assert torch.equal(read[0].weight, model[0].weight)


class _Picky(nn.Linear):
    def __getstate__(self):
        return {**self.__dict__, "note": "from the state"}


# ---- models that have changed since ----


def replaced(model):
    model.block[0] = nn.Conv2d(8, 8, 3, padding=1)
    return r"block\.0 is another module, a Conv2d"


def deleted(model):
    model.block = nn.Identity()
    return r"block\.0 is gone|block is another"


def parametrized(model):
    parametrizations.weight_norm(model.head)
    return r"head has another class, Parametrized\w*Linear"


@pytest.mark.parametrize("change", [replaced, deleted, parametrized])
@pytest.mark.parametrize("recipe", ["mxfp8", "smaq68", "bf16"])
def test_a_model_that_has_changed(recipe, change):
    model = net()
    optimizer = sgd(model)
    emulation = emulate.apply(model, optimizer, recipe, first_last="cast")
    text = change(model)
    if change is parametrized and recipe == "smaq68":
        emulation.remove()  # outputs are cast whatever the class
        return
    before = snapshot(model, optimizer)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=rf"changed since apply\(\): ({text}).*; allowed: the"
        ):
            emulation.remove()
        assert snapshot(model, optimizer) == before
    with pytest.raises(RuntimeError, match="Nothing has been removed"), emulation:
        pass


def test_a_change_that_is_undone_is_none():
    model = mlp()
    before = snapshot(model)
    emulation = emulate.apply(model, recipe="mxfp8")
    kept, model[2] = model[2], nn.Linear(24, 24)
    with pytest.raises(RuntimeError, match="2 is another module, a Linear"):
        emulation.remove()
    model[2] = kept
    emulation.remove()
    assert snapshot(model) == before


def test_new_modules_are_none_of_its_business():
    model = mlp()
    emulation = emulate.apply(model, recipe="mxfp8")
    model.append(nn.Linear(24, 24))
    assert type(model[-1]) is nn.Linear
    emulation.remove()
    assert {type(m) for m in model} == {nn.Linear, nn.GELU}


# ---- twice ----


@pytest.mark.parametrize("first", ["mxfp8", "smaq68", "cpd43"])
@pytest.mark.parametrize("second", ["mxfp8", "smaq68", "cpd43"])
@pytest.mark.parametrize("part", ["model", "submodule", "parent", "module inside"])
def test_a_model_is_emulated_once(first, second, part):
    inner = mlp()
    outer = nn.Sequential(inner, nn.Linear(24, 24))
    one, other = {
        "model": (outer, outer),
        "submodule": (outer, inner),
        "parent": (inner, outer),
        "module inside": (outer, nn.Sequential(nn.Linear(24, 24), inner[2], inner[4])),
    }[part]
    emulation = emulate.apply(one, recipe=first)
    before = snapshot(outer)
    with pytest.raises(
        ValueError, match="is emulated already; allowed: one apply.. with all formats"
    ):
        emulate.apply(other, recipe=second)
    assert snapshot(outer) == before
    emulation.remove()
    emulate.apply(other, recipe=second).remove()


def test_global_hooks_go_with_the_model():
    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks
    before = len(hooks)
    model = nn.Linear(4, 4)
    emulate.apply(model, weights="bf16")
    assert len(hooks) == before + 1
    del model
    gc.collect()
    assert len(hooks) == before
