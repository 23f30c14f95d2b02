"""Ranks that do different things: an error on every rank that names both sides, and no hang,
whatever carried the calls.
"""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, run_ranks, store
from tests.faults.texts import check_disagreement, head_of

# On one host calls are compared in shared memory before they start; elsewhere when they are stuck.
ONE_HOST: dict[str, str] = {}
OVER_GLOO = {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}
TWO_HOSTS = [{"CGX_HOST_ID": "a"}, {"CGX_HOST_ID": "b"}]
AT_ONCE, STUCK = 2.0, 12.0  # seconds; the watch waits 2 s, and may miss the peer once


def other_type(rank):
    dist.all_reduce(torch.ones(100, dtype=torch.float64 if rank else torch.float32))


def other_operation(rank):
    if rank:
        dist.all_reduce(torch.ones(100))
    else:
        dist.broadcast(torch.ones(100), 0)


def other_reduction(rank):
    dist.all_reduce(torch.ones(100), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def sum_and_average(rank):
    dist.all_reduce(torch.ones(100), op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM)


def nothing_and_something(rank):
    dist.all_reduce(torch.ones(100 * rank))
    dist.all_reduce(torch.ones(100))


def compressed_and_exact(rank):
    config = {"bits": 4} if rank else None
    torch_cgx.reduce_scatter_single(torch.ones(1000), torch.ones(2000), config=config)


def other_bits(rank):
    torch_cgx.all_reduce(torch.ones(1000), config={"bits": 4 + rank})


def other_bucket_size(rank):
    torch_cgx.all_reduce(torch.ones(1000), config={"bits": 4, "bucket_size": 64 << rank})


def other_codec(rank):
    torch_cgx.all_reduce(torch.ones(1000), config={"bits": 4, "codec": ["maxmin", "rotated"][rank]})


def other_scale(rank):
    config = {"bits": 2, "codec": "trellis", "scale": ["mse", "unbiased"][rank]}
    torch_cgx.all_reduce(torch.ones(1000), config=config)


def other_rounding(rank):
    rounding = "stochastic" if rank else "nearest"
    torch_cgx.all_reduce(torch.ones(1000), config={"bits": 4, "rounding": rounding})


def other_size(rank):
    dist.all_reduce(torch.ones(1000 + rank))


def other_layers(rank):
    config = {"bits": 4}
    layers = [(500, config), (500, None)] if rank else [(500, None), (500, config)]
    torch_cgx.all_reduce(torch.ones(1000), layers=layers)


# Long exact tensors go directly over Gloo, past messages with headers of their own.
LONG = 200_000


def other_long_size(rank):
    dist.all_reduce(torch.ones(LONG + rank))


def long_and_short(rank):
    dist.all_reduce(torch.ones(LONG if rank else 100))


def long_sum_and_mean(rank):
    dist.all_reduce(torch.ones(LONG), op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM)


def long_exact_and_compressed(rank):
    torch_cgx.all_reduce(torch.ones(LONG), config={"bits": 4 if rank else 32})


def other_root(rank):
    dist.broadcast(torch.ones(100), rank)


def other_size_of_integers(rank):
    # Over plain gloo this ends the process of the rank that gets more than it asked for.
    dist.all_reduce(torch.ones(100 + 10000 * rank, dtype=torch.int64))


def one_call_ahead(rank):
    if rank:
        dist.barrier()
    dist.all_reduce(torch.ones(100))
    dist.barrier()


EVERYWHERE = [
    other_type,
    other_operation,
    other_reduction,
    sum_and_average,
    nothing_and_something,
    compressed_and_exact,
    other_bits,
    other_bucket_size,
    other_codec,
    other_scale,
    other_rounding,
    other_size,
    other_layers,
    one_call_ahead,
    other_long_size,
    long_and_short,
    long_sum_and_mean,
    long_exact_and_compressed,
    other_size_of_integers,
]
# Between hosts both roots have done their part before they could see a difference.
SHARED_MEMORY = [*EVERYWHERE, other_root]
# The root of a broadcast does not wait for the others: it may get the error in its next call.
ROOTS = [other_operation, other_root]
LATE = -1  # in place of the number of the call


# What the two sides differ in is in their lines, except for what only the plan's hash shows.
SAID = {
    other_type: ("float32 values", "float64 values"),
    other_operation: ("broadcast of 100 float32 values from rank 0", "all_reduce SUM of 100 "),
    other_reduction: ("all_reduce SUM", "all_reduce MAX"),
    sum_and_average: ("all_reduce SUM of 100 ", "all_reduce AVG of 100 "),
    compressed_and_exact: ("of 2000 float32 values", "of 2000 float32 values, 4 bits"),
    other_bits: (", 4 bits", ", 5 bits"),
    other_bucket_size: (" bucket_size=64", " bucket_size=128"),
    other_codec: (" maxmin", " rotated"),
    other_scale: (" scale=mse", " scale=unbiased"),
    other_size: ("of 1000 float32 values", "of 1001 float32 values"),
    one_call_ahead: ("all_reduce SUM of 100 float32 values", "barrier"),
    other_root: ("from rank 0", "from rank 1"),
    other_size_of_integers: ("of 100 int64 values", "of 10100 int64 values"),
}


def recorded(text):
    """The number that the flight record gives the call whose error this is; None: never begun."""
    entries = torch_cgx.flight_record()["entries"]
    numbers = [e["collective_seq_id"] for e in entries if e.get("error") == text]
    return numbers[-1] if numbers else None


def disagree(rank, world_size, cases):
    seen = []
    for case in cases:
        group = dist.new_group(list(range(world_size)))
        default, dist.distributed_c10d.GroupMember.WORLD = dist.group.WORLD, group
        start = time.monotonic()
        text = "no error"
        try:
            case(rank)
        except torch_cgx.MismatchError as error:
            text = str(error)
        except Exception as error:
            text = f"{type(error)} {error}"
        finally:
            dist.distributed_c10d.GroupMember.WORLD = default
        seconds, number = time.monotonic() - start, recorded(text)
        start = time.monotonic()
        with pytest.raises(torch_cgx.MismatchError) as later:
            dist.all_reduce(torch.ones(3), group=group)
        if text == "no error" and case in ROOTS:
            # By then the lines name the later call, unless both sides were compared at the call.
            text, number = str(later.value), LATE
        else:
            assert time.monotonic() - start < 1
        seen.append((case, seconds, text, number))
        check_disagreement(str(later.value), rank, world_size)
        dist.destroy_process_group(group)
    return seen


@pytest.mark.parametrize(
    ("env", "cases", "limit"),
    [
        pytest.param(ONE_HOST, SHARED_MEMORY, AT_ONCE, id="shm"),
        pytest.param(OVER_GLOO, EVERYWHERE, STUCK, id="gloo"),
        pytest.param(TWO_HOSTS, EVERYWHERE, STUCK, id="hosts"),
    ],
)
def test_every_rank_gets_both_sides(env, cases, limit):
    results = run_pooled(disagree, 2, cases, env=env, timeout=170, group_timeout=150)
    for rank, seen in enumerate(results):
        for case, seconds, text, number in seen:
            where = f"{case.__name__} on rank {rank} after {seconds:.1f} s: {text}"
            check_disagreement(text, rank, 2)
            for side, said in enumerate(SAID.get(case, ())):
                if number == LATE and " earlier" in text:
                    continue
                assert re.search(rf"^  rank {side} runs .*{said}", text, re.MULTILINE), where
            # One number for a call, in the error as in the flight record.
            assert number in (None, LATE) or number == int(head_of(text)["number"]), where
            assert seconds < limit, where
    # A call is refused before it begins only if the peer has reported its own already.
    assert sum(number is not None for seen in results for *_, number in seen) >= len(cases)


def debugged(rank, world_size):
    with pytest.raises(torch_cgx.MismatchError) as error:
        other_rounding(rank)
    return str(error.value)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_hashes_of_plans_are_for_debugging(level):
    for rank, text in enumerate(run_pooled(debugged, 2, env={"CGX_LOG": level})):
        check_disagreement(text, rank, 2, hashes=level == "debug")
        assert head_of(text)["group"] == "default_pg" and head_of(text)["number"] == "1"


class SlowErrorStore(dist.Store):
    """Writes errors late, or looks for them slowly, as on a busy host."""

    def __init__(self, store, post_seconds=0.0, look_seconds=0.0):
        super().__init__()
        self._store = store
        self._post_seconds, self._look_seconds = post_seconds, look_seconds

    def compare_set(self, key, expected, desired):
        if key.endswith("cgx/failure"):
            time.sleep(self._post_seconds)
        return self._store.compare_set(key, expected, desired)

    def set(self, key, value):
        self._store.set(key, value)

    def get(self, key):
        return self._store.get(key)

    def add(self, key, value):
        return self._store.add(key, value)

    def check(self, keys):
        if keys[0].endswith("cgx/failure"):
            time.sleep(self._look_seconds)
        return self._store.check(keys)

    def delete_key(self, key):
        return self._store.delete_key(key)

    def wait(self, keys, *timeout):
        self._store.wait(keys, *timeout)


def rank_0_is_late(rank, world_size, seconds):
    """Who came last finds the other stuck, and closes what the other waits for. A group for each of
    `seconds`; the text of the last one's error.
    """
    config = {"bits": 4} if rank else None
    text = "no error"
    for number, late in enumerate(seconds):
        inner = dist.PrefixStore(f"late {number}", store())
        slow = SlowErrorStore(inner, 0 if rank else late)  # C++ does not keep the Python half of it
        dist.init_process_group("cgx", store=slow, rank=rank, world_size=world_size)
        if rank == 0:
            time.sleep(1)
        try:
            torch_cgx.reduce_scatter_single(torch.ones(1000), torch.ones(2000), config=config)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            dist.destroy_process_group()
    return text


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        pytest.param(OVER_GLOO, [0.1], id="gloo"),
        pytest.param(TWO_HOSTS, [0.1], id="hosts"),
        pytest.param(TWO_HOSTS, [0.9], id="hosts-busy"),
        # Later than any patience, once: after that the store is not taken for dead.
        pytest.param(TWO_HOSTS, [2.4, 0.4], id="hosts-late-once"),
    ],
)
def test_a_closed_connection_is_not_taken_for_the_cause(env, seconds):
    for text in run_pooled(rank_0_is_late, 2, seconds, env=env, backend=None):
        assert text.startswith("MismatchError") and "disagree" in text


