"""cgx_utils.optim.LARS against NumPy in float64, CPD's vector, and itself on sharded parameters."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from cgx_utils.optim import LARS, biases_and_norms
from cgx_utils.optim.norms import norms
from tests.distributed import run_pooled


class Oracle:
    """The docstring's formulas, for one parameter."""

    def __init__(self, w, lr, momentum=0.9, weight_decay=1e-4, eta=0.001, skipped=False, **flags):
        self.w = w.detach().double().numpy().copy()
        self.v = np.zeros_like(self.w)
        self.lr, self.momentum, self.eta = lr, momentum, eta
        self.decay = 0.0 if skipped else weight_decay
        self.skipped, self.flags = skipped, flags

    def step(self, g):
        g = g.double().numpy() * (-1 if self.flags.get("maximize") else 1)
        size, slope = np.linalg.norm(self.w), np.linalg.norm(g)
        trust = 1.0
        if not self.skipped and size > 0 and slope > 0:
            trust = self.eta * size / (slope + self.decay * size)
        change = self.lr * trust * (g + self.decay * self.w)
        self.v = self.momentum * self.v + change
        self.w -= self.momentum * self.v + change if self.flags.get("nesterov") else self.v
        return trust


def _parameter(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))


def _gradient(parameter, step):
    generator = torch.Generator().manual_seed(100 + step)
    found = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return found.to(parameter.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_v13_of_cpd(dtype):
    """The figures of CPD's rule: skip=None, as CPD adapts every tensor."""
    w = nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype))
    optimizer = LARS([w], lr=1.6, momentum=0.9, weight_decay=1e-4, skip=None)
    before = torch.zeros(2, dtype=dtype)
    for v, then, trust in (
        ([0.0048, 0.0064], [2.9952, 3.9936], 0.00499750125),
        ([0.00911232, 0.01214976], [2.98608768, 3.98145024], 0.00498950924),
    ):
        w.grad = torch.tensor([0.6, 0.8], dtype=dtype)
        decayed = w.grad + 1e-4 * w.detach()
        optimizer.step()
        velocity = optimizer.state[w]["momentum_buffer"]
        assert velocity.tolist() == pytest.approx(v, rel=1e-6)
        assert w.tolist() == pytest.approx(then, rel=1e-6)
        assert ((velocity - 0.9 * before) / 1.6 / decayed).tolist() == pytest.approx(
            [trust] * 2, rel=1e-6
        )
        before = velocity.clone()


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-13), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.0, "weight_decay": 0.0},
        {"nesterov": True, "weight_decay": 0.01},
        {"maximize": True, "momentum": 0.5},
    ],
)
def test_it_follows_numpy(options, dtype, bound, foreach):
    """Two groups with options of their own; weights, a bias, a scalar."""
    parameters = [_parameter(*shape, dtype=dtype) for shape in ((5, 7), (7,), (), (3, 2, 2))]
    groups = [
        {"params": parameters[:3]},
        {"params": parameters[3:], "lr": 0.5, "trust_coefficient": 0.02},
    ]
    optimizer = LARS(groups, 1.6, foreach=foreach, **options)
    oracles = [
        Oracle(p, 0.5 if p.dim() == 3 else 1.6, **options, skipped=p.dim() < 2) for p in parameters
    ]
    oracles[3].eta = 0.02
    for step in range(5):
        for parameter, oracle in zip(parameters, oracles, strict=True):
            parameter.grad = _gradient(parameter, step)
            oracle.step(parameter.grad)
        optimizer.step()
    for parameter, oracle in zip(parameters, oracles, strict=True):
        assert parameter.detach().numpy() == pytest.approx(oracle.w, rel=bound, abs=bound)
        if options.get("momentum", 0.9):
            velocity = optimizer.state[parameter]["momentum_buffer"]
            assert velocity.dtype == dtype
            assert velocity.numpy() == pytest.approx(oracle.v, rel=bound, abs=bound)
        else:
            assert parameter not in optimizer.state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("foreach", [False, True])
