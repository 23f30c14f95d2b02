"""What must be an error, at once and on every rank, and must not crash, hang or be silent."""

from __future__ import annotations

import datetime
import gc
import os
import re
import select
import signal
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, store
from tests.faults.forked import exit_code


def broken_group(rank, world_size):
    group = dist.new_group([0, 1])
    with pytest.raises(torch_cgx.MismatchError):
        torch_cgx.all_reduce(torch.randn(1000), group=group, config={"bits": 4 + rank})
    start = time.monotonic()
    with pytest.raises(torch_cgx.MismatchError, match="ranks disagree"):
        dist.barrier(group=group)
    with pytest.raises(torch_cgx.MismatchError, match="ranks disagree"):
        dist.broadcast(torch.ones(3, dtype=torch.float64), 0, group=group)
    assert time.monotonic() - start < 2
    dist.destroy_process_group(group)


@pytest.mark.quiet
def test_after_an_error_every_later_call_fails_at_once_with_the_first_cause():
    run_pooled(broken_group, 2)


def early_close(rank, world_size):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(10), group=group)
    if rank == 0:
        dist.destroy_process_group(group)  # and goes on holding it
        time.sleep(1.5)
        return 0.0
    start = time.monotonic()
    with pytest.raises(torch_cgx.PeerLostError, match="closed"):
        dist.all_reduce(torch.ones(10), group=group)
    return time.monotonic() - start


@pytest.mark.quiet
def test_a_peer_that_destroyed_its_group_is_noticed_though_it_holds_the_object():
    assert max(run_pooled(early_close, 2)) < 1.4


def refusal(rank, world_size):
    start = time.monotonic()
    words = "cannot take part.*BITS='99'" if rank == 0 else "BITS='99' is not allowed"
    with pytest.raises((torch_cgx.MismatchError, ValueError), match=words):
        dist.init_process_group(
            "cgx", store=dist.PrefixStore("g", store()), rank=rank, world_size=world_size
        )
    return time.monotonic() - start


def test_a_bad_variable_on_one_rank_is_an_error_on_all():
    env = [{}, {"CGX_COMPRESSION_QUANTIZATION_BITS": "99"}]
    assert max(run_pooled(refusal, 2, backend=None, env=env)) < 10


def other_devices(rank, world_size):
    x = torch.randn(1000)
    for config in ({"bits": 4},):
        with pytest.raises(ValueError, match="meta"):
            torch_cgx.reduce_scatter_single(torch.empty(500, device="meta"), x, config=config)
        with pytest.raises(ValueError, match="meta"):
            torch_cgx.all_gather_single(torch.empty(2000, device="meta"), x, config=config)
    dist.all_reduce(x)


def test_an_output_on_another_device_is_refused():
    run_pooled(other_devices, 2)


def raising_hook(rank, world_size):
    def hook(info):
        raise RuntimeError("from the hook")

    dist.group.WORLD._register_on_completion_hook(hook)
    tensor = torch.ones(100)
    for _ in range(3):
        dist.all_reduce(tensor)
    return tensor[0].item()


def test_a_completion_hook_that_raises_ends_nothing():
    assert run_pooled(raising_hook, 2) == [8.0, 8.0]


def overflow(rank, world_size):
    options = torch_cgx.Options(nonfinite="raise")
    group = dist.new_group([0, 1], pg_options=options)
    with pytest.raises(torch_cgx.NonFiniteError):
        dist.all_reduce(torch.full((100,), 60000.0, dtype=torch.float16), group=group)
    tensor = torch.ones(100)
    dist.all_reduce(tensor, group=group)  # the data's fault: the group goes on
    assert torch.all(tensor == 2)


def test_nonfinite_raise_sees_a_sum_that_only_float16_cannot_hold():
    run_pooled(overflow, 2)


def forked(rank, world_size):
    dist.all_reduce(torch.ones(10))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(10))
            os.write(writer, b"no error")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reader, 1000).decode()
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert torch.all(tensor == world_size)
    return text


def test_a_forked_child_cannot_use_its_parents_group():
    assert all("forked child cannot use it" in text for text in run_pooled(forked, 2))