def looks_slowly(rank, world_size):
    inner = dist.PrefixStore("looks slowly", store())
    slow = SlowErrorStore(inner, look_seconds=0.25)
    dist.init_process_group("cgx", store=slow, rank=rank, world_size=world_size)
    dist.barrier()
    try:
        # The ranks of a host compare their calls; the other host sees a connection close.
        dist.all_reduce(torch.ones(101 if rank == 1 else 100))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()
    return "no error"


@pytest.mark.quiet
def test_the_watch_leaves_the_cause_to_the_call_that_looks_for_it():
    env = [{"CGX_HOST_ID": host} for host in "aab"]
    for text in run_pooled(looks_slowly, 3, env=env, backend=None):
        assert text.startswith("MismatchError") and "disagree" in text, text


def slow_to_begin(rank, world_size):
    try:
        if rank:
            dist.all_reduce(torch.ones(3))
        else:
            # Gloo copies the input before it starts, which takes longer than the watch's period.
            n = 1 << 26
            dist.reduce_scatter_single(torch.empty(n // 2), torch.ones(n))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.quiet
@pytest.mark.parametrize("env", [OVER_GLOO, TWO_HOSTS], ids=["gloo", "hosts"])
def test_a_call_that_is_slow_to_begin_is_watched(env):
    for text in run_pooled(slow_to_begin, 2, env=env):
        assert text.startswith("MismatchError") and "disagree" in text


def spectators(rank, world_size):
    """Ranks 0 and 2 agree, rank 1 does not."""
    try:
        if rank == 1:
            dist.broadcast(torch.ones(10), 0)
        else:
            dist.all_reduce(torch.ones(10))
    except torch_cgx.MismatchError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("hosts", ["aaa", "abb"])
def test_ranks_that_agree_get_the_error_too(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    for rank, text in enumerate(run_pooled(spectators, 3, env=env, timeout=60)):
        check_disagreement(text, rank, 3)
        assert "broadcast" in text and "all_reduce" in text


def stale(rank, world_size):
    """A program that is merely slow, or refused an argument, has not disagreed."""
    for _ in range(3):
        if rank == 0:
            with pytest.raises((ValueError, RuntimeError)):
                dist.all_gather([torch.ones(3)], torch.ones(3))  # one output for two ranks
            time.sleep(0.01)
        dist.all_reduce(torch.ones(100))
        dist.barrier()
    if rank == 0:
        time.sleep(5)  # longer than the watch waits before it asks
    x = torch.ones(10, dtype=torch.int64)
    dist.all_reduce(x)
    y = torch.ones(10)
    if rank == 1:
        time.sleep(5)
    dist.all_reduce(y)
    return x[0].item(), y[0].item()


@pytest.mark.parametrize("env", [ONE_HOST, TWO_HOSTS], ids=["shm", "hosts"])
def test_no_false_alarm(env):
    assert run_pooled(stale, 2, env=env) == [(2, 2.0)] * 2


def point_to_point(rank, world_size):
    """Sends and receives are not counted among the collectives."""
    x = torch.full((10,), float(rank))
    if rank == 0:
        dist.send(x, 1)
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        dist.recv(x, 0)
    dist.all_reduce(x)
    dist.all_reduce(x.double())
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return backend._get_sequence_number_for_group()


def test_sends_do_not_count():
    assert run_pooled(point_to_point, 3) == [2, 2, 2]


def sizes_under_detail(rank, world_size):
    start = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        other_size_of_integers(rank)
    return time.monotonic() - start, str(caught.value)


def test_detail_compares_sizes_between_hosts():
    """What docs/reliability.md names as the remedy where no memory is shared."""
    env = [{"TORCH_DISTRIBUTED_DEBUG": "DETAIL", **host} for host in TWO_HOSTS]
    for seconds, text in run_ranks(sizes_under_detail, 2, env=env):
        assert "100" in text and "10100" in text, text
        assert seconds < AT_ONCE