def test_halves_are_computed_in_float32(dtype, foreach):
    w = _parameter(64, 64, dtype=dtype)
    optimizer = LARS([w], 0.5, foreach=foreach)
    velocity = np.zeros(w.shape)
    for step in range(3):
        oracle = Oracle(w, 0.5)
        oracle.v = velocity
        w.grad = _gradient(w, step)
        oracle.step(w.grad)
        optimizer.step()
        # One rounding of the result: to half a unit in the last place.
        half = torch.finfo(dtype).eps / 2
        assert w.detach().float().numpy() == pytest.approx(oracle.w, rel=1.01 * half)
        found = optimizer.state[w]["momentum_buffer"]
        velocity = found.double().numpy()
        assert velocity == pytest.approx(oracle.v, rel=1.01 * half, abs=3e-8)


def test_foreach_makes_the_same_steps():
    found = []
    for foreach in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 20), nn.BatchNorm1d(20), nn.Linear(20, 3))
        optimizer = LARS(model.parameters(), 0.8, nesterov=True, foreach=foreach)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 9)).square().mean().backward()
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


# ---- which parameters


def _changes(skip):
    """Of weights and a bias with a gradient of ones, lr 1, without momentum."""
    weights, bias = nn.Parameter(torch.full((2, 2), 3.0)), nn.Parameter(torch.full((4,), 3.0))
    optimizer = LARS([weights, bias], 1.0, 0.0, 0.5, skip=skip)
    for parameter in (weights, bias):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [3 - float(parameter.detach().flatten()[0]) for parameter in (weights, bias)]


def test_biases_and_norms_are_skipped_by_default():
    adapted = 0.001 * 6 / (2 + 0.5 * 6) * (1 + 0.5 * 3)
    assert _changes(biases_and_norms) == pytest.approx([adapted, 1.0], rel=1e-3)
    assert _changes(None) == pytest.approx([adapted, adapted], rel=1e-3)
    assert _changes(lambda p: p.dim() == 2) == pytest.approx([1.0, adapted], rel=1e-3)


