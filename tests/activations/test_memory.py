"""activations.memory: bytes of small models by hand, kinds, and what it leaves unchanged."""

import gc
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.activations.memory_cases import F32, Calls
from torch_cgx import activations
from torch_cgx.activations.report.memory import memory

pytestmark = pytest.mark.usefixtures("one_thread")


def kinds(report):
    return {(row["module"], row["kind"]): row["bytes"] for row in report.rows}


def test_two_linear_layers_by_hand():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    x = torch.randn(3, 8, requires_grad=True)
    report = memory(model, x)
    # Each layer keeps its input: 3 x 8 and 3 x 4 values.
    assert kinds(report) == {("0", "input of linear"): 96, ("1", "input of linear"): 48}
    assert report.total == 144 == sum(row["bytes"] for row in report.rows)
    assert report.parameters == F32 * (8 * 4 + 4 + 4 + 1) == 164
    # FewBit's estimate_memory_usage gives 260: the leaves of the graph, which are what gets
    # gradients: 96 of the input and 164 of the parameters.
    assert report.gradients == 96 + 164 == 260
    assert x.grad is None


def test_shares_by_kind_by_module_and_text():
    model = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 1))
    report = memory(model, torch.randn(3, 8))
    assert report.by_kind == {"input of linear": 96 + 48, "activation": 48}
    assert report.by_module == {"0": 96, "1": 48, "2": 48}
    assert [row["class"] for row in report.rows] == ["Linear", "GELU", "Linear"]
    assert [row["share"] for row in report.rows] == [0.5, 0.25, 0.25]
    assert report.table().splitlines() == [
        "module  class   kind             bytes    share  storages",
        "0       Linear  input of linear   96 B   50.0 %         1",
        "1       GELU    activation        48 B   25.0 %         1",
        "2       Linear  input of linear   48 B   25.0 %         1",
        "total                            192 B  100.0 %         3",
    ]
    assert report.table(depth=0).splitlines()[1:] == [
        "(model)         input of linear  144 B   75.0 %         2",
        "(model)         activation        48 B   25.0 %         1",
        "total                            192 B  100.0 %         3",
    ]
    assert len(repr(report).splitlines()) == 1 and "192 B kept" in repr(report)
    with pytest.raises(ValueError, match=r"depth=-1; allowed: None, or integers from 0"):
        report.table(-1)


def test_a_storage_counts_once_and_whole():
    def forward(self, x):
        y = self.linear(x)  # 3 x 8
        part = y[:, :2]
        return part.sin().sum() + part.t().exp().sum() * 0 + y[:, 2:3].cos().sum()

    report = memory(Calls(forward, linear=nn.Linear(4, 8)), torch.randn(3, 4))
    # x; y, which sin and cos keep by two views of it; and the results of exp.
    assert [one.nbytes for one in report.storages] == [3 * 4 * F32, 3 * 8 * F32, 3 * 2 * F32]
    assert len(report.storages[1].saves) == 2


def test_an_address_that_is_used_again_is_another_storage():
    reused = []

    def forward(self, x):
        total, dead = 0, set()
        for _ in range(4):
            y = x * 2
            for _ in range(1000):
                if y.data_ptr() in dead:
                    break
                dead.add(y.data_ptr())
                y.sin()  # the node that keeps y dies here, and y with it
                y = None
                y = x * 2
            reused.append(y.data_ptr() in dead)
            total = total + y.sin().sum()
        return total

    report = memory(Calls(forward), torch.randn(300, requires_grad=True))
    assert reused == 4 * [True]
    assert [one.nbytes for one in report.storages] == 4 * [1200]


def test_what_a_dead_node_kept_is_not_kept():
    def forward(self, x):
        x.sin().exp()
        with torch.no_grad():
            x.tanh().exp()
        return x.cos()

    report = memory(Calls(forward), torch.randn(10, requires_grad=True))
    assert report.total == 40