def forked_in_the_middle(rank: int, world_size: int) -> list[str]:
    texts = []
    other, x = 1 - rank, torch.ones(10)
    calls = {
        "engine": lambda: dist.all_gather([torch.zeros(10), torch.zeros(10)], x, async_op=True),
        "message": lambda: dist.irecv(torch.zeros(10), other),
    }
    for name, call in calls.items():
        work = call() if rank == 0 else None
        if work is not None:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    work.wait()
                    os.write(writer, b"no error")
                except RuntimeError as error:
                    os.write(writer, str(error).encode())
                finally:
                    os._exit(0)
            os.close(writer)
            if select.select([reader], [], [], 10)[0]:
                texts.append(os.read(reader, 1000).decode())
            else:
                os.kill(child, signal.SIGKILL)
                texts.append(f"{name}: the child waits")
            os.waitpid(child, 0)
            os.close(reader)
            store().set(f"forked/{name}", "done")
            work.wait()
        else:
            store().wait([f"forked/{name}"])
            if name == "engine":
                call().wait()
            else:
                dist.send(x, other)
    return texts


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_forked_child_cannot_wait_for_a_call_of_its_parent(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    texts = run_pooled(forked_in_the_middle, 2, env=env)[0]
    assert len(texts) == 2
    assert all("forked child cannot use it" in text for text in texts), texts


def dropped_in_a_child(rank, world_size, destroyed):
    """The child drops the last reference to a group of its parent."""
    group = dist.new_group()
    held = [group._get_backend(torch.device("cpu"))]
    dist.all_reduce(torch.ones(10), group=group)
    if destroyed:
        dist.destroy_process_group(group)
    del group
    child = os.fork()
    if child == 0:
        held[0].shutdown()  # as destroy_process_group() does; nothing in a child
        assert held[0].stats()["calls"] == 1
        held.clear()
        gc.collect()
        os._exit(7)
    return exit_code(child)


@pytest.mark.parametrize("destroyed", [False, True])
@pytest.mark.parametrize("inner", ["SHM", "GLOO"])
def test_a_forked_child_drops_its_parents_group(inner, destroyed):
    """A traceback may hold a destroyed group; a worker of a DataLoader then drops it."""
    env = {"CGX_INNER_COMMUNICATOR_TYPE": inner}
    assert run_pooled(dropped_in_a_child, 2, destroyed, env=env) == [7, 7]


CALLS = {
    "message": lambda group, peer: (dist.isend if peer else dist.irecv)(
        torch.ones(50_000),
        peer,
        group=group,  # longer than what is sent at once
    ),
    "barrier": lambda group, _: dist.barrier(group=group, async_op=True),
    "broadcast": lambda group, _: dist.broadcast(torch.ones(10), 1, group=group, async_op=True),
    "inner": lambda group, _: dist.all_reduce(
        torch.ones(10).bool(), dist.ReduceOp.MAX, group=group, async_op=True
    ),
    "engine": lambda group, _: dist.all_reduce(torch.ones(10), group=group, async_op=True),
}


def works_dropped_in_a_child(rank, world_size, call, fails):
    """The child drops the last reference to a work of a group that its parent has destroyed."""
    group = dist.new_group()
    held = []
    if not fails or rank == 0:
        held.append(CALLS[call](group, 1 - rank))
    if not fails:
        held[0].wait()
    elif rank == 0:
        with pytest.raises(torch_cgx.TimeoutError):
            held[0].wait(timeout=datetime.timedelta(seconds=0.1))
    dist.barrier()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(7)
    code = exit_code(child)
    held.clear()
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    return code, tensor.tolist() == [2.0] * 10


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_forked_child_drops_a_work_of_its_parents_group(call, fails):
    """A traceback may hold it. A work of Gloo joins threads that the child does not have, and takes
    sockets of the parent out of an epoll instance that both share.
    """
    assert run_pooled(works_dropped_in_a_child, 2, call, fails) == [(7, True)] * 2


def many_callbacks(rank, world_size):
    threads_before = len(os.listdir("/proc/self/task"))
    futures = []
    for _ in range(200):
        future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
        futures.append(future.then(lambda f: time.sleep(0.02)))
    for future in futures:
        future.wait()
    return len(os.listdir("/proc/self/task")) - threads_before


def test_slow_callbacks_do_not_make_a_thread_each():
    assert max(run_pooled(many_callbacks, 2)) < 100


def late(rank, world_size):
    if rank == 3:
        time.sleep(4)
        return ""
    try:
        torch_cgx.all_reduce(torch.ones(100_000), config={"bits": 4})
    except torch_cgx.TimeoutError as error:
        return str(error)
    return "nothing was raised"


def test_errors_of_two_levels_name_ranks_of_the_group():
    env = [{"CGX_HOST_ID": host} for host in "aabb"]
    outcomes = run_pooled(late, 4, env=env, group_timeout=1.5, check=False)
    texts = [str(outcome.value) for outcome in outcomes]
    # Rank 1 waits for its counterpart on the other host, 0 for its own or its neighbour, 2 for 3.
    assert re.search(r"rank 0 .*rank [12]\b", texts[0]), texts
    assert re.search(r"rank 1 .*rank 3\b", texts[1]), texts
    assert re.search(r"rank 2 .*rank 3\b", texts[2]), texts
    assert all("timeout= of init_process_group(), new_group()" in text for text in texts[:3]), texts
