"""cgx_utils.Monitor: its numbers against computations of the test's own, and how it fails."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import CGXState, Monitor
from cgx_utils.monitor.delivery import listed
from cgx_utils.monitor.sample import MOST, Sample
from tests.distributed import run_pooled
from tests.utils.training import (
    COMPRESSED,
    batch,
    gather,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    wrap,
)


def _state(**options):
    return CGXState(config={"bits": 4, "bucket_size": 64}, **options)


def _step(model, rank, step):
    model.zero_grad()
    loss_of(model, batch(rank, step)).backward()


# ---- samples


@pytest.mark.parametrize("sizes", [[0], [1], [31, 1], [33], [5000, 3], [1 << 20, 40, 1 << 14]])
def test_a_sample_has_some_values_of_each_layer(sizes):
    sample = Sample([f"l{i}" for i in range(len(sizes))], sizes, torch.device("cpu"))
    values = sample.values(torch.arange(sum(sizes), dtype=torch.float32))
    assert values.unique().numel() == values.numel() == sample.numel
    assert sample.numel <= MOST + 64 * len(sizes)
    begin = 0
    for size in sizes:
        inside = (values >= begin) & (values < begin + size)
        assert int(inside.sum()) >= min(size, 32)
        begin += size
    if sizes[0] == 1 << 20:  # from one end to the other
        assert values[0] == 0 and (1 << 20) - 1 in values.tolist()


def test_errors_of_a_sample_are_by_layer():
    sample = Sample(["a", "b", "c"], [2, 1, 2], torch.device("cpu"))
    exact = torch.tensor([3.0, 4.0, 0.0, 1.0, 0.0]).double()
    found = torch.tensor([3.0, 4.5, 0.0, 1.0, 1.0]).double()
    assert sample.errors(found, exact) == {"a": pytest.approx(0.1), "b": None, "c": 1.0}


# ---- records


def _trained(rank, world_size, steps, every, options):
    """Records, and what the test computes: errors by layer and step, and bytes."""
    exact_group = dist.new_group(backend="gloo")
    model = wrap(make_model(), _state(**options), bucket_cap_mb=0.02)
    records = []
    monitor = Monitor(model, every, records.append)
    torch_cgx.reset_stats()
    errors = []
    for step in range(steps):
        local = local_gradients(model, batch(rank, step))
        _step(model, rank, step)
        found = gradients(model)
        means = {n: torch.stack(gather(g, exact_group)).double().mean(0) for n, g in local.items()}
        errors.append(
            {n: float((found[n].double() - m).norm() / m.norm()) for n, m in means.items()}
        )
    sent = torch_cgx.stats()["bytes_sent"]
    monitor.close()
    return records, errors, sent, monitor.last is not None, monitor.step_number


@pytest.mark.parametrize("world_size, options", [(1, {}), (2, {}), (3, {"error_feedback": True})])
def test_errors_bits_and_bytes(world_size, options):
    answers = run_pooled(_trained, world_size, 12, 4, options)
    records, errors, _, _, _ = answers[0]
    assert [one["step"] for one in records] == [4, 8, 12]
    assert all(other[0] == [] for other in answers[1:])  # sinks are rank 0's
    assert all(other[3] and other[4] == 12 for other in answers)
    last = records[-1]
    assert {n for n, bits in last["bits"].items() if bits == 4} == COMPRESSED
    assert {n for n, codec in last["codec"].items() if codec == "maxmin"} == COMPRESSED
    for name, error in last["errors"].items():
        if name not in COMPRESSED:
            assert error < 1e-6
        elif world_size > 1 and not options:
            # A sample of one of the last steps: near what whole layers have.
            near = [found[name] for found in errors[4:]]
            assert 0.8 * min(near) < error < 1.25 * max(near)
    assert set(last["errors"]) == set(last["bits"])
    assert last["ratio"] == pytest.approx(_ratio(), rel=1e-6)
    assert last["world_size"] == world_size
    if world_size > 1:
        assert last["exposed"] is not None and 0 < last["exposed"] < 1
        assert last["seconds_encode"] > 0


def _ratio():
    raw = sent = 0
    for name, parameter in make_model().named_parameters():
        numel = parameter.numel()
        raw += 4 * numel
        sent += numel // 2 + 8 * (numel // 64) if name in COMPRESSED else 4 * numel
    return raw / sent


def test_samples_are_not_counted_as_traffic_of_the_training():
    few, many = (run_pooled(_trained, 2, 8, every, {})[0][0] for every in (8, 1))
    assert many[-1]["bytes_sent"] == pytest.approx(few[-1]["bytes_sent"], rel=0.02)


def _buckets(rank, world_size):
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(3)]
    model = wrap(torch.nn.Sequential(*layers), _state(), bucket_cap_mb=1)
    with Monitor(model, 30, lambda record: None) as monitor:
        seen = []
        for _ in range(40):
            model(torch.randn(2, 512)).square().mean().backward()
            seen.append(len(monitor._observer.errors))
    return seen, monitor.last["step"], monitor.last["steps"], monitor._observer.buckets


def test_buckets_take_turns():
    seen, step, steps, buckets = run_pooled(_buckets, 2)[0]
    assert buckets == 3
    assert (seen[0], seen[-1]) == (0, 3)
    assert seen == sorted(seen) and len(set(seen)) == 4
    assert (step, steps) == (40, 10)  # what close() adds


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def _exposed(rank, world_size):
    clock = Clock()
    state = _state()
    model = wrap(make_model(), state)
    records = []
    monitor = Monitor(model, 1, records.append, clock=clock)
    ended = monitor._observer._backward_ended

    def slow(device):  # DDP's wait for the buckets, by this clock
        clock.now += 2.0
        ended(device)

    monitor._observer._backward_ended = slow
    for step in range(2):
        clock.now += 6.0
        _step(model, rank, step)
    return [(r["seconds_per_step"], r["exposed_seconds"], r["exposed"]) for r in records]


def test_exposed_time_is_from_the_last_gradient_to_the_end_of_backward():
    assert run_pooled(_exposed, 2)[0] == [(8.0, 2.0, 0.25)] * 2


def _waits(rank, world_size, late):
    """The slow rank begins its backward pass later: the other one waits for it, exposed."""
    import time

    model = wrap(make_model(), _state())
    monitor = Monitor(model, 1, lambda record: None)
    found = []
    for step in range(4):
        dist.barrier()
        if rank == 1:
            time.sleep(late)
        _step(model, rank, step)
        found.append(monitor.last["exposed_seconds"])
    return found[2:]  # DDP lays out its buckets anew after the first step


@pytest.mark.quiet
def test_a_rank_that_waits_for_another_is_exposed():
    first, second = run_pooled(_waits, 2, 0.2)
    assert min(first) > 0.15
    assert max(second) < 0.15


def _accumulated(rank, world_size):
    model = wrap(make_model(), _state())
    monitor = Monitor(model, 2, lambda record: None)
    for step in range(4):
        with model.no_sync():
            loss_of(model, batch(rank, step)).backward()
        loss_of(model, batch(rank, step)).backward()
    return monitor.step_number, monitor.last["step"]


def test_passes_without_communication_are_no_steps():
    assert run_pooled(_accumulated, 2) == [(4, 4)] * 2


def _failing_forward(rank, world_size):
    model = wrap(make_model(), _state())
    monitor = Monitor(model, 1, lambda record: None)
    _step(model, rank, 0)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.zeros(2, 3))
    _step(model, rank, 1)
    return monitor.step_number


def test_a_step_that_raises_is_no_step():
    assert run_pooled(_failing_forward, 2) == [2, 2]


def _of_group(rank, world_size):
    records = []
    with Monitor(None, 2, records.append) as monitor:
        for _ in range(4):
            torch_cgx.all_reduce(torch.ones(4096), config={"bits": 4})
            monitor.step()
    return [(r["step"], r["bytes_raw"], r["errors"], r["exposed"]) for r in records]


def test_of_a_group_steps_are_the_callers():
    assert run_pooled(_of_group, 2)[0] == [(2, 16384, {}, None), (4, 16384, {}, None)]


# ---- checkpoints


def _saved(rank, world_size, folder):
    model = wrap(make_model(), _state(error_feedback=True))
    with Monitor(model, 1, lambda record: None):
        _step(model, rank, 0)
        state = model._comm_hooks[0][1]
        path = f"{folder}/state{rank}"
        torch.save(state.state_dict(), path)
        loaded = torch.load(path, weights_only=True)
        state.load_state_dict(loaded)
        _step(model, rank, 1)
    return sorted(loaded)


def test_states_load_with_weights_only(tmp_path):
    assert (
        run_pooled(_saved, 2, str(tmp_path))
        == [["error_feedback", "ranks", "steps", "version"]] * 2
    )


# ---- mistakes


@pytest.mark.parametrize("every, error", [(0, ValueError), (-1, ValueError), (True, TypeError)])
def test_a_bad_every(every, error):
    with pytest.raises(error, match=r"every=.*; allowed: integers >= 1"):
        Monitor(None, every)


def _mistakes(rank, world_size):
    bare = torch.nn.parallel.DistributedDataParallel(make_model())
    found = []
    for target in (bare, make_model()):
        try:
            Monitor(target)
        except (TypeError, ValueError) as error:
            found.append(str(error))
    model = wrap(make_model(), _state())
    monitor = Monitor(model, 3, lambda record: None)
    with pytest.raises(ValueError, match="a Monitor already"):
        Monitor(model, 3, lambda record: None)
    monitor.close()
    monitor.close()
    Monitor(model, 3, lambda record: None).close()
    return found


def test_targets_that_cannot_be_watched():
    for first, second in run_pooled(_mistakes, 2):
        assert first.startswith("the model has no CGXState registered")
        assert second.startswith("Monitor of a Net; allowed: a DistributedDataParallel")


def _differing(rank, world_size):
    with pytest.raises(ValueError, match=r"every differs between ranks: \[5, 6\]"):
        Monitor(None, 5 + rank)
    return True


def test_ranks_with_different_steps_raise_on_all():
    assert run_pooled(_differing, 2) == [True, True]


def _on_one_rank(rank, world_size):
    model = wrap(make_model(), _state())
    try:
        if rank == 0:
            Monitor(model)
        _step(model, rank, 0)
    except torch_cgx.CgxError as error:
        return type(error).__name__
    return ""


def test_a_monitor_on_one_rank_only_is_an_error_on_all():
    assert run_pooled(_on_one_rank, 2) == ["MismatchError"] * 2


def _broken_sink(rank, world_size):
    def broken(record):
        raise OSError("disk full")

    records = []
    model = wrap(make_model(), _state())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Monitor(model, 1, [broken, records.append]):
            for step in range(3):
                _step(model, rank, step)
    return [str(w.message) for w in caught if "drops the sink" in str(w.message)], len(records)


def test_a_sink_that_raises_is_dropped_once():
    texts, number = run_pooled(_broken_sink, 2)[0]
    assert len(texts) == 1 and "OSError: disk full" in texts[0]
    assert number == 3


def test_sinks_are_callable():
    with pytest.raises(TypeError, match="sinks holds 'log.csv'"):
        listed(["log.csv"])