def test_parameters_and_buffers_also_as_views_are_not_counted():
    model = Calls(lambda self, x: (x @ self.weight.t()[:, :3]) * self.scale[None])
    model.weight = nn.Parameter(torch.randn(6, 5))
    model.register_buffer("scale", torch.randn(3))
    assert memory(model, torch.randn(2, 5)).total == 2 * 5 * F32


def test_tied_weights_and_a_module_called_twice():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = Calls(
        lambda self, x: self.second(self.first(self.first(x))), first=first, second=second
    )
    report = memory(model, torch.randn(2, 4))
    assert report.by_module == {"first": 64, "second": 32}
    assert report.rows[0]["storages"] == 2
    assert report.parameters == F32 * (16 + 4 + 4)


def test_nested_modules_are_cut_at_a_depth():
    def block():
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))

    report = memory(nn.Sequential(block(), block()), torch.randn(2, 4))
    # tanh keeps its result, which the next linear layer shares.
    assert list(report.by_module) == ["0.0", "0.1.0", "1.0", "1.1.0"]
    lines = [line.split() for line in report.table(depth=1).splitlines()]
    assert [line[0] for line in lines[1:]] == ["0", "0", "1", "1", "total"]
    assert report.total == 4 * 32


def test_loss_counts_outside_of_the_model():
    target = torch.tensor([0, 2])
    model = nn.Linear(4, 3)
    report = memory(model, torch.randn(2, 4), loss=lambda y: F.cross_entropy(y, target))
    # log_softmax keeps its result; nll_loss the target and the sum of weights, a float.
    assert kinds(report)[("(loss)", "index")] == 2 * 8
    assert kinds(report)[("(loss)", "other")] == 2 * 3 * F32 + F32
    assert kinds(report)[("", "input of linear")] == 2 * 4 * F32


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        (nn.LayerNorm(8), torch.randn(5, 8), {"norm": (40 + 2 * 5) * F32}),
        (nn.Dropout(0.5), torch.randn(5, 8), {"mask": 40 * F32}),
        (nn.Softmax(-1), torch.randn(5, 8), {"attention": 40 * F32}),
        (nn.Softsign(), torch.randn(5, 8), {"activation": 2 * 40 * F32}),
        (nn.MaxPool1d(2), torch.randn(1, 5, 8), {"other": 40 * F32, "index": 20 * 8}),
        (nn.Conv1d(3, 4, 1), torch.randn(2, 3, 8), {"input of linear": 48 * F32}),
        (nn.Embedding(9, 4), torch.tensor([1, 2, 3]), {"index": 24}),
        (Calls(lambda _, x: x.masked_fill(x > 0, 0)), torch.randn(5, 8), {"mask": 40}),
        (Calls(lambda _, x: F.dropout(x, 0.5)), torch.randn(5, 8), {"mask": 40 * F32}),
        (Calls(lambda _, x: x.sin() * x.exp()), torch.randn(9), {"other": 72, "gate": 36}),
        (Calls(lambda _, x: x.exp().square()), torch.randn(9), {"other": 36}),
        (Calls(lambda _, x: x.exp() @ x.exp()), torch.randn(3, 3), {"other": 72}),
    ],
)
def test_kinds(model, x, expected):
    if x.is_floating_point():
        x = x.clone().requires_grad_()
    report = memory(model, x)
    assert report.by_kind == expected


def test_a_product_of_two_activations_is_attention():
    model = Calls(lambda self, x: (self.q(x)) @ (self.k(x)).transpose(1, 2))
    model.q, model.k = nn.Linear(4, 6), nn.Linear(4, 6)
    report = memory(model, torch.randn(2, 3, 4))
    assert report.by_kind == {"attention": 2 * 2 * 3 * 6 * F32, "input of linear": 2 * 3 * 4 * F32}


