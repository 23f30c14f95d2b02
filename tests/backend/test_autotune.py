"""Groups with the option `autotune`: ranks agree, bits only go up, failures are as in any call."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import CGXState
from tests import _machinery
from tests.calls import failure
from tests.distributed import run_pooled, run_ranks, store
from tests.reduce import model
from tests.utils import training
from torch_cgx._backend import backend_of

CONFIG = {"bits": 4, "bucket_size": 64}
CHOICES = {"exact": {"bits": 32}, "half": {"bits": 16, "half": "bf16"}, "asked": CONFIG}
RACE = _machinery.TUNING_RACE_CALLS  # most calls before a class has settled
LAYOUTS = ["aa", "aaa", "ab", "aab", "aabb"]


def on(hosts: str, **env: str) -> list[dict[str, str]]:
    return [{"CGX_HOST_ID": host, **env} for host in hosts]


def data(rank: int, n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(rank))


def tuned(**options):
    options = {"autotune": True, **CONFIG, **options}
    return dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**options))


def chosen(result, wanted) -> str:
    """Which of `wanted` the result is, bit for bit."""
    found = [name for name, one in wanted.items() if model.same_bits(result, one)]
    assert len(found) == 1, found
    return found[0]


def wanted_of(inputs, group):
    hosts = backend_of(group).hosts()
    return {
        name: torch_cgx.simulate(inputs, config, "auto", hosts=hosts).result
        for name, config in CHOICES.items()
    }


def everyone(value, group=None):
    values = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def reductions(rank, world_size):
    group = tuned()
    counts = dict.fromkeys(CHOICES, 0)
    orders = []
    for n in (100, 5000, 100_000):
        inputs = [data(r, n) for r in range(world_size)]
        wanted = wanted_of(inputs, group)
        for _ in range(50):
            x = inputs[rank].clone()
            dist.all_reduce(x, group=group)
            orders.append(chosen(x, wanted))
            counts[orders[-1]] += 1
    stats = torch_cgx.stats(group)
    assert {name: stats[f"tuned_{name}"] for name in CHOICES} == counts
    # What measuring cost is apart from what the calls cost.
    assert stats["calls"] == 150 and stats["compressed_calls"] == 150 - counts["exact"]
    assert stats["bytes_sent_tuning"] > 0 and stats["seconds_tuning"] > 0
    table = torch_cgx.tuning(group)
    assert len(table["classes"]) == 3
    return orders, table


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_every_call_is_what_was_asked_or_better_and_the_same_on_all_ranks(hosts):
    first, *others = run_pooled(reductions, len(hosts), env=on(hosts))
    assert all(other == first for other in others)
    # None of them is so slow here that it is not tried.
    assert set(first[0]) == set(CHOICES)


def of_a_rotation(rank, world_size):
    asked = {"bits": 2, "codec": "rotated", "block_size": 256}
    group = tuned(**asked)
    inputs = [data(r, 20_000) for r in range(world_size)]
    found = []
    for _ in range(30):
        x = inputs[rank].clone()
        dist.all_reduce(x, group=group)
        # The call before the next one: signs are of the call's number.
        place = {"hosts": backend_of(group).hosts()}
        place["sequence"] = torch_cgx.stats(group)["sequence"] - 1
        wanted = {
            name: torch_cgx.simulate(inputs, config, "auto", **place).result
            for name, config in (CHOICES | {"asked": asked}).items()
        }
        found.append(chosen(x, wanted))
    assert "rotated" in torch_cgx.tuning(group)["classes"][0]["codec"]
    return found


def test_of_a_rotation():
    first, second = run_pooled(of_a_rotation, 2)
    assert first == second and "asked" in first


def of_16_bits(rank, world_size):
    group = tuned(bits=16, half="fp16")
    n = 5000
    inputs = [data(r, n) for r in range(world_size)]
    wanted = {
        "exact": sum(inputs),
        "asked": torch_cgx.simulate(inputs, {"bits": 16, "half": "fp16"}).result,
    }
    return [
        chosen(x, wanted)
        for x in [inputs[rank].clone() for _ in range(60)]
        if dist.all_reduce(x, group=group) is None
    ]


def test_of_16_bits_only_exact_is_more():
    first, second = run_pooled(of_16_bits, 2)
    assert first == second and set(first) == {"exact", "asked"}


def untouched(rank, world_size):
    """Explicit calls, exact groups, small tensors, other dtypes: nothing is measured or raised."""
    group, exact = tuned(min_size=1000), tuned(bits=32)
    n = 5000
    inputs = [data(r, n) for r in range(world_size)]
    asked = torch_cgx.simulate(inputs, CONFIG).result
    for how in ({"config": CONFIG}, {"layers": [(n, CONFIG)]}):
        for _ in range(30):
            x = inputs[rank].clone()
            torch_cgx.all_reduce(x, group=group, **how)
            assert model.same_bits(x, asked)
    shard, whole = torch.empty(n // world_size), inputs[rank].clone()
    torch_cgx.reduce_scatter_single(shard, whole, group=group, config=CONFIG)
    torch_cgx.all_gather_single(whole, shard, group=group, config=CONFIG)
    for tensor in (torch.ones(100), torch.ones(5000, dtype=torch.float64)):
        dist.all_reduce(tensor, group=group)
    dist.all_reduce(torch.ones(5000), group=exact)
    assert torch_cgx.tuning(group)["classes"] == torch_cgx.tuning(exact)["classes"] == []
    for one in (group, exact):
        assert torch_cgx.stats(one)["bytes_sent_tuning"] == 0
    assert torch_cgx.tuning() is None  # a group without the option
    return True


def test_explicit_calls_stay_and_who_never_compresses_never_measures():
    assert run_pooled(untouched, 2) == [True, True]


def everything(rank, world_size):
    """Reduce-scatter, all-gather, coalesced calls, other dtypes, registered layers, sub-groups."""
    group = tuned(collectives="all_reduce,reduce_scatter,all_gather")
    n = 4096
    found = []
    for round_ in range(RACE + 1):
        generator = torch.Generator().manual_seed(10 * round_ + rank)
        x = torch.randn(n, generator=generator)
        many = [x.clone(), x.clone().half(), x[: n // 2].clone().bfloat16()]
        exact = sum(everyone(x))
        dist.all_reduce_coalesced(many[:1], group=group)
        shard, whole = torch.empty(n // world_size), torch.empty(n)
        dist.reduce_scatter_single(shard, x[: n // world_size * world_size], group=group)
        dist.all_gather_single(whole[: shard.numel() * world_size], shard, group=group)
        for one in many[1:]:
            dist.all_reduce(one, group=group)
        for one in (*many, whole[: shard.numel() * world_size]):
            error = (one.float() - exact[: one.numel()]).norm() / exact[: one.numel()].norm()
            assert error < 0.3
            found.append(one.view(torch.uint8).sum(dtype=torch.int64).item())
    torch_cgx.compat.register_layer(0, 0, 3000, 8, 64)
    torch_cgx.compat.register_layer(0, 1, 1007, 32, 64)
    for _ in range(RACE + 1):
        x = data(rank, 4007)
        dist.all_reduce(x, group=group)
        exact = sum(everyone(data(rank, 4007)))
        # Hosts may sum in another order; 8 bits would err a thousand times as much.
        assert torch.allclose(x[3000:], exact[3000:], rtol=1e-5, atol=1e-5)
    torch_cgx.compat.clear_layers()
    members = list(range(world_size - 1))
    sub = dist.new_group(
        members, backend="cgx", pg_options=torch_cgx.Options(autotune=True, **CONFIG)
    )
    if rank in members:
        for _ in range(RACE + 1):
            dist.all_reduce(x := torch.ones(1000), group=sub)
            assert torch.equal(x, torch.full((1000,), float(len(members))))
    dist.barrier()
    return found, torch_cgx.tuning(group)


@pytest.mark.parametrize("hosts", ["aaaa", "abab", "aaab"])
def test_all_kinds_of_calls(hosts):
    first, *others = run_pooled(everything, 4, env=on(hosts))
    assert all(other == first for other in others)
    kinds = {(row["operation"], row["dtype"]) for row in first[1]["classes"]}
    assert len(kinds) == 5, kinds
    for row in first[1]["classes"]:
        assert ("half" in row["measured"]) == (row["dtype"] == "float32"), row


def uneven(rank, world_size):
    """Rank 0 is far ahead with its calls, the others wait for each and dawdle."""
    group = tuned()
    tensors = [data(rank, 3000) for _ in range(150)]
    works = []
    for i, x in enumerate(tensors):
        work = dist.all_reduce(x, group=group, async_op=True)
        if rank == 0:
            works.append(work)
        else:
            work.wait()
            time.sleep(0.002 if i % 10 == rank else 0)
    for work in works:
        work.wait()
    return [x.sum().item() for x in tensors], torch_cgx.tuning(group)


def test_ranks_with_different_timing_agree():
    first, *others = run_pooled(uneven, 3)
    assert all(other == first for other in others)


MOST_PAUSE = 20_000  # calls between two trials of a slow choice, as in tuned_class.h


def watched(rank, world_size):
    group = tuned()

    def after(calls: int) -> dict:
        for _ in range(calls):
            dist.all_reduce(torch.ones(2000), group=group)
        return torch_cgx.tuning(group)["classes"][0]

    seen = [after(RACE + 1)]
    # How often a rival is tried depends on how slow it was: on a busy machine hundreds of calls lie
    # between two trials. Renewals are equal on all ranks, so all of them make the same calls.
    for _ in range(2):
        calls = 0
        while (now := after(50))["renewals"] == seen[-1]["renewals"] and calls < 2 * MOST_PAUSE:
            calls += 50
        seen.append(now)
    return seen


def test_choices_are_watched_after_they_were_made():
    first, second = run_pooled(watched, 2)
    assert first == second
    raced, once, twice = (one["renewals"] for one in first)
    assert twice > once > raced >= 1
    assert set(first[-1]["measured"]) == set(CHOICES)


def through_the_hook(rank, world_size):
    group = tuned()
    ddp = training.wrap(
        training.make_model(),
        CGXState(group, config=CONFIG),
        process_group=group,
    )
    for step in range(40):
        ddp.zero_grad()
        training.loss_of(ddp, training.batch(rank, step)).backward()
    stats = torch_cgx.stats(group)
    counts = [stats[f"tuned_{name}"] for name in CHOICES]
    digest = sum(g.double().sum().item() for g in training.gradients(ddp).values())
    return sum(counts), counts[-1], digest


def test_the_hook_is_raised_too():
    results = run_ranks(through_the_hook, 2, env={"CGX_CPU_LEVEL": "scalar"})
    assert results[0] == results[1]
    calls, asked, _ = results[0]
    # Scalar code is slower than shared memory: at the least, others were tried.
    assert calls == 40 and asked < 32


def slow_codec(rank, world_size):
    group = tuned()
    for _ in range(40):
        dist.all_reduce(torch.ones(1 << 20), group=group)
    return torch_cgx.tuning(group)["classes"][0]["choice"]


def test_a_codec_that_is_slower_than_the_link_is_not_used():
    first, second = run_ranks(slow_codec, 2, env={"CGX_CPU_LEVEL": "scalar"})
    assert first == second != "asked", first


def made_anew(rank, world_size):
    tables = []
    for _ in range(2):
        group = tuned()
        for _ in range(RACE + 1):
            dist.all_reduce(torch.ones(1000), group=group)
        tables.append(torch_cgx.tuning(group))
        dist.destroy_process_group(group)
    return tables


def test_groups_made_anew_begin_anew():
    first, second = run_pooled(made_anew, 2)
    assert first == second
    rows = [one["classes"][0] for one in first]
    assert rows[0]["calls"] == rows[1]["calls"] == RACE + 1
    assert rows[0]["measured"] != rows[1]["measured"]


def alone(rank, world_size):
    group = tuned()
    x = data(0, 1000)
    dist.all_reduce(y := x.clone(), group=group)
    assert torch.equal(x, y)
    return torch_cgx.tuning(group)["classes"]


def test_a_group_of_one_has_nothing_to_measure():
    assert run_pooled(alone, 1) == [[]]


def different(rank, world_size):
    return failure(
        lambda: dist.init_process_group(
            "cgx",
            store=dist.PrefixStore("t", store()),
            rank=rank,
            world_size=world_size,
            pg_options=torch_cgx.Options(autotune=rank == 0),
        )
    )


def test_ranks_must_agree_on_the_setting():
    for text in run_pooled(different, 2, backend=None):
        assert "MismatchError" in text and "autotune" in text, text


def nonfinite(rank, world_size):
    """A NaN now and then, also in calls on trial: an error on all ranks, and the group goes on."""
    group = tuned(nonfinite="raise")
    raised = 0
    for call in range(100):
        x = data(rank, 2000)
        if call % 7 == 3 and rank == call % world_size:
            x[5] = float("nan")
        try:
            dist.all_reduce(x, group=group)
        except torch_cgx.NonFiniteError:
            raised += 1
    return raised, torch_cgx.tuning(group)


def test_nonfinite_errors_do_not_part_the_ranks():
    first, *others = run_pooled(nonfinite, 3)
    assert all(other == first for other in others)
    assert first[0] == 14


def another_call(rank, world_size):
    """Rank 1 makes an explicit call where the others' group would measure."""
    group = tuned()
    x = torch.ones(1000)
    if rank == 1:
        return failure(lambda: torch_cgx.all_reduce(x, group=group, config=CONFIG))
    return failure(lambda: dist.all_reduce(x, group=group))


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_another_call_while_measuring_is_a_mismatch(hosts):
    for text in run_pooled(another_call, 2, env=on(hosts), group_timeout=20):
        assert "MismatchError" in text and "disagree" in text, text