@pytest.mark.parametrize("w, g", [(0.0, 1.0), (2.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_a_norm_of_zero_is_no_nan(w, g, decay):
    parameter = nn.Parameter(torch.full((2, 3), w))
    parameter.grad = torch.full((2, 3), g)
    LARS([parameter], 0.5, weight_decay=decay).step()
    assert torch.equal(parameter, torch.full((2, 3), w - 0.5 * (g + decay * w)))


def test_parameters_without_a_gradient_and_empty_ones():
    empty, alone = nn.Parameter(torch.empty(0, 3)), _parameter(2, 2)
    before = alone.detach().clone()
    empty.grad = torch.empty(0, 3)
    optimizer = LARS([empty, alone], 1.0)
    optimizer.step()
    assert torch.equal(alone, before) and alone not in optimizer.state


# ---- what torch does with optimizers


def _trained(optimizer, w, steps):
    for step in steps:
        w.grad = _gradient(w, step)
        optimizer.step()
    return w.detach().clone()


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
def test_a_resumed_training_has_the_same_bits(way):
    w = _parameter(4, 4)
    optimizer = LARS([w], 1.6)
    _trained(optimizer, w, range(3))
    if way == "state_dict":
        file = io.BytesIO()
        torch.save({"w": w.detach(), "state": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        other = nn.Parameter(loaded["w"])
        resumed = LARS([other], 0.1, momentum=0.0)
        resumed.load_state_dict(loaded["state"])
    else:
        resumed = pickle.loads(pickle.dumps(optimizer)) if way == "pickle" else None
        resumed = copy.deepcopy(optimizer) if resumed is None else resumed
        other = resumed.param_groups[0]["params"][0]
        assert resumed._skip is biases_and_norms
    assert torch.equal(_trained(resumed, other, (3, 4)), _trained(optimizer, w, (3, 4)))


def test_closures_schedulers_and_tensors_as_lr():
    w, other = _parameter(3, 3), _parameter(3, 3)
    optimizer = LARS([w], 1.6)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    changing = LARS([other], torch.tensor(1.6, dtype=torch.float64))
    for step in range(3):

        def closure(step=step):
            w.grad = _gradient(w, step)
            return torch.is_grad_enabled(), step

        assert optimizer.step(closure) == (True, step)
        other.grad = _gradient(other, step)
        changing.step()
        schedule.step()
        changing.param_groups[0]["lr"] *= 0.5
    assert torch.equal(w, other)


def test_grad_scaler_skips_steps_that_overflow():
    w, other = _parameter(3, 3, dtype=torch.float32), _parameter(3, 3, dtype=torch.float32)
    optimizer, plain = LARS([w], 1.6), LARS([other], 1.6)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    for step in range(3):
        scaler.scale(torch.zeros(()))  # it makes the scale
        w.grad = _gradient(w, step) * scaler.get_scale()
        if step == 1:
            w.grad[0, 0] = float("inf")
        else:
            other.grad = _gradient(other, step)
            plain.step()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(w, other) and scaler.get_scale() == 2.0


def test_a_compiled_step_is_one_graph():
    w, bias, other = _parameter(3, 3), _parameter(3), _parameter(3, 3)
    optimizer = LARS([w, bias], torch.tensor(1.6))
    plain = LARS([other], torch.tensor(1.6))
    compiled = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    for step in range(3):
        bias.grad = _gradient(bias, step)
        w.grad, other.grad = _gradient(w, step), _gradient(w, step)
        compiled()
        plain.step()
    assert torch.equal(w, other)


# ---- shards


class Net(nn.Module):
    """Sizes that two ranks cannot share evenly, one with fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(5, 7), nn.LayerNorm(7)
        self.last = nn.Linear(7, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def _steps(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def _sharded(rank, world_size):
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    torch.manual_seed(1)
    whole = Net()
    model = copy.deepcopy(whole)
    fully_shard(model.first)
    fully_shard(model)
    batches = [torch.randn(8, 5, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    mine = [batch[rank::world_size] for batch in batches]
    options = {"lr": 2.0, "skip": None, "trust_coefficient": 0.05}
    optimizer = LARS(model.parameters(), **options)
    _steps(model, optimizer, mine[:2])
    # Through a checkpoint, into an optimizer of its own.
    state = state_dict.get_optimizer_state_dict(model, optimizer)
    resumed = LARS(model.parameters(), **options)
    state_dict.set_optimizer_state_dict(model, resumed, state)
    _steps(model, resumed, mine[2:3])
    model(mine[3]).square().mean().backward()
    with CommDebugMode() as counter:
        resumed.step()
    _steps(model, resumed, mine[3:])
    optimizer = LARS(whole.parameters(), **options)
    _steps(whole, optimizer, batches[:3])
    whole(batches[3]).square().mean().backward()
    optimizer.step()
    _steps(whole, optimizer, batches[3:])
    names = dict(whole.named_parameters())
    pairs = [(p.full_tensor(), names[name]) for name, p in model.named_parameters()]
    return counter.get_total_counts(), [[x.detach().numpy() for x in pair] for pair in pairs]


def test_fsdp2_has_the_norms_of_whole_parameters():
    first, second = run_pooled(_sharded, 2)
    for collectives, pairs in (first, second):
        assert collectives == 1  # for the norms of all weights and gradients
        assert len(pairs) == 6
        for found, expected in pairs:
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for one, other in zip(first[1], second[1], strict=True):
        assert np.array_equal(one[0], other[0])


def _placements(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    x = torch.arange(35.0).view(5, 7) - 9
    found = []
    for sizes, placements in (
        ((2,), [Shard(0)]),
        ((2,), [Replicate()]),
        ((1, 2), [Replicate(), Shard(1)]),
        ((2, 1), [Shard(0), Shard(0)]),
        ((1, 2), [Shard(1), Shard(0)]),
    ):
        mesh = init_device_mesh("cpu", sizes)
        found.append(distribute_tensor(x, mesh, placements))
    lengths = [float(norm) for norm in norms([x, *found, x.double()])]
    # A gradient whose sum over the ranks is still to come, as of tensor parallelism.
    mesh = init_device_mesh("cpu", (2,))
    w = nn.Parameter(distribute_tensor(x, mesh, [Shard(0)]))
    w.grad = DTensor.from_local(torch.ones_like(x), mesh, [Partial()])
    LARS([w], 1.0).step()
    plain = nn.Parameter(x.clone())
    plain.grad = torch.full_like(x, 2.0)
    LARS([plain], 1.0).step()
    return lengths, (w.full_tensor() - plain).abs().max().item()


def test_norms_of_all_placements():
    expected = float((torch.arange(35.0) - 9).norm())
    for lengths, difference in run_pooled(_placements, 2):
        assert lengths == pytest.approx([expected] * 7, rel=1e-6)
        assert difference < 1e-6


# ---- mistakes


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"lr": -0.1}, ValueError, "lr=-0.1; allowed: numbers >= 0"),
        ({"lr": float("nan")}, ValueError, "lr=nan"),
        ({"lr": True}, TypeError, "lr=True"),
        ({"lr": torch.ones(2)}, ValueError, r"lr is a tensor of shape \(2,\)"),
        ({"momentum": -1}, ValueError, "momentum=-1"),
        ({"momentum": "much"}, TypeError, "momentum='much'"),
        ({"weight_decay": float("inf")}, ValueError, "weight_decay=inf"),
        ({"trust_coefficient": 0}, ValueError, "trust_coefficient=0; allowed: numbers > 0"),
        ({"skip": "bias"}, TypeError, "skip='bias'; allowed: a function"),
        ({"nesterov": 1}, TypeError, "nesterov=1; allowed: True, False"),
        ({"foreach": "yes"}, TypeError, "foreach='yes'; allowed: True, False, None"),
        ({"nesterov": True, "momentum": 0}, ValueError, "momentum=0"),
    ],
)
def test_bad_arguments_are_named(options, error, words):
    with pytest.raises(error, match=words):
        LARS([_parameter(2, 2)], **{"lr": 1.0, **options})


def test_a_bad_group_is_not_added():
    optimizer = LARS([_parameter(2, 2)], 1.0)
    flat = _parameter(4)
    flat._fsdp_flattened = True  # as FSDP1 marks them
    for group, words in (
        ({"params": [_parameter(2)], "lr": -1.0}, "lr=-1.0"),
        ({"params": [flat]}, "flat part of FSDP1.*fully_shard"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.add_param_group(group)
    with pytest.raises(TypeError, match="'phase' of shape .2,., number 0 of group 1, is complex"):
        phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        LARS([{"params": [("w", _parameter(2, 2))]}, {"params": [("phase", phase)]}], 1.0)
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused_and_nothing_is_changed():
    first, table = _parameter(2, 2, dtype=torch.float32), nn.Embedding(4, 3, sparse=True)
    before = first.detach().clone()
    optimizer = LARS([first, table.weight], 1.0)
    first.grad = torch.ones_like(first)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="number 1 of group 0, is of the layout torch.sparse_coo"):
        optimizer.step()
    assert torch.equal(first, before) and not optimizer.state


def test_the_state_of_another_optimizer_is_refused():
    w = _parameter(2, 2)
    optimizer = LARS([w], 1.6)
    state = torch.optim.SGD([w], 0.1, momentum=0.9).state_dict()
    with pytest.raises(ValueError, match="lacks trust_coefficient; allowed: what state_dict"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 1.6