@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_keeps_casts_of_parameters(frozen):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    model[1].weight.requires_grad_(not frozen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = memory(model, torch.randn(4, 64))
    # The first layer's input needs no gradient, so only the second keeps its weight.
    assert report.by_kind["cast of parameter"] == 32 * 16 * 2
    assert report.by_kind["input of linear"] == (4 * 64 + (0 if frozen else 4 * 32)) * 2


def test_a_mask_that_is_a_buffer_is_a_mask():
    model = Calls(lambda self, x: self.linear(x) * self.mask.to(x.dtype))
    model.linear = nn.Linear(64, 64)
    model.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).tril())
    assert memory(model, torch.randn(64, 64)).by_kind["mask"] == 64 * 64 * F32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_keep_their_inputs_only(reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6))

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model = nn.Sequential(nn.Linear(6, 6), Block(), Block())
    report = memory(model, torch.randn(5, 6))
    assert kinds(report) == {
        ("0", "input of linear"): 120,
        ("1", "checkpoint boundary"): 120,
        ("2", "checkpoint boundary"): 120,
    }
    plain = memory(nn.Sequential(model[0], model[1].inner, model[2].inner), torch.randn(5, 6))
    assert report.gradients == plain.gradients == report.parameters


class Halves(torch.autograd.graph.saved_tensors_hooks):
    """Keeps tensors as float16."""

    def __init__(self):
        super().__init__(lambda t: (t.half(), t.dtype), lambda kept: kept[0].to(kept[1]))


def test_hooks_of_others_are_counted_as_they_pack():
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
    x = torch.randn(5, 6)
    with Halves():
        around = memory(model, x)
    inside = Calls(lambda self, x: self.run(x), inner=model)

    def run(x):
        with Halves():
            return model(x)

    inside.run = run
    assert memory(model, x).total == 5 * (6 + 24) * 4
    assert around.total == memory(inside, x).total == 5 * (6 + 24) * 2
    assert [row["kind"] for row in around.rows] == ["input of linear", "activation"]


class Counts(nn.Module):
    """Changes everything that a forward pass may change."""

    def __init__(self, fails=False):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.fails, self.calls = fails, 0
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        self.average = 0.5 * self.average + x.mean(0).detach()
        self.register_buffer("fresh", torch.zeros(1))
        random.random(), np.random.rand()
        x = F.dropout(self.linear(self.norm(x)))
        if self.fails:
            raise ZeroDivisionError("in forward")
        return x


def state(model):
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [
        len(getattr(module, name))
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
    ]
    tensors["numbers"] = torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[1].tolist()
    return tensors, (hooks, others, model.training, list(vars(model)), model.calls)


@pytest.mark.parametrize("what", ["works", "forward", "loss", "no gradient"])
def test_nothing_is_changed(what):
    model = Counts(fails=what == "forward").train()
    grad = torch.ones(4, 4)
    model.linear.weight.grad = grad
    stepped = []
    model.linear.bias.register_post_accumulate_grad_hook(stepped.append)
    x = torch.randn(6, 4, requires_grad=True)
    average = model.average
    before = state(model)
    losses = {"loss": lambda y: y, "no gradient": lambda y: y.detach().sum()}
    errors = {"forward": ZeroDivisionError, "loss": ValueError, "no gradient": ValueError}
    if what == "works":
        memory(model, x)
    else:
        with pytest.raises(errors[what]):
            memory(model, x, loss=losses.get(what))
    tensors, others = state(model)
    assert others == before[1] and tensors.keys() == before[0].keys()
    assert all(torch.equal(value, before[0][name]) for name, value in tensors.items())
    assert model.average is average
    assert model.linear.weight.grad is grad and grad.eq(1).all()
    assert model.linear.bias.grad is None and x.grad is None and stepped == []
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    model.fails = False
    model(x).sum().backward()
    assert len(stepped) == 1  # the hook is there again


def test_tensors_do_not_outlive_the_call():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4)
    report = memory(model, x)
    gc.collect()
    found = [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.shape == (2, 4)]
    assert report.total == 64 and all(one is x for one in found)