def late(rank, world_size):
    group = dist.new_group(
        backend="cgx",
        pg_options=torch_cgx.Options(autotune=True, **CONFIG),
        timeout=timedelta(seconds=2),
    )
    if rank == 1:
        time.sleep(6)
    start = time.monotonic()
    text = failure(lambda: dist.all_reduce(torch.ones(1000), group=group))
    return text, time.monotonic() - start


def test_a_peer_that_does_not_come_is_a_timeout():
    """Between hosts the first exchange compares clocks."""
    first, second = run_pooled(late, 2, env=on("ab"))
    assert "TimeoutError" in first[0] and "while the autotuner measured" in first[0]
    assert 1.5 < first[1] < 5
    assert "Error" in second[0], second


def killed(rank, world_size, step):
    _machinery.allow_faults()
    try:
        group = tuned()
    finally:
        _machinery.allow_faults(False)
    dist.barrier()
    if rank == 1:
        _machinery.order_fault("kill", step)
    start = time.monotonic()
    for _ in range(40):
        text = failure(lambda: dist.all_reduce(torch.ones(1000), group=group))
        if "Error" in text:
            break
    return text, time.monotonic() - start


@pytest.mark.parametrize("hosts", ["aa", "aba"])
@pytest.mark.parametrize("step", [0, 7, 40, 100])
def test_a_peer_that_dies_while_measuring(hosts, step):
    outcomes = run_pooled(
        killed, len(hosts), step, env=on(hosts), group_timeout=30, check=False, timeout=60
    )
    assert outcomes[1].exit_code == -signal.SIGKILL, outcomes[1].report()
    for outcome in [o for o in outcomes if o.rank != 1]:
        assert outcome.error is None, outcome.report()
        text, seconds = outcome.value
        assert "PeerLostError" in text and "rank 1" in text, text
        assert seconds < 10