def test_the_peak_counts_what_the_step_allocates():
    n = 1000

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            scratch = torch.empty(50 * n)  # only in backward, and nowhere saved
            return grad * scratch.fill_(2)[0]

    model = Calls(lambda self, x: Twice.apply(self.weight * x))
    model.weight = nn.Parameter(torch.randn(n))
    report = memory(model, torch.randn(n))
    assert "profiler" in report.peak_source
    assert report.total == n * F32  # x, a factor of the parameter
    # The product, its double, scratch; and at most the gradient and its product.
    assert 52 * n * F32 <= report.peak <= 54 * n * F32
    with torch.autograd.profiler.profile():  # torch allows one at a time
        other = memory(model, torch.randn(n))
    assert other.peak_source == "saved tensors only" and other.peak == n * F32


def test_models_on_meta_cost_nothing():
    model = nn.Sequential(nn.Linear(1 << 20, 1 << 20, device="meta"), nn.GELU())
    report = memory(model, torch.empty(1 << 20, 1 << 20, device="meta"))
    assert report.total == 2 * (1 << 42)
    assert report.by_kind == {"input of linear": 1 << 42, "activation": 1 << 42}


def test_outputs_in_containers_and_named_batches():
    model = Calls(lambda self, x, scale=None: {"a": (x * self.p).exp(), "b": [scale * 2, 3]})
    model.p = nn.Parameter(torch.ones(5))
    model.forward = lambda x, scale: model.function(model, x, scale)
    scale = torch.randn(7, requires_grad=True)
    report = memory(model, torch.randn(5), scale=scale)
    assert report.total == 2 * 5 * F32
    assert report.gradients == (5 + 7) * F32 and scale.grad is None


def test_bad_input_is_named():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(TypeError, match=r"model is of type int; allowed: a torch.nn.Module"):
        memory(3, x)
    with pytest.raises(ValueError, match="no batch; allowed"):
        memory(model)
    with pytest.raises(TypeError, match="loss is of type float; allowed: a function"):
        memory(model, x, loss=1.0)
    with pytest.raises(ValueError, match="weight has no shape yet"):
        memory(nn.LazyLinear(3), x)
    with pytest.raises(ValueError, match="nothing is kept: the output requires no gradient"):
        memory(model.requires_grad_(False), x)
    with pytest.raises(ValueError, match=r"loss returned a tensor of shape \[2, 4\]; allowed"):
        memory(nn.Linear(4, 4), x, loss=lambda y: y)
    with pytest.raises(ValueError, match="loss returned an object of type float"):
        memory(nn.Linear(4, 4), x, loss=lambda y: 1.0)


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    report = memory(nn.Sequential(nn.Linear(8, 4), nn.GELU()), torch.randn(3, 8))
    report.plot(tmp_path / "one.png")
    report.plot(tmp_path / "two.svg", before=report)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "two.svg").read_text()
    assert "<!-- before -->" in text and "<!-- after -->" in text and "<!-- activation -->" in text


def test_payloads_of_compressed_tensors_are_counted() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(64, 64)
    plain = activations.memory(model, x).total
    context = activations.compress_saved({"codec": "maxmin", "bits": 4, "bucket_size": 256})
    with context:
        inside = activations.memory(model, x).total
    with context:
        model(x)
    assert inside == plain - context.bytes_saved + context.bytes_kept == context.bytes_kept
    handle = activations.compress(model, {"codec": "maxmin", "bits": 4, "bucket_size": 256})
    assert activations.memory(model, x).total == handle.bytes_kept == context.bytes_kept
    with torch.no_grad():
        assert activations.memory(model, x).total == context.bytes_kept


def test_graphs_of_the_caller_stay_whole() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    x = torch.randn(16, 8)
    y = model(x)
    history = (x.requires_grad_() * 2).exp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    activations.memory(model, history)
    y.sum().backward()
    history.sum().backward()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_random_numbers_come_back_when_something_cannot_be_restored() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to("meta")
    state = torch.get_rng_state()
    assert activations.memory(model, torch.randn(16, 8, device="meta")).total > 0
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="ScriptModule"):
        activations.memory(torch.jit.script(nn.Linear(3, 3)), torch.randn(2, 3))
